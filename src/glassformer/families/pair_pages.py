"""The parts that encoder-decoders share: the shape that a file changes, the words of
their config.json, and the names of Marian's weights, which most have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.layers import Embed, Head, Init
from ..core.config.model import Block, EncoderDecoder, Stack
from ..core.config.position import Position
from ..core.errors import need
from .decoder_pages import FAIRSEQ, INIT, NO_NAMES, attention
from .keys import Key, Section, key, keys
from .names import NameRule, Names, Table, rules
from .recipe import ConfigReader, Settings


def pair(
    dim: int,
    context: int,
    embed: Embed,
    depths: tuple[int, int],
    block: Block,
    position: Position,
    head: Head = Head(),
    init: Init = INIT,
    **stack: Any,
) -> EncoderDecoder:
    """An encoder and a decoder of the same blocks, which look across as they look back."""
    encoder = Stack(depths[0], (block,), position, causal=False, **stack)
    crossed = replace(block, cross=block.attention)
    decoder = Stack(depths[1], (crossed,), position, **stack)
    return EncoderDecoder(dim, context, embed, encoder, decoder, head, init)


def template(block: Block, position: Position, **stack: Any) -> EncoderDecoder:
    """A pair of one such block a side, and of sizes that a file says."""
    return pair(64, 64, Embed(64), (1, 1), block, position, dropout=0.1, **stack)


# ------------------------------------------------------------------------------------- config.json


BOTH_SIDES = keys(
    "d_model vocab_size",
    max_position_embeddings=1024,
    dropout=key("dropout attention_dropout", 0.1, "dropout"),
    init_std=0.02,
    encoder_layers=(12, "encoder.depth"),
    decoder_layers=(12, "decoder.depth"),
    encoder_attention_heads=(16, "encoder.pattern.attention.heads"),
    decoder_attention_heads=(16, "decoder.pattern.attention.heads cross.heads"),
    encoder_ffn_dim=(4096, "encoder.pattern.feedforward.hidden"),
    decoder_ffn_dim=(4096, "decoder.pattern.feedforward.hidden"),
)


def scale_key(default: bool) -> Key:
    """Embeddings multiplied by sqrt(dim), or not; ``default`` where the file says nothing."""

    def scale(raw: ConfigReader) -> float:
        dim: float = raw.integer("d_model")
        return dim**0.5 if raw.flag("scale_embedding", default) else 1.0

    return Key("scale_embedding", "embed.scale", scale, lambda factor: factor != 1.0)


def held(raw: ConfigReader, word: str, name: str) -> bool:
    """True where the files hold weights that they may lack; a ``word`` of param says it alone."""
    stated = raw.flag(word, False)
    return stated if raw.weights is None else raw.holds(name)


def start(default: int | None = None) -> Section:
    """First tokens of a target: ``default`` where the file lacks the word; () is the tokenizer's.

    The second is the one that transformers forces: a translation's language.
    """
    words = ("decoder_start_token_id", "forced_bos_token_id")

    def decode(raw: ConfigReader, model: Any) -> Any:
        first = raw.table.get(words[0], default)
        forced = raw.value(words[1], None)
        for word, id in zip(words, (first, forced), strict=True):
            fits = id is None or (type(id) is int and 0 <= id < raw.integer("vocab_size"))
            raw.must(fits, word, "the id of a token")
        raw.must(first is not None or forced is None, words[1], "after a first token")
        return replace(model, start=tuple(id for id in (first, forced) if id is not None))

    def encode(model: Any) -> Settings:
        start = getattr(model, "start", ())
        need(
            len(start) <= len(words),
            f"No published layout begins a target with {len(start)} tokens.",
        )
        return dict(zip(words, start, strict=False))

    return Section(decode, encode)


# ------------------------------------------------------------------------------------ weight names


_NAMES = {
    **FAIRSEQ,
    **attention("encoder_attn", "out_proj", "cross."),
    "cross_norm": "encoder_attn_layer_norm",
}


def are_sines(table: Any) -> bool:
    """True where a table (position, width) holds the sines of its positions, then their cosines."""
    import torch

    if table.ndim != 2 or not table.is_floating_point():
        return False
    count, width = table.shape
    waves = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(count, dtype=torch.float64)[:, None] * waves
    expected = torch.cat((angle.sin(), angle.cos()), -1)[:, :width]
    error = (table.double() - expected).abs().amax()
    return bool(error <= 1e-4 + torch.finfo(table.dtype).eps)


SIDES = ("encoder", "decoder")


def one_table(prefix: str = "") -> dict[str, Any]:
    """A table of tokens that both sides and the head share: what files may call it besides."""
    shared = f"{prefix}shared.weight"
    sides = tuple((f"{prefix}{side}.embed_tokens.weight", shared) for side in SIDES)
    return {"copies": (*sides, ("lm_head.weight", shared)), "renamed": sides}


# in the first files of BART, and a bias that a model of labels lacks
UNREAD = ("model.encoder.version", "model.decoder.version", "final_logits_bias")
_POSITIONS = tuple(f"model.{side}.embed_positions.weight" for side in SIDES)


def pair_table(
    *layers: NameRule,
    sines: bool = True,
    prefix: str = "",
    root: str = "model",
    encoder: Names = NO_NAMES,
) -> Table:
    """The names of Marian's weights and those of its kin, below ``root``: ``layers`` what the family
    has besides, ``encoder`` what it calls layers of an encoder's blocks."""
    sides = {"encoder": {**_NAMES, **encoder}, "decoder": _NAMES}
    return Table(
        (
            NameRule(f"{root}.shared.weight", "embed.token.weight"),
            *(
                rule
                for side, names in sides.items()
                for rule in rules(names, f"{root}.{side}.layers.{{i}}.", f"{side}.blocks.{{i}}.")
            ),
            *layers,
            NameRule("final_logits_bias", "head.proj.bias", axes="1 v -> (1 v)"),
        ),
        ignore=(*UNREAD, *_POSITIONS) if sines else UNREAD,
        constants=tuple((name, are_sines) for name in _POSITIONS if sines),
        prefix=prefix,
        **one_table(f"{root}."),
    )
