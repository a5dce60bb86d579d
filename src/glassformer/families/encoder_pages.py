"""The heads that published encoders have, and the words of a config.json about their labels. No
torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..core.config.layers import (
    MLP,
    Activation,
    Embed,
    FeedForward,
    Head,
    LayerNorm,
    Norm,
)
from ..core.config.model import Attention, Block, Encoder, Mixer, Place, Stack
from ..core.config.pool import Pool
from ..core.config.position import Learned, Position
from .decoder_pages import INIT, first_block, stack
from .ends import (
    ANSWERS,
    CHOICE,
    LABELS,
    MASKED,
    PRETRAINING,
    TOKENS,
    head_name,
    head_of,
    label_layers,
    read_labels,
    read_token_head,
    write_dropout,
)
from .keys import Section
from .names import NameRule, Names, Pairs, Table, rules
from .recipe import ConfigReader, Settings


def encoder(
    attention: Mixer = Attention(1, bias=True),
    feedforward: FeedForward = MLP(1, "gelu", bias=True),
    norm: Norm = LayerNorm(1e-12),
    position: Position = Learned(64),
    place: Place = "post",
    embed: Embed = Embed(64),
    **stack: Any,
) -> Encoder:
    """An encoder of one such block, whose first norm is the block's, and of sizes that a file says;
    where nothing is given, BERT's without segments."""
    block = Block(attention, feedforward, norm, place)
    body = Stack(1, (block,), position, causal=False, **{"first_norm": norm, **stack})
    return Encoder(64, 64, embed, body, None, INIT)


# ---------------------------------------------------------------------------------- config.json, in


def tied_head(raw: ConfigReader, model: Encoder, act: Activation | None = None) -> Head:
    """A family's head over the vocabulary, with the activation and the norm of its blocks; it ends in
    the embeddings' width, and is tied to them unless the file says otherwise."""
    body = stack(model)
    act = act or getattr(first_block(model).feedforward, "act", None)
    norm = body.first_norm or body.last_norm
    tied = raw.flag("tie_word_embeddings", True)
    return Head(tied, bias=True, transform=act, norm=norm, width=model.embed.dim)


def read_heads(
    raw: ConfigReader,
    model: Encoder,
    act: Activation,
    words: Activation | None,
    dropout: float,
) -> Encoder:
    """The model with the head that its architecture names.

    ``act`` is the activation before labels; ``words`` that of the head over the vocabulary, where it
    is not the blocks'; ``dropout`` that before labels.
    """
    head = head_of(raw)
    if head == MASKED:
        return replace(model, head=tied_head(raw, model, words))
    if head in (LABELS, CHOICE):
        count = 1 if head == CHOICE else read_labels(raw)
        return replace(model, pool=Pool("first", act, count, dropout))
    if head in (TOKENS, ANSWERS):
        return replace(model, token_head=read_token_head(raw, dropout))
    return model


# --------------------------------------------------------------------------------- config.json, out


def read_pooler(raw: ConfigReader, model: Encoder, name: str, usual: bool = True) -> Encoder:
    """A bare model with its pooler, the layer ``name``, where its files hold one; ``usual``: where they
    do not say."""
    if head_of(raw):
        return model
    held = any(raw.holds(f"{path}.weight") for path in (name, name.partition(".")[2]))
    pools = held or raw.weights is None or not usual
    pools = pools and (raw.flag("add_pooling_layer", usual) or (held and not usual))
    return replace(model, pool=Pool("first", "tanh")) if pools else model


def ends(
    pooler: str = "",
    act: Activation = "tanh",
    words: Activation | None = None,
    dropout: str = "classifier_dropout",
    usual: float | None = None,
    pretrained: bool = False,
) -> Section:
    """The head that an architecture names, or the ``pooler`` of a bare model.

    ``act`` and ``words`` as ``read_heads`` has them; ``dropout``: the word of that before labels, and
    its ``usual`` value, None: the stack's. ``pretrained``: a head over the vocabulary may stand beside
    the two labels of a pair, with a dropout before them where there is a ``usual`` one.
    """

    def decode(raw: ConfigReader, model: Encoder) -> Encoder:
        share = raw.number(dropout, model.encoder.dropout if usual is None else usual, most=0.99)
        if pretrained and head_of(raw) == PRETRAINING:
            pool = Pool("first", act, 2, 0.0 if usual is None else share)
            return replace(model, head=tied_head(raw, model, words), pool=pool)
        model = read_heads(raw, model, act, words, share)
        return read_pooler(raw, model, pooler) if pooler else model

    def encode(model: Any) -> Settings:
        if head_name(model) == PRETRAINING and usual is not None:
            return {dropout: model.pool.dropout}
        return write_dropout(model, dropout)

    return Section(decode, encode)


# ------------------------------------------------------------------------------------ weight names


def weight_and_bias(*names: str) -> tuple[str, ...]:
    """The weight and the bias of each."""
    return tuple(f"{name}.{suffix}" for name in names for suffix in ("weight", "bias"))


# how the first files call the weights of a LayerNorm
OLDER_NORMS: Pairs = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
LAYER = {
    "attn.q": "attention.self.query",
    "attn.k": "attention.self.key",
    "attn.v": "attention.self.value",
    "attn.out": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "ffn.up": "intermediate.dense",
    "ffn.down": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
OURS = "encoder.blocks.{i}."


def embeddings(
    name: str, norm: str = "LayerNorm", position: str = "encoder.position"
) -> tuple[NameRule, ...]:
    """The rules of the tables below ``name``, which all encoders of BERT's kind call the same."""
    tables = {
        "embed.token": "word_embeddings",
        position: "position_embeddings",
        "embed.segment": "token_type_embeddings",
        "encoder.first_norm": norm,
    }
    return rules(tables, f"{name}.embeddings.")


def trunk(name: str, layer: Names = LAYER, **tables: str) -> tuple[NameRule, ...]:
    """The rules of what BERT and its kin share, all below ``name``; ``layer`` names those of a
    block, ``tables`` what ``embeddings`` are called."""
    return (*embeddings(name, **tables), *rules(layer, f"{name}.encoder.layer.{{i}}.", OURS))


def table(
    model: Encoder,
    family: str,
    words: str,
    inside: Iterable[NameRule],
    pool: Names,
    unread: Iterable[str] = (),
    renamed: Pairs = (),
    transform: Sequence[str] = ("transform.dense", "transform.LayerNorm"),
    untied: str = "decoder.bias",
) -> Table:
    """The table of an encoder: ``inside`` the rules of its blocks, ``words`` the name of its head over
    the vocabulary, whose dense layer and norm are ``transform``, ``pool`` the layers of a pool. Files
    hold a head's layers and those that are ``unread`` whatever the model has. ``untied`` is the name of the bias of a
    head with a table of its own."""
    tied = getattr(model.head, "tied", False)
    tokens = f"{family}.embeddings.word_embeddings.weight"
    proj, copy, bias = f"{words}.decoder.weight", f"{words}.decoder.bias", f"{words}.bias"
    # of an untied head, a leftover that transformers writes and never reads
    layers = [f"{words}.{layer}" for layer in transform]
    unused = (*weight_and_bias(*unread, *layers, f"{words}.decoder"), bias)
    if model.head is not None and not tied:
        bias = f"{words}.{untied}"
    named = zip(("head.transform", "head.norm"), layers, strict=True)
    return Table(
        (
            *inside,
            *rules({**dict(named), **label_layers(model, pool)}),
            NameRule(proj, "head.proj.weight"),
            NameRule(bias, "head.proj.bias"),
        ),
        (*unused, f"{family}.embeddings.position_ids"),
        ((proj, tokens), (copy, bias)) if tied else (),
        prefix=f"{family}.",
        renamed=renamed,
    )


def moved(*names: str) -> Pairs:
    """The ends of layers' names in some files, and after them what they are here."""
    half = len(names) // 2
    return tuple(zip(weight_and_bias(*names[:half]), weight_and_bias(*names[half:]), strict=True))
