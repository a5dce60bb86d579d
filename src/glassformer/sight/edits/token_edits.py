"""Another text: tokens that nobody looks at, other tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ...core import config
from ...core.errors import UserError, need
from ...core.nn.hooks import Place
from ..axes import of_source
from ..reading import Hook, Reading
from ..streams import word_id
from .base import Edit, counted

Side = Literal["text", "source"]


@dataclass(frozen=True, repr=False)
class mask_token(Edit):
    """Nobody else looks at a token; for an encoder whose tokenizer has a mask token, that stands in
    its place.

    Attention to it is cut in all layers, also across from a decoder, and so are embeddings of
    previous tokens; it may still look at itself. ``side`` says which text of an encoder-decoder. A
    recurrent model cannot do without a token.
    """

    position: int
    side: Side = "text"

    def read(self, reading: Reading) -> None:
        if (mask := _mask_token(reading)) is not None:
            swap_token(self.position, mask).read(reading)

    def hooks(self, reading: Reading) -> Mapping[str, Hook]:
        source = _source(reading, self.side)
        if _mask_token(reading) is not None:
            return {}
        bodies = reading.model.config.bodies
        # the decoder is the last
        for body in bodies.values() if source else list(bodies.values())[-1:]:
            recurrent = (
                "A recurrent model reads every token into its state, so attention to it "
                "cannot be cut"
            )
            need(not isinstance(body, config.Recurrent), f"{recurrent}; use swap_token.")
        position = counted(reading, self.position, source)
        hooks: dict[str, Hook] = {}
        for path in reading.shapes:
            module, _, leaf = path.rpartition(".")
            across = module.endswith(".cross")
            if leaf == "scores" and source == (across or of_source(reading.model, path)):
                cut = _Cut(position, across)
                hooks |= {path: cut.scores, f"{module}.pattern": cut.pattern}
            elif module == ("source_embed.lag" if source else "embed.lag"):
                embed: Any = getattr(reading.model, "source_embed", None) if source else None
                nothing = (embed or reading.model.embed).lag[int(leaf)].weight[-1].detach()
                hooks[path] = partial(_without, nothing, position + int(leaf) + 1)
        return hooks


def _mask_token(reading: Reading) -> int | None:
    """The id that an encoder alone reads for a token that it is not shown, None where there is
    none."""
    alone = reading.model.config.is_encoder and reading.rows is not None
    return getattr(reading.tokenizer, "mask", None) if alone else None


class _Cut:
    """Nobody but the token at ``position`` itself sees it; who then sees nobody at all gets
    zeros."""

    def __init__(self, position: int, across: bool) -> None:
        self.position = position
        self.across = across
        self.blind = torch.empty(0)  # (B, H, T, 1), of the scores just seen

    def scores(self, path: str, x: Tensor, place: Place) -> Tensor:
        assert place.keys is not None
        hidden = (place.keys == self.position)[:, None, None]  # (B or 1, 1, 1, S)
        if not self.across:
            hidden = hidden & (place.pos != self.position)[:, None, :, None]
        visible = x.masked_fill(hidden, float("-inf"))
        self.blind = (visible == float("-inf")).all(-1, keepdim=True)
        return visible

    def pattern(self, path: str, x: Tensor, place: Place) -> Tensor:
        return x.masked_fill(self.blind, 0.0)


def _without(nothing: Tensor, position: int, path: str, x: Tensor, place: Place) -> Tensor:
    """Embeddings (B, T, C) of previous tokens, at ``position`` as if there were none."""
    return torch.where((place.pos == position)[..., None], nothing, x)


@dataclass(frozen=True, repr=False)
class swap_token(Edit):
    """Another token, an id or a text of one token, at a position; ``side`` as in mask_token."""

    position: int
    token: int | str
    side: Side = "text"

    def read(self, reading: Reading) -> None:
        source = _source(reading, self.side)
        rows = reading.sources if source else reading.rows
        need(rows is not None, "swap_token changes one text, and this command reads many.")
        assert rows is not None
        token = self.id(reading, source)
        for row in rows:
            size = len(row)
            message = (
                f"There is no position {self.position}: the {self.side} has {size} tokens, "
                f"0 to {size - 1}."
            )
            need(type(self.position) is int and -size <= self.position < size, message)
            row[self.position] = token

    def paths(self, reading: Reading) -> list[str]:
        return []

    def id(self, reading: Reading, source: bool) -> int:
        """The token's id; UserError for a text of several and an id that the model does not
        know."""
        cfg, reads = reading.model.config, reading.tokenizer
        vocab = (cfg.input_embed if source else cfg.embed).vocab
        return word_id(vocab, reads and (reads.for_source if source else reads), self.token)


def _source(reading: Reading, side: str) -> bool:
    """True if the side is the encoder of an encoder-decoder."""
    if side not in ("text", "source"):
        raise UserError(f'side is {side!r}; give "text" or "source".')
    need(
        side == "text" or reading.is_encoder_decoder,
        "Only an encoder-decoder has a source; leave side out.",
    )
    return side == "source"
