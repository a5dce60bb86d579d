"""BART and its kin, encoder-decoders for summaries and translation: mBART, M2M-100 (NLLB), PEGASUS.

            positions                  embeddings    norms    a stack ends
BART        learned, from row 2        normed        after    with its last block
mBART       learned, from row 2        normed        before   with a norm
M2M-100     sines, after the padding   -             before   with a norm
PEGASUS     sines                      -             before   with a norm

A target begins with ``decoder_start_token_id`` and then ``forced_bos_token_id``, the language of a
translation, where there is one. Their training may skip whole layers, which none does here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.layers import MLP, LayerNorm
from ..core.config.model import Attention, Block, Model, Place
from ..core.config.position import Learned, Position, Sinusoidal
from .decoder_pages import NO_NAMES
from .ends import ENDS, head_of
from .keys import ConfigWords, Entry, Key, Section, keys
from .names import Names, Table, rules
from .pair_pages import BOTH_SIDES, held, pair_table, scale_key, start, template
from .recipe import ConfigReader, Settings, page

POSITIONS = "model.encoder.embed_positions.weight"  # PEGASUS' sines, as its files have them
BIAS = "final_logits_bias"


def _write(model: Model) -> Settings:
    """A word of ours for a bias of the head, which the files of most lack, and no start of a target:
    not what theirs takes for an absent word."""
    bias = {"head_bias": True} if model.head and model.head.bias else {}
    return {"decoder_start_token_id": None, **bias}


def words(
    position: Position,
    *more: Entry,
    place: Place = "pre",
    normed: bool = False,
    scaled: bool = False,
    act: str = "gelu",
    first: int | None = None,
) -> ConfigWords:
    """The words of a family: where its norms stand, whether its embeddings are ``normed``, and what a
    silent file means: embeddings ``scaled``, ``act``, the ``first`` token of a target."""
    norm = LayerNorm()
    block = Block(Attention(1, bias=True), MLP(1, bias=True), norm, place)
    return ConfigWords(
        template(
            block,
            position,
            first_norm=norm if normed else None,
            last_norm=norm if place == "pre" else None,
        ),
        (
            *BOTH_SIDES,
            scale_key(scaled),
            *keys(activation_function=act),
            Key("", "head.bias", lambda raw: held(raw, "head_bias", BIAS)),
            Section(encode=_write),
            start(first),
            *more,
        ),
    )


def _own_start(raw: ConfigReader, model: Any) -> Any:
    """An mBART whose both sides read one text begins with that text's last token, whatever the word
    for a target says."""
    return replace(model, start=()) if head_of(raw) in ENDS else model


def _sines_or_table(raw: ConfigReader) -> Position:
    learned = held(raw, "learned_positions", POSITIONS)
    return Learned(raw.integer("max_position_embeddings", 1024)) if learned else SINES


def _write_learned(model: Model) -> Settings:
    learned = isinstance(model.stacks["encoder"].position, Learned)
    return {"learned_positions": True} if learned else {}


TABLE, SINES = Learned(64, 2), Sinusoidal(halves=True)


def table(model: Model, root: str = "model", encoder: Names = NO_NAMES) -> Table:
    """The names of the weights, ``root`` and ``encoder`` as ``pair_table`` has them; which norms and
    tables of positions there are depends on the model."""
    layers: dict[str, str] = {}
    sines = True
    for side, stack in model.stacks.items():
        layers[f"{side}.first_norm"] = f"{side}.layernorm_embedding"
        layers[f"{side}.last_norm"] = f"{side}.layer_norm"
        if isinstance(stack.position, Learned):
            layers[f"{side}.position"] = f"{side}.embed_positions"
            sines = False
    return pair_table(
        *rules(layers, f"{root}."),
        sines=sines,
        prefix=f"{root}.",
        root=root,
        encoder=encoder,
    )


page("bart", words=words(TABLE, place="post", normed=True, first=2), weights=table)
page("mbart", words=words(TABLE, Section(_own_start), normed=True), weights=table)
page(
    "m2m-100",
    words=words(
        Sinusoidal(halves=True, endpoint=True),
        # one after the id of padding
        Key(
            "pad_token_id",
            "position.offset",
            lambda raw: raw.token_id("pad_token_id", 1) + 1,
            lambda offset: offset - 1,
        ),
        scaled=True,
        act="relu",
        first=2,
    ),
    weights=table,
)
page(
    "pegasus",
    words=words(
        SINES,
        Key("", "position", _sines_or_table),
        Section(encode=_write_learned),
        first=0,
    ),
    weights=table,
)
