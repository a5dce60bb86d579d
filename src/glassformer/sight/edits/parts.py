"""Parts of a model that add nothing: heads, sublayers, experts; and who looks at whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ...core import config
from ...core.errors import UserError, need
from ...core.nn.hooks import Place
from ..axes import of_source
from ..reading import Hook, Last, Reading
from .base import Change, Edit, Positions, counted, lengths, modules_with, plain


def _zeros(path: str, x: Tensor, place: Place, chosen: Tensor | None) -> Tensor:
    return x.new_zeros(())


@dataclass(frozen=True, repr=False)
class head_off(Edit):
    """One head of an attention (``decoder.blocks.3.attn``, ``.cross``) gives zeros, or always its
    mean.

    ``mean``: the mean of the head's z over the positions of the text, in generation of the prompt;
    zeros may be further from what the layers above know than no information is.
    """

    path: str
    head: int
    fill: Literal["zero", "mean"] = "zero"
    positions: Positions = None

    def paths(self, reading: Reading) -> list[str]:
        need(self.fill in ("zero", "mean"), f'fill is {self.fill!r}; give "zero" or "mean".')
        need(
            self.head is not None,
            f"head is None; give the head's number, or use attn_off({self.path!r}).",
        )
        return [f"{module}.z" for module in modules_with(reading, self.path, "z", "attention")]

    def change(self, reading: Reading, path: str) -> Change:
        if self.fill == "zero":
            return _zeros
        sizes = None if of_source(reading.model, path) else lengths(reading, False)
        return _Mean(self.head, sizes)


class _Mean:
    """A head's mean over the text as its ``z``; a pass that begins a text makes it, later ones of a
    cache take it."""

    def __init__(self, head: int, sizes: list[int] | None) -> None:
        self.head = head
        self.sizes = sizes
        self.mean = torch.empty(0)  # (R, 1, D)

    def __call__(self, path: str, z: Tensor, place: Place, chosen: Tensor | None) -> Tensor:
        pos = place.pos[:, -z.shape[2] :].expand(z.shape[0], -1)
        rows = place.rows
        if bool((pos == 0).any()):
            inside = pos >= 0
            if self.sizes is not None:
                sizes = torch.tensor(self.sizes, device=z.device)
                inside = inside & (pos < (sizes if rows is None else sizes[rows])[:, None])
            mean = _mean(z[:, self.head], inside, place.document_ids)
            self.mean = (
                mean if rows is None else mean.new_zeros(int(rows.max()) + 1, *mean.shape[1:])
            )
            if rows is not None:
                self.mean[rows] = mean
        return (self.mean if rows is None else self.mean[rows])[:, None]


def _mean(z: Tensor, inside: Tensor, document_ids: Tensor | None) -> Tensor:
    """z (B, T, D), the mean of the tokens ``inside`` (B, T): (B, 1, D), or (B, T, D) of documents
    that share rows."""
    same_document = inside[:, None]
    if document_ids is not None:
        same_document = same_document & (document_ids[:, :, None] == document_ids[:, None])
    weight = same_document.to(torch.promote_types(z.dtype, torch.float32))
    return weight @ z.to(weight.dtype) / weight.sum(-1, keepdim=True).clamp(min=1)


class _Off(Edit):
    """A sublayer that writes zeros."""

    kind: ClassVar[str]
    beside: ClassVar[str]  # a value that tells the sublayer from others

    def paths(self, reading: Reading) -> list[str]:
        modules = modules_with(reading, self.path, "write", self.kind, self.beside)
        return [f"{module}.write" for module in modules]

    def change(self, reading: Reading, path: str) -> Change:
        return _zeros


@dataclass(frozen=True, repr=False)
class attn_off(_Off):
    """A whole attention (``decoder.blocks.3.attn``, ``.cross``) writes zeros; in a sandwich these
    are normed still."""

    kind = "attention"
    beside = "z"
    path: str
    positions: Positions = None


@dataclass(frozen=True, repr=False)
class mlp_off(_Off):
    """A feed-forward layer (``decoder.blocks.3.ffn``), or a mixture's shared one, writes zeros."""

    kind = "feed-forward layer"
    beside = "hidden"
    path: str
    positions: Positions = None


@dataclass(frozen=True, repr=False, eq=False)
class set_attention(Edit):
    """Whom the tokens at ``query`` look at in an attention (``decoder.blocks.3.attn``, ``.cross``).

    ``weights`` is a weight for each key from position 0 on, the others then 0, or a table of
    position and weight, the others then as they were; ``renormalise`` divides a row by its sum
    afterwards. ``query`` and ``head`` None are all. What the mask hides stays hidden, and is
    refused where ``query`` names the token.
    """

    path: str
    head: int | None
    query: Positions
    weights: Mapping[int, float] | Sequence[float]
    renormalise: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "query", plain(self.query))
        object.__setattr__(self, "positions", self.query)

    def paths(self, reading: Reading) -> list[str]:
        modules = modules_with(reading, self.path, "pattern", "attention")
        return [f"{module}.pattern" for module in modules]

    def change(self, reading: Reading, path: str) -> Change:
        weights = self.weights
        is_table = isinstance(weights, Mapping)
        weights = dict(weights) if isinstance(weights, Mapping) else dict(enumerate(weights))
        need(
            bool(weights)
            and all(
                type(key) is int and isinstance(weight, int | float) and weight >= 0
                for key, weight in weights.items()
            ),
            "weights must be numbers of 0 or more: one for each key from 0 on, or "
            "{position: weight}.",
        )
        source = of_source(reading.model, path) or path.endswith(".cross.pattern")
        table = {counted(reading, key, source): float(x) for key, x in weights.items()}

        def change(path: str, x: Tensor, place: Place, chosen: Tensor | None) -> Tensor:
            assert place.keys is not None
            visible = place.keys[:, None, None] >= 0 if place.visible is None else place.visible()
            new = x.clone() if is_table else torch.zeros_like(x)
            for key, weight in table.items():
                cells = (place.keys == key)[:, None, None] & visible  # (B or 1, 1, T or 1, S)
                blind = ~cells.any(-1, keepdim=True)
                blind = blind if chosen is None else chosen & blind
                if weight and isinstance(self.query, tuple) and bool(blind.any()):
                    raise UserError(
                        f"A token at {self.query} cannot attend to position {key} in "
                        f"{path}: leave it out."
                    )
                new = torch.where(cells, torch.tensor(weight, dtype=x.dtype, device=x.device), new)
            return new / new.sum(-1, keepdim=True) if self.renormalise else new

        return change


@dataclass(frozen=True, repr=False)
class expert_off(Edit):
    """One expert of a mixture (``decoder.blocks.3.ffn``) is never chosen: the router takes the best
    of the others.

    The probabilities of the others stay what they were, and are divided by the sum of the chosen
    ones' where the config says normalize. A token that had not chosen this expert does not change.
    """

    path: str
    expert: int

    def hooks(self, reading: Reading) -> Mapping[str, Hook]:
        hooks: dict[str, Hook] = {}
        for module in modules_with(
            reading, self.path, "router", "mixture of experts", beside="chosen"
        ):
            cfg: config.MoE = reading.model.get_submodule(module).cfg  # type: ignore[assignment]
            available = f"{module} has experts 0 to {cfg.experts - 1}"
            need(
                type(self.expert) is int and 0 <= self.expert < cfg.experts,
                f"{available}, and no {self.expert!r}.",
            )
            router = reading.shared.setdefault(("router", module), _Router(cfg))
            router.off.add(self.expert)
            need(
                len(router.off) < cfg.experts,
                f'All experts of {module} are off; that is mlp_off("{module}").',
            )
            hooks |= {
                f"{module}.router": Last(router.see),
                f"{module}.weight": router.weigh,
                f"{module}.chosen": router.choose,
            }
        return hooks


class _Router:
    """A mixture's choice without the experts that are off."""

    def __init__(self, cfg: config.MoE) -> None:
        self.cfg = cfg
        self.off = set[int]()
        self.hit = self.weight = self.chosen = torch.empty(0)

    def see(self, path: str, logits: Tensor, place: Place) -> Tensor:
        p = logits.softmax(-1)
        off = sorted(self.off)
        self.hit = torch.isin(
            p.topk(self.cfg.top_k, -1).indices, torch.tensor(off, device=p.device)
        ).any(-1, True)
        p[..., off] = -1.0  # behind all others, also those of probability 0
        best, self.chosen = p.topk(self.cfg.top_k, -1)
        best = best.clamp(min=0)  # where too few are left
        self.weight = best / best.sum(-1, keepdim=True) if self.cfg.normalize else best
        return logits

    def weigh(self, path: str, weight: Tensor, place: Place) -> Tensor:
        return torch.where(self.hit, self.weight.to(weight.dtype), weight)

    def choose(self, path: str, chosen: Tensor, place: Place) -> Tensor:
        return torch.where(self.hit, self.chosen, chosen)
