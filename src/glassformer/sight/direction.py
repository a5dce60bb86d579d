"""A logit's direction carried back through the residual stream, to what each part added along it.

    logit <-- head <-- last norm <-- block N: d . write of each head, MLP, expert <-- (norm) <--
    block N-1 .. <-- embed

Every norm is held at the scale that it had (and centres, where it is a LayerNorm), so that it is
linear. Sums are made in fp64 from the values that the model had. d direction, C model dim, H heads,
D head dim, F hidden, K experts a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import UserError
from ..core.nn import Model, Tape
from ..core.nn.attention import Attention
from ..core.nn.cross_attention import CrossAttention
from ..core.nn.experts import MoE
from ..core.nn.hooks import Edit
from ..core.nn.layers import MLP, GatedMLP, Head, LayerNorm, Linear, RMSNorm
from ..core.nn.lora import LoRALinear
from ..core.nn.model import Block, Stack
from . import streams
from .streams import fp64

HELD = "The {}'s transform is not linear: its activation is held at the gate that it had, act(x)/x."
INSTEAD = "`glassformer saliency` asks the input instead."


@dataclass(frozen=True)
class Contribution:
    """Contribution of one component: ``kind`` is head, mlp, expert, token, position, bias, edit,
    ..; ``address`` where it stands.

    ``block`` is its block, counted from 0, and ``index`` its number there: a head's, an expert's.
    """

    kind: str
    address: str
    value: float
    block: int | None = None
    index: int | None = None


class AtOnePlace(Tape):
    """Keeps the values of one position alone, in fp64: (C), (H, D), (F), (K, F)."""

    def __init__(self, position: int, body: str, edits: Mapping[str, Edit]) -> None:
        super().__init__(*watched(body), edits=edits)
        self.position = position

    def record(self, path: str, x: Tensor) -> None:
        """Keep ``x`` where it is asked for; heads stand before positions in z."""
        row = x[0, :, self.position] if path.endswith(".z") else x[0, self.position]
        super().record(path, fp64(row) if row.is_floating_point() else row.clone())


def watched(body: str) -> list[str]:
    """The values that a sweep through a stack reads."""
    inside = "attn.z cross.z attn.write cross.write ffn.write resid mid mid_cross "
    inside += "ffn.hidden ffn.weight ffn.chosen ffn.shared.hidden ffn.shared.write"
    return ["embed.*", f"{body}.embed", *(f"{body}.blocks.*.{name}" for name in inside.split())]


class Sweep:
    """A direction (C) carried back from a logit to the embedding; ``parts`` are found from the last
    to the first."""

    def __init__(self, model: Model, tape: AtOnePlace, place: str | None = None) -> None:
        self.model, self.tape, self.seen = model, tape, tape.records
        self.place = place or str(tape.position)  # as addresses say it
        self.body = streams.body_of(model)
        self.parts: list[Contribution] = []
        self.notes: list[str] = []
        self.d = torch.empty(0)

    def add(
        self,
        kind: str,
        address: str,
        value: Tensor,
        block: int | None = None,
        index: int | None = None,
    ) -> None:
        """One more part."""
        self.parts.append(Contribution(kind, address, float(value), block, index))

    def edited(
        self, path: str, now: Tensor, edited_value: Tensor, block: int | None = None
    ) -> None:
        """Adds the contribution of an edit that changed a value on the stream (C) from what was
        ``made``."""
        if self.tape.changes(path):
            self.add("edit", f"{path}[{self.place}]", self.d @ (now - edited_value), block)

    def carry_back(self, hidden: Tensor, token: int, against: int | None) -> None:
        """From the logit of ``token``, less that of ``against``, to the tables; the head reads
        ``hidden`` (C)."""
        self.head(hidden, token, against)
        self.through_stack(hidden)

    def through_stack(self, hidden: Tensor) -> None:
        """From ``hidden`` (C), which the stack gave, to the tables."""
        stack: Any = self.model.get_submodule(self.body)
        _known(type(stack) is Stack, stack)
        states = [self.seen[f"{self.body}.embed"]]
        states += [
            self.seen[f"{self.body}.blocks.{number}.resid"] for number in range(len(stack.blocks))
        ]
        self.edited(f"{self.body}.out", hidden, _normed(stack.last_norm, states[-1]))
        self.d = self.through(stack.last_norm, states[-1], self.d, f"{self.body}.last_norm")
        for number in reversed(range(len(stack.blocks))):
            self.block(number, stack.blocks[number], states[number], states[number + 1])
        self.embedding(stack, states[0])

    # ------------------------------------------------------------------------------------- the two
    # ends

    def head(self, hidden: Tensor, token: int, against: int | None) -> None:
        """From the logit (the difference of two) back to ``hidden`` (C), which the head reads."""
        head: Any = self.model.head
        _known(type(head) is Head, head)
        rows = [token] if against is None else [token, against]
        signs = torch.tensor([1.0, -1.0][: len(rows)], dtype=torch.float64, device=hidden.device)
        d = signs @ fp64(head.table(self.model.embed)[rows])
        if head.proj.bias is not None:
            name = " - ".join(f"head.proj.bias[{row}]" for row in rows)
            self.add("bias", name, signs @ fp64(head.proj.bias[rows]))
        x, gate = hidden, None
        if head.transform is not None:
            x, gate = gated(head.transform, head.act, x)
        self.d = self.through(head.norm, x, d * head.scale, "head.norm")
        if gate is not None:
            self.notes.append(HELD.format("head"))
            self.d, constant = back(head.transform, self.d * gate)
            self.add("bias", "head.transform.bias", constant)
        if head.softcap is not None:
            self.notes.append("The head caps its logits: parts are of the logit before the cap.")

    def embedding(self, stack: Stack, states: Tensor) -> None:
        """From the stream's first ``states`` (C) back to the tables."""
        embed: Any = self.model.embed
        names = {path: path.split(".")[1] for path in self.seen if path.startswith("embed.")}
        scale = torch.tensor(embed.scale, dtype=embed.token.weight.dtype).double()
        vectors = {
            path: self.seen[path] * (scale if name in ("token", "lag") else 1.0)
            for path, name in names.items()
        }
        total = torch.stack([*vectors.values()]).sum(0)
        projected = _normed(stack.first_norm, total)
        projected = (
            _apply(stack.project, projected) if isinstance(stack.project, Linear) else projected
        )
        self.edited(f"{self.body}.embed", states, projected)
        if isinstance(stack.project, Linear):
            self.d, constant = back(stack.project, self.d)
            self.add("bias", f"{self.body}.project.bias", constant)
        self.d = self.through(stack.first_norm, total, self.d, f"{self.body}.first_norm")
        for path, value in reversed(vectors.items()):
            kind, _, index = path.removeprefix("embed.").partition(".")
            self.add(
                kind, f"{path}[{self.place}]", self.d @ value, index=int(index) if index else None
            )

    # --------------------------------------------------------------------------------------- the
    # blocks

    def block(self, number: int, block: Any, before: Tensor, after: Tensor) -> None:
        """From the states ``after`` a block (C) back to those ``before`` it."""
        _known(type(block) is Block, block)
        path = f"{self.body}.blocks.{number}"
        names = [name for name in ("attn", "cross", "ffn") if getattr(block, name) is not None]
        writes = {name: self.seen[f"{path}.{name}.write"] for name in names}
        if block.place == "parallel":
            self.edited(f"{path}.resid", after, before + sum(writes.values()), number)
            for name in reversed(names):
                self.sublayer(f"{path}.{name}", getattr(block, name), self.d, number)
            return
        places = [f"{path}.mid", f"{path}.mid_cross"][: len(names) - 1]
        inside = [before, *(self.seen[place] for place in places), after]
        for at in reversed(range(len(names))):
            name, x, write = names[at], inside[at], writes[names[at]]
            leaves, norm = (
                [*places, f"{path}.resid"][at],
                f"{name}_{'post_' * (block.place == 'sandwich')}norm",
            )
            if block.place == "post":
                self.edited(
                    leaves, inside[at + 1], _normed(getattr(block, norm), x + write), number
                )
                self.d = self.through(
                    getattr(block, norm), x + write, self.d, f"{path}.{norm}", number
                )
                d = self.d
            elif block.place == "sandwich":
                self.edited(
                    leaves, inside[at + 1], x + _normed(getattr(block, norm), write), number
                )
                d = self.through(getattr(block, norm), write, self.d, f"{path}.{norm}", number)
            else:
                self.edited(leaves, inside[at + 1], x + write, number)
                d = self.d
            self.sublayer(f"{path}.{name}", getattr(block, name), d, number)

    def sublayer(self, path: str, part: nn.Module, d: Tensor, block: int) -> None:
        """Adds the contributions of one sublayer, along ``d`` (C)."""
        place, first = self.place, len(self.parts)
        if type(part) in (Attention, CrossAttention) and isinstance(part.out, Linear):
            z = self.seen[f"{path}.z"]  # (H, D)
            along, constant = back(part.out, d)
            if part.out.bias is not None:
                self.add("bias", f"{path}.out.bias", constant, block)
            kind = "cross head" if part.cross else "head"
            for head, value in reversed(list(enumerate((z * along.view_as(z)).sum(-1)))):
                self.add(kind, f"{path}.z[{head},{place}]", value, block, head)
        elif type(part) in (MLP, GatedMLP) and isinstance(part.down, Linear):
            along, constant = back(part.down, d)
            if part.down.bias is not None:
                self.add("bias", f"{path}.down.bias", constant, block)
            kind = "shared expert" if path.endswith(".shared") else "mlp"
            self.add(kind, f"{path}.hidden[{place}]", along @ self.seen[f"{path}.hidden"], block)
        elif type(part) is MoE:
            if part.shared is not None:
                self.sublayer(f"{path}.shared", part.shared, d, block)
            # (K), (K, F)
            weights, hidden = self.seen[f"{path}.weight"], self.seen[f"{path}.hidden"]
            for slot, expert in reversed(list(enumerate(self.seen[f"{path}.chosen"].tolist()))):
                if part.down_bias is not None:
                    value = weights[slot] * (fp64(part.down_bias[expert]) @ d)
                    self.add("bias", f"{path}.down_bias[{expert}]", value, block, expert)
                value = weights[slot] * (d @ fp64(part.down[expert]) @ hidden[slot])
                self.add("expert", f"{path}.hidden[{place},{slot}]", value, block, expert)
        else:  # a part of somebody's own: as a whole
            self.add(
                path.rpartition(".")[2],
                f"{path}.write[{place}]",
                d @ self.seen[f"{path}.write"],
                block,
            )
        if self.tape.changes(f"{path}.write"):
            written = math.fsum(contribution.value for contribution in self.parts[first:])
            self.add(
                "edit", f"{path}.write[{place}]", d @ self.seen[f"{path}.write"] - written, block
            )

    def through(
        self, norm: nn.Module, x: Tensor, d: Tensor, path: str, block: int | None = None
    ) -> Tensor:
        """The direction before a norm that read ``x`` (C), held at its scale; what its shift added
        is a part."""
        if isinstance(norm, LayerNorm) and norm.bias is not None:
            self.add("bias", f"{path}.bias", d @ fp64(norm.bias), block)
        return _before(norm, d, x)


def _known(fact: bool, module: nn.Module) -> None:
    if not fact:
        name = type(module).__name__
        raise UserError(
            f"{name} is a part of your own, whose arithmetic attribution does not know; {INSTEAD}"
        )


def _before(norm: nn.Module, d: Tensor, x: Tensor) -> Tensor:
    """The direction (C) before a norm that is held at the scale it has for ``x`` (C)."""
    if isinstance(norm, nn.Identity):
        return d
    if type(norm) is LayerNorm:
        d = d * fp64(norm.weight) * (x.var(correction=0) + norm.eps).rsqrt()
        return d - d.mean()
    _known(type(norm) is RMSNorm, norm)
    assert isinstance(norm, RMSNorm)
    gain = 1.0 if norm.weight is None else fp64(norm.weight) + norm.offset
    return d * gain * (x.square().mean() + norm.eps).rsqrt()


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    """The norm of ``x`` (C), in fp64."""
    shift = norm.bias if isinstance(norm, LayerNorm) else None
    if isinstance(norm, LayerNorm):
        y = (x - x.mean()) * (x.var(correction=0) + norm.eps).rsqrt() * fp64(norm.weight)
        return y if shift is None else y + fp64(shift)
    return _before(norm, x, x)  # without a mean to take away it is the same both ways


def _apply(layer: Linear, x: Tensor) -> Tensor:
    """A layer of x (I), in fp64, its low-rank change with it."""
    weight, bias = fp64(layer.weight), 0.0 if layer.bias is None else fp64(layer.bias)
    y = weight @ x + bias
    if isinstance(layer, LoRALinear) and layer.original is None:
        y = y + layer.scale * (fp64(layer.up) @ (fp64(layer.down) @ x))
    return y


def gated(layer: Linear, act: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Activation of a layer at x (I), and the gate act(y)/y (O) at which that is
    linear."""
    y = _apply(layer, x)
    activated: Tensor = act(y)
    return activated, torch.where(y == 0, 0.0, activated / y)


def back(layer: Linear, d: Tensor) -> tuple[Tensor, Tensor]:
    """The direction (I) before a layer whose output has the direction (O), and what its bias
    adds."""
    along = d @ fp64(layer.weight)
    if isinstance(layer, LoRALinear) and layer.original is None:
        along = along + layer.scale * (d @ fp64(layer.up)) @ fp64(layer.down)
    return along, d.new_zeros(()) if layer.bias is None else d @ fp64(layer.bias)
