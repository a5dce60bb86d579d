"""Direct logit attribution: what each part of the model added to a logit, or to the difference of two.

A logit is a direction times the stream, and the stream is a sum of what parts wrote to it. Every norm on the way is
held at the scale that it had in this pass (and centres, where it is a LayerNorm): so it is linear, the sum exact.
The direction is carried back from the head, part by part:

    logit <-- head <-- last norm <-- block N: d . write of each head, MLP, expert <-- (norm) <-- block N-1 .. <-- embed

Sums are made in fp64 from the values that the model had. d direction, C model dim, H heads, D head dim, F hidden,
K experts a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import UserError, need
from ..nn import Model, Tape
from ..nn.attention import Attention
from ..nn.block import Block, Stack
from ..nn.ends import Head
from ..nn.experts import MoE
from ..nn.feedforward import MLP, GatedMLP
from ..nn.finite import must_be_finite
from ..nn.inference import inference
from ..nn.linear import Linear
from ..nn.lora import LoRALinear
from ..nn.norm import LayerNorm, RMSNorm
from . import streams, tables
from .looking import Text
from .streams import fp64

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer

INSTEAD = "`glassformer saliency` asks the input instead."


@dataclass(frozen=True)
class Part:
    """What one part added: ``kind`` is head, mlp, expert, token, position, .. or bias; ``address`` is where it stands.

    ``block`` is its block, counted from 0, and ``index`` its number there: a head's, an expert's.
    """

    kind: str
    address: str
    value: float
    block: int | None = None
    index: int | None = None


@dataclass(frozen=True)
class Attribution:
    """What every part added to the logit of ``token`` at ``position``, less that of ``against`` where it is given.

    ``logit`` is the model's own (before a softcap; ``capped`` after it), ``sum`` that of all ``parts``, ``difference``
    what is between them: rounding.
    """

    token: int
    piece: str
    against: int | None
    against_piece: str | None
    position: int
    parts: list[Part]
    sum: float
    logit: float
    difference: float
    capped: float | None
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**vars(self), "parts": [vars(part) for part in self.parts]}

    def by_block(self) -> list[tuple[str, dict[str, float]]]:
        """The sums of each block by kind, from the embedding on, and of what stands outside of blocks."""
        found: dict[str, dict[str, float]] = {}
        for part in self.parts:
            name = "ends" if part.block is None else f"block {part.block}"
            kinds = found.setdefault(name, {})
            kinds[part.kind] = kinds.get(part.kind, 0.0) + part.value
        order = sorted(found, key=lambda name: (name != "ends", int(name.split()[-1]) if name != "ends" else 0))
        return [(name, found[name]) for name in order]

    def table(self, top: int = 20) -> list[str]:
        """The parts that added or took most, as lines, rounded to four places; then the sum beside the logit."""
        ordered = sorted(self.parts, key=lambda part: -abs(part.value))
        rows = [(_label(part), part.address, f"{part.value:+.4f}") for part in ordered[:top]]
        if rest := ordered[top:]:
            rows.append((f"{len(rest):,} more", "", f"{math.fsum(part.value for part in rest):+.4f}"))
        rows += [("sum", f"of {len(self.parts):,} parts", f"{self.sum:+.4f}")]
        rows += [("logit", "the model's own", f"{self.logit:+.4f}"), ("difference", "", f"{self.difference:.1e}")]
        return tables.lines(rows, ("part", "address", "added"), left=(0, 1))


def _label(part: Part) -> str:
    block = "" if part.block is None else f"L{part.block}."
    return f"{block}{part.kind}" + ("" if part.index is None else f" {part.index}")


def attribute(
    model: Model,
    tokenizer: Tokenizer | None,
    text: Text,
    *,
    source: Text | None = None,
    token: str | int | None = None,
    against: str | int | None = None,
    position: int | None = None,
) -> Attribution:
    """What each part of ``model`` added to the logit of ``token`` (None: the likeliest) at ``position`` of ``text``.

    ``position`` None is an encoder's only mask token, else the last. With ``against`` the difference of the two
    logits is taken apart. An encoder-decoder's decoder is asked, beside its ``source``. Raises UserError for a model
    without a head or without a residual stream, and for blocks and norms whose arithmetic is not known here.
    """
    head = streams.needs_head(model, "`glassformer contexts` compares its vectors.")
    streams.needs_stream(model, "Direct logit attribution", INSTEAD)
    tokens, source_ids = streams.read(model, tokenizer, text, source)
    at = streams.place(position, tokens, tokenizer)
    tape = _AtOnePlace(at, streams.body_of(model))
    with inference(model):
        output = model(*streams.given(tokens, source_ids), tape=tape, logits="none")
        one = output.hidden[:, at : at + 1]
        logits = fp64(head.proj(head.prepare(one), head.table(model.embed))[0, 0])  # before the cap
        must_be_finite(model, output.hidden, logits)
    known = len(logits) if tokenizer is None else min(tokenizer.size, len(logits))
    chosen = int(logits[:known].argmax()) if token is None else streams.word_id(model, tokenizer, token)
    other = None if against is None else streams.word_id(model, tokenizer, against)
    need(other != chosen, "The two tokens are the same one, and their difference is nothing; give another.")
    with torch.no_grad():
        sweep = _Sweep(model, tape.records, at)
        sweep.head(output.hidden[0, at], chosen, other)
        sweep.stack()
    total = math.fsum(part.value for part in sweep.parts)

    def told(logits: Tensor) -> float:
        return (logits[chosen] - (0.0 if other is None else logits[other])).item()

    own, cap = told(logits), head.softcap
    capped = None if cap is None else told(cap * torch.tanh(logits / cap))
    piece, *rest = streams.pieces(tokenizer, [chosen] if other is None else [chosen, other])
    beside, parts = rest[0] if rest else None, sweep.parts[::-1]
    return Attribution(chosen, piece, other, beside, at, parts, total, own, abs(total - own), capped, sweep.notes)


class _AtOnePlace(Tape):
    """Keeps the values of one position alone, in fp64: (C), (H, D), (F), (K, F)."""

    def __init__(self, position: int, body: str) -> None:
        inside = "attn.z cross.z attn.write cross.write ffn.write resid mid mid_cross "
        inside += "ffn.hidden ffn.weight ffn.chosen ffn.shared.hidden ffn.shared.write"
        super().__init__("embed.*", f"{body}.embed", *(f"{body}.blocks.*.{name}" for name in inside.split()))
        self.position = position

    def record(self, path: str, x: Tensor) -> None:
        """Keep ``x`` where it is asked for; heads stand before positions in z."""
        row = x[0, :, self.position] if path.endswith(".z") else x[0, self.position]
        super().record(path, fp64(row) if row.is_floating_point() else row.clone())


class _Sweep:
    """A direction (C) carried back from a logit to the embedding; ``parts`` are found from the last to the first."""

    def __init__(self, model: Model, seen: dict[str, Tensor], position: int) -> None:
        self.model, self.seen, self.position = model, seen, position
        self.body = streams.body_of(model)
        self.parts: list[Part] = []
        self.notes: list[str] = []
        self.d = torch.empty(0)

    def add(self, kind: str, address: str, value: Tensor, block: int | None = None, index: int | None = None) -> None:
        """One more part."""
        self.parts.append(Part(kind, address, float(value), block, index))

    # ------------------------------------------------------------------------------------- the two ends

    def head(self, hidden: Tensor, token: int, against: int | None) -> None:
        """From the logit (the difference of two) back to ``hidden`` (C), which the head reads."""
        head: Any = self.model.head
        _known(type(head) is Head, head)
        rows = [token] if against is None else [token, against]
        signs = torch.tensor([1.0, -1.0][: len(rows)], dtype=torch.float64, device=fp64(hidden).device)
        d = signs @ fp64(head.table(self.model.embed)[rows])
        if head.proj.bias is not None:
            name = " - ".join(f"head.proj.bias[{row}]" for row in rows)
            self.add("bias", name, signs @ fp64(head.proj.bias[rows]))
        x, gate = fp64(hidden), None
        if head.transform is not None:
            y = _apply(head.transform, x)
            x = head.act(y)
            gate = torch.where(y == 0, 0.0, x / y)
        self.d = self.through(head.norm, x, d * head.scale, "head.norm")
        if gate is not None:
            self.notes.append(
                "The head's transform is not linear: its activation is held at the gate that it had, act(x)/x."
            )
            self.d, rest = _back(head.transform, self.d * gate)
            self.add("bias", "head.transform.bias", rest)
        if head.softcap is not None:
            self.notes.append("The head caps its logits: parts are of the logit before the cap.")

    def embedding(self, stack: Stack) -> None:
        """From the stream's first states back to the tables."""
        if isinstance(stack.project, Linear):
            self.d, rest = _back(stack.project, self.d)
            self.add("bias", f"{self.body}.project.bias", rest)
        embed: Any = self.model.embed
        names = {path: path.split(".")[1] for path in self.seen if path.startswith("embed.")}
        scale = torch.tensor(embed.scale, dtype=embed.token.weight.dtype).double()
        found = {path: self.seen[path] * (scale if name in ("token", "lag") else 1.0) for path, name in names.items()}
        self.d = self.through(
            stack.first_norm, torch.stack([*found.values()]).sum(0), self.d, f"{self.body}.first_norm"
        )
        for path, value in reversed(found.items()):
            kind, _, index = path.removeprefix("embed.").partition(".")
            self.add(kind, f"{path}[{self.position}]", self.d @ value, index=int(index) if index else None)

    # --------------------------------------------------------------------------------------- the blocks

    def stack(self) -> None:
        """From what the head reads back through every block."""
        stack: Any = self.model.get_submodule(self.body)
        _known(type(stack) is Stack, stack)
        states = [self.seen[f"{self.body}.embed"]]
        states += [self.seen[f"{self.body}.blocks.{number}.resid"] for number in range(len(stack.blocks))]
        self.d = self.through(stack.last_norm, states[-1], self.d, f"{self.body}.last_norm")
        for number in reversed(range(len(stack.blocks))):
            self.block(number, stack.blocks[number], states[number])
        self.embedding(stack)

    def block(self, number: int, block: Any, before: Tensor) -> None:
        """From the states after a block back to those ``before`` it (C)."""
        _known(type(block) is Block, block)
        path = f"{self.body}.blocks.{number}"
        entering = {"attn": before, "cross": self.seen.get(f"{path}.mid"), "ffn": self.seen.get(f"{path}.mid")}
        entering["ffn"] = self.seen.get(f"{path}.mid_cross", entering["ffn"])
        for name in ("ffn", "cross", "attn"):
            if (sublayer := getattr(block, name)) is None:
                continue
            write = self.seen[f"{path}.{name}.write"]
            if block.place == "post":
                norm, x = getattr(block, f"{name}_norm"), entering[name]
                assert x is not None
                self.d = self.through(norm, x + write, self.d, f"{path}.{name}_norm", number)
            d = self.d
            if block.place == "sandwich":
                d = self.through(getattr(block, f"{name}_post_norm"), write, d, f"{path}.{name}_post_norm", number)
            self.sublayer(f"{path}.{name}", sublayer, d, number)

    def sublayer(self, path: str, part: nn.Module, d: Tensor, block: int) -> None:
        """What the parts of one sublayer wrote, along ``d`` (C)."""
        place = self.position
        if type(part) is Attention and isinstance(part.out, Linear):
            z = self.seen[f"{path}.z"]  # (H, D)
            along, rest = _back(part.out, d)
            if part.out.bias is not None:
                self.add("bias", f"{path}.out.bias", rest, block)
            kind = "cross head" if part.cross else "head"
            for head, value in reversed(list(enumerate((z * along.view_as(z)).sum(-1)))):
                self.add(kind, f"{path}.z[{head},{place}]", value, block, head)
        elif type(part) in (MLP, GatedMLP) and isinstance(part.down, Linear):
            along, rest = _back(part.down, d)
            if part.down.bias is not None:
                self.add("bias", f"{path}.down.bias", rest, block)
            kind = "shared expert" if path.endswith(".shared") else "mlp"
            self.add(kind, f"{path}.hidden[{place}]", along @ self.seen[f"{path}.hidden"], block)
        elif type(part) is MoE:
            if part.shared is not None:
                self.sublayer(f"{path}.shared", part.shared, d, block)
            weights, hidden = self.seen[f"{path}.weight"], self.seen[f"{path}.hidden"]  # (K), (K, F)
            for slot, expert in reversed(list(enumerate(self.seen[f"{path}.chosen"].tolist()))):
                if part.down_bias is not None:
                    value = weights[slot] * (fp64(part.down_bias[expert]) @ d)
                    self.add("bias", f"{path}.down_bias[{expert}]", value, block, expert)
                value = weights[slot] * (d @ fp64(part.down[expert]) @ hidden[slot])
                self.add("expert", f"{path}.hidden[{place},{slot}]", value, block, expert)
        else:  # a part of somebody's own: as a whole
            self.add(path.rpartition(".")[2], f"{path}.write[{place}]", d @ self.seen[f"{path}.write"], block)

    def through(self, norm: nn.Module, x: Tensor, d: Tensor, path: str, block: int | None = None) -> Tensor:
        """The direction before a norm that read ``x`` (C), held at its scale; what its shift added is a part."""
        if isinstance(norm, LayerNorm) and norm.bias is not None:
            self.add("bias", f"{path}.bias", d @ fp64(norm.bias), block)
        return _before(norm, d, x)


def _known(fact: bool, part: nn.Module) -> None:
    if not fact:
        name = type(part).__name__
        raise UserError(f"{name} is a part of your own, whose arithmetic attribution does not know; {INSTEAD}")


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


def _apply(layer: Linear, x: Tensor) -> Tensor:
    """A layer of x (I), in fp64, its low-rank change with it."""
    weight, bias = fp64(layer.weight), 0.0 if layer.bias is None else fp64(layer.bias)
    y = weight @ x + bias
    if isinstance(layer, LoRALinear) and layer.original is None:
        y = y + layer.scale * (fp64(layer.up) @ (fp64(layer.down) @ x))
    return y


def _back(layer: Linear, d: Tensor) -> tuple[Tensor, Tensor]:
    """The direction (I) before a layer whose output has the direction (O), and what its bias adds."""
    along = d @ fp64(layer.weight)
    if isinstance(layer, LoRALinear) and layer.original is None:
        along = along + layer.scale * (d @ fp64(layer.up)) @ fp64(layer.down)
    return along, d.new_zeros(()) if layer.bias is None else d @ fp64(layer.bias)
