"""DeBERTa, its versions 2 and 3: BERT's blocks whose scores read content and distance apart.

The first version deals queries, keys and values of each head out of one matrix and keys have no
bias; version 2 groups distances in buckets. The head over words has names of its own in files with
``legacy`` false, which are read and not written.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ..core.config.embed_head import Embed, Head
from ..core.config.model import Encoder, Model, stacks
from ..core.config.norm import LayerNorm
from ..core.config.position import Learned
from .bert import KEYS as BERT_KEYS
from .bert import bert
from .disentangled import DisentangledAttention, RelativeEmbedding
from .encoders import (
    ANSWERS,
    CHOICE,
    LABELS,
    LAYER,
    MASKED,
    TOKENS,
    architectures,
    head_of,
    read_heads,
    tags,
    weight_and_bias,
    write_heads,
)
from .keys import ACTIVATIONS, MOST_POSITIONS, Key, read_keys, write_keys
from .names import NameRule, Table, rules
from .recipe import ConfigReader, Recipe

DEFAULTS = {"layer_norm_eps": 1e-7, "vocab_size": 128_100}
SCORES = {"c2p": "content_to_position", "p2c": "position_to_content"}


def deberta(
    dim: int,
    depth: int,
    heads: int,
    vocab: int,
    position: RelativeEmbedding,
    shared: bool = False,
    key_bias: bool = True,
) -> Encoder:
    """The shape of a DeBERTa as pretrained, for words under masks; 512 positions, one segment."""
    model, norm = bert(dim, depth, heads, vocab), LayerNorm(1e-7)
    scale = (dim // heads * 3) ** -0.5
    attention = DisentangledAttention(
        heads, bias=True, out_bias=True, scale=scale, shared=shared, key_bias=key_bias
    )
    stack = stacks(model)["encoder"]
    block = replace(stack.pattern[0], attention=attention, norm=norm)
    stack = replace(stack, pattern=(block,), position=position, first_norm=norm)
    words = Head(bias=True, transform="gelu", norm=norm)
    return replace(model, embed=Embed(vocab), encoder=stack, head=words, pool=None)


def deberta_v3(dim: int, depth: int, heads: int, vocab: int = 128_100) -> Encoder:
    """The shape of version 3: 256 buckets of distances, projected as content is."""
    position = RelativeEmbedding(norm=LayerNorm(1e-7))
    return deberta(dim, depth, heads, vocab, position, shared=True)


def deberta_v1(dim: int, depth: int, heads: int) -> Encoder:
    """The shape of the first version: a vector for each of 512 distances to either side."""
    return deberta(dim, depth, heads, 50_265, RelativeEmbedding(512, None), key_bias=False)


def read_scores(raw: ConfigReader) -> tuple[str, ...]:
    """Our names of the scores of distances that a model adds."""
    stated = raw.value("pos_att_type", [])
    kinds = stated.lower().split("|") if isinstance(stated, str) else stated
    kinds = [kind.strip() if isinstance(kind, str) else "" for kind in kinds]
    fits = set(kinds) <= set(SCORES) and 0 < len(kinds) == len(set(kinds))
    raw.must(fits, "pos_att_type", "c2p, p2c or both")
    return tuple(SCORES[kind] for kind in kinds)


def read_position(raw: ConfigReader, first: bool) -> RelativeEmbedding:
    """The table of distances; the ``first`` version has neither buckets nor a norm."""
    length = raw.integer("max_position_embeddings", 512, MOST_POSITIONS)
    counts = {}
    for key, default in (("max_relative_positions", length), ("position_buckets", None)):
        stated = raw.value(key, -1)
        raw.must(type(stated) is int and stated <= MOST_POSITIONS, key, "an integer")
        counts[key] = stated if stated > 0 else default
    distance, buckets = counts.values()
    if first:
        buckets = None
    normed = not first and raw.choice("norm_rel_ebd", {"none": False, "layer_norm": True}, "none")
    norm = LayerNorm(raw.number("layer_norm_eps", most=1.0)) if normed else None
    added = Learned(length) if raw.flag("position_biased_input", True) else None
    if buckets is None:
        return RelativeEmbedding(distance, None, norm, added)
    return RelativeEmbedding(buckets, distance, norm, added)


def read_segments(raw: ConfigReader) -> int:
    """The number of segments; 0 is none."""
    count = raw.value("type_vocab_size", 0)
    raw.must(type(count) is int and 0 <= count <= 1 << 20, "type_vocab_size", "0 or more")
    return int(count)


OTHERS = ("max_position_embeddings", "type_vocab_size")
KEYS = (
    *(key for key in BERT_KEYS if key.names not in OTHERS),
    Key.only("relative_attention", True, "a DeBERTa here reads distances"),
    Key.only("conv_kernel_size", 0, "no convolution stands beside the first block here"),
    Key.only("talking_head", False, "heads here do not mix their scores"),
    Key.only("pooler_dropout", 0, "labels here drop what they read once"),
    Key.integer("max_position_embeddings", "context", 512, most=MOST_POSITIONS),
    Key("type_vocab_size", "embed.segments", read_segments),
)


def read_config(raw: ConfigReader, first: bool) -> Model:
    """A DeBERTa config.json as our config: the architecture says which head there is."""
    head = head_of(raw)
    dropout = raw.table.get("cls_dropout") if head in (LABELS, CHOICE) else None
    raw = replace(raw, table={**DEFAULTS, **raw.table, "classifier_dropout": dropout})
    empty = replace(deberta_v1(64, 1, 1) if first else deberta_v3(64, 1, 1), head=None)
    model = read_keys(raw, empty, KEYS)
    for key in ("embedding_size", "pooler_hidden_size"):
        raw.only(key, model.dim, "vectors here are as wide as the model")
    stack, scores = stacks(model)["encoder"], read_scores(raw)
    width = stack.pattern[0].attention.width(model.dim)
    raw.only("attention_head_size", width, "a head here is its share of the model's width")
    attention: Any = replace(
        stack.pattern[0].attention,
        scale=(width * (1 + len(scores))) ** -0.5,
        shared=not first and raw.flag("share_att_key", False),
        **{name: name in scores for name in SCORES.values()},
    )
    pattern = (replace(stack.pattern[0], attention=attention),)
    stack = replace(stack, pattern=pattern, position=read_position(raw, first))
    words = Head(
        bias=True,
        transform=ACTIVATIONS[raw.value("hidden_act", "gelu")],
        norm=stack.first_norm,
    )
    legacy = raw.flag("legacy", True)
    raw = raw if legacy else replace(raw, table={**raw.table, "tie_word_embeddings": True})
    act = raw.choice("pooler_hidden_act", ACTIVATIONS, "gelu")
    return read_heads(raw, replace(model, encoder=stack), words, act)


def write_config(model: Encoder, first: bool) -> dict[str, Any]:
    """Our config as a DeBERTa config.json, as far as that can say it."""
    raw = {**write_heads(model, "Deberta" if first else "DebertaV2"), **write_keys(model, KEYS)}
    raw["cls_dropout"] = raw.pop("classifier_dropout", None)
    stack = stacks(model)["encoder"]
    attention, position = stack.pattern[0].attention, stack.position
    if model.pool is not None and model.pool.transform is not None:
        names = {act: name for name, act in reversed(ACTIVATIONS.items())}
        raw["pooler_hidden_act"] = names.get(model.pool.transform)
    if isinstance(position, RelativeEmbedding):
        buckets, distance = position.buckets, position.distance
        raw |= {
            "max_relative_positions": distance or buckets,
            "position_biased_input": position.added is not None,
        }
        if not first:
            raw["position_buckets"] = buckets if distance else -1
            raw["norm_rel_ebd"] = "layer_norm" if position.norm else "none"
            raw["share_att_key"] = getattr(attention, "shared", False)
    scores = [kind for kind, name in SCORES.items() if getattr(attention, name, False)]
    return {**raw, "relative_attention": True, "pos_att_type": scores}


_CONTENT = {
    "query_proj": "q",
    "key_proj": "k",
    "value_proj": "v",
    "pos_key_proj": "pos_k",
    "pos_query_proj": "pos_q",
}
_FIRST = {
    "q_bias": "q.bias",
    "v_bias": "v.bias",
    "pos_proj.weight": "pos_k.weight",
    **dict(zip(weight_and_bias("pos_q_proj"), weight_and_bias("pos_q"), strict=True)),
}
_WORDS, _NEW = "cls.predictions", "lm_predictions.lm_head"
_ROOT = "deberta.embeddings"


def table(model: Encoder) -> Table:
    """The names of the weights; how those of labels are called depends on the head."""
    attention: Any = stacks(model)["encoder"].pattern[0].attention
    first = not getattr(attention, "key_bias", True)
    blocks = {a: b for a, b in LAYER.items() if ".self." not in a}
    inside, param = "attention.self", "encoder.blocks.{i}.attn"
    layer = "deberta.encoder.layer.{i}"
    projections = [
        NameRule(
            f"{layer}.{inside}.in_proj.weight",
            tuple(f"{param}.{name}.weight" for name in "qkv"),
            groups=attention.heads,
        ),
        *(NameRule(f"{layer}.{inside}.{a}", f"{param}.{b}") for a, b in _FIRST.items()),
    ]
    if not first:
        blocks |= {f"{inside}.{a}": f"attn.{b}" for a, b in _CONTENT.items()}
        projections = []
    labels = "pool.proj" if model.token_head is None else "token_head.proj"
    label_layer = "classifier" if model.token_head is None else tags(model.token_head)
    tables = {
        f"{_ROOT}.word_embeddings": "embed.token",
        f"{_ROOT}.token_type_embeddings": "embed.segment",
        f"{_ROOT}.position_embeddings": "encoder.position.added",
        "deberta.encoder.rel_embeddings": "encoder.position",
        f"{_WORDS}.decoder": "head.proj",
    }
    layers = {
        f"{_ROOT}.LayerNorm": "encoder.first_norm",
        "deberta.encoder.LayerNorm": "encoder.position.norm",
        **{f"{layer}.{a}": f"encoder.blocks.{{i}}.{b}" for a, b in blocks.items()},
        f"{_WORDS}.transform.dense": "head.transform",
        f"{_WORDS}.transform.LayerNorm": "head.norm",
        "pooler.dense": "pool.transform",
        label_layer: labels,
    }
    bias, copy = f"{_WORDS}.bias", f"{_WORDS}.decoder.bias"
    tied = model.head is not None and model.head.tied
    if model.head is not None and not tied:
        bias, copy = copy, bias
    heads = (f"{_WORDS}.transform.{name}" for name in ("dense", "LayerNorm"))
    replaced = (f"mask_predictions.{name}" for name in ("dense", "LayerNorm", "classifier"))
    new = weight_and_bias(*(f"{_NEW}.{name}" for name in ("dense", "LayerNorm")))
    copies = ((f"{_WORDS}.decoder.weight", f"{_ROOT}.word_embeddings.weight"), (copy, bias))
    return Table(
        (
            *projections,
            *(NameRule(f"{a}.weight", f"{b}.weight") for a, b in tables.items()),
            NameRule(bias, "head.proj.bias"),
            *rules(layers),
        ),
        (
            *weight_and_bias(*heads, *replaced, f"{_WORDS}.decoder"),
            f"{_WORDS}.bias",
            f"{_ROOT}.position_ids",
            f"{_ROOT}.position_embeddings.weight",
        ),
        copies if tied else (),
        prefix="deberta.",
        renamed=(
            *((name, name.replace(_NEW, f"{_WORDS}.transform")) for name in new),
            (f"{_NEW}.bias", f"{_WORDS}.bias"),
        ),
    )


def recipe(name: str, first: bool, paper: str, tokenizer: str, **sizes: Encoder) -> Recipe:
    """The recipe of a version."""
    family = "Deberta" if first else "DebertaV2"
    choice = () if first else (CHOICE,)
    return Recipe(
        name=name,
        paper=paper,
        sizes=sizes,
        architectures=architectures(family, MASKED, LABELS, *choice, TOKENS, ANSWERS),
        model_type=name,
        tokenizer=tokenizer,
        read_config=partial(read_config, first=first),
        write_config=partial(write_config, first=first),
        weights=table,
        bare=(f"{family}Model",),
    )


DEBERTA = recipe(
    "deberta",
    True,
    "He et al. 2021, DeBERTa: Decoding-enhanced BERT with Disentangled Attention (arXiv 2006.03654)",
    "microsoft/deberta-base (byte-level BPE)",
    base=deberta_v1(768, 12, 12),
    large=deberta_v1(1024, 24, 16),
)
DEBERTA_V2 = recipe(
    "deberta-v2",
    False,
    "He et al. 2023, DeBERTaV3: Improving DeBERTa using ELECTRA-Style Pre-Training (arXiv 2111.09543)",
    "microsoft/deberta-v3-small (Unigram)",
    **{
        "v3-xsmall": deberta_v3(384, 12, 6),
        "v3-small": deberta_v3(768, 6, 12),
        "v3-base": deberta_v3(768, 12, 12),
        "v3-large": deberta_v3(1024, 24, 16),
        "mdeberta-v3-base": deberta_v3(768, 12, 12, 251_000),
    },
)
