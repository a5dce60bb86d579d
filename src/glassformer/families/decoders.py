"""What the published decoders share: the words of their config.json, in and out, and the names of
their weights.

A family's page says the rest: which norm, which feed-forward, which biases, who sees whom, and its
own words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..core.config import serial
from ..core.config.feedforward import Activation
from ..core.config.init import Init
from ..core.config.mask import Full, MaskRule, Window
from ..core.config.model import Attention, Block, Decoder, Model, Stack, stacks
from ..core.config.position import Rotary
from ..core.config.scaling import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)
from ..core.errors import UserError, need
from .keys import (
    ACTIVATIONS,
    MOST_BLOCKS,
    MOST_HEADS,
    MOST_HIDDEN,
    MOST_POSITIONS,
    MOST_TOKENS,
    Key,
    read_keys,
    write_keys,
)
from .names import NameRule, Table, rules
from .recipe import ConfigReader, tile

INIT = Init(0.02, 0.02, "plain")
SCALINGS = ("default", "linear", "llama3", "yarn")
LONGROPE = ("longrope", "su")
# a token turns otherwise once the text grows long: no cache can hold that
BY_LENGTH = ("dynamic", *LONGROPE)
OLD_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}
BLOCK = "decoder.pattern"
ATTN, FFN = f"{BLOCK}.attention", f"{BLOCK}.feedforward"

# ---------------------------------------------------------------------------------- config.json, in


def eps(name: str, default: float, more: str = "") -> Key:
    """The eps of all norms; ``more`` places than every model has."""
    return Key.number(name, f"{BLOCK}.norm.eps decoder.last_norm.eps {more}", default, most=1.0)


def rotary(theta: float = 10_000.0) -> Key:
    """Rotary positions that turn all of each head; ``write`` has them in words."""
    return Key("", "decoder.position", lambda raw: read_rotary(raw, theta))


def part_rotary(fraction: float, kinds: Sequence[str] = SCALINGS) -> Key:
    """Rotary positions that turn a share of each head, ``fraction`` where the file says nothing."""
    parse = partial(read_rotary, fraction=fraction, kinds=kinds)
    return Key(
        "partial_rotary_factor",
        "decoder.position",
        parse,
        lambda position: position.get("fraction", 1.0),
    )


def grouped(default: int | None) -> Key:
    """Key-value heads; where the file says nothing ``default``, or as many as heads."""

    def parse(raw: ConfigReader) -> Any:
        heads = unsaid(raw, "num_key_value_heads", default) or raw.integer(
            "num_attention_heads", most=MOST_HEADS
        )
        return raw.integer("num_key_value_heads", heads)

    return Key("num_key_value_heads", f"{ATTN}.kv_heads", parse)


def window(default: int | None = None) -> Key:
    """One sliding window for every block, or none; ``default`` where the file does not say."""

    def parse(raw: ConfigReader) -> MaskRule:
        size = raw.integer(
            "sliding_window", unsaid(raw, "sliding_window", default), most=MOST_POSITIONS
        )
        return Full() if size is None else Window(size)

    return Key(
        "sliding_window",
        f"{ATTN}.mask",
        parse,
        lambda mask: mask["size"] if mask["type"] == "Window" else None,
    )


def keys(
    *more: Key,
    context: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    tied: bool = False,
    mlp: str = FFN,
    act: str = "silu",
    acts: Mapping[str, Activation] = ACTIVATIONS,
    act_names: str = "hidden_act",
    eps: Key = eps("rms_norm_eps", 1e-6),
    rotary: Key = rotary(),
    dropouts: str = "",
) -> tuple[Key, ...]:
    """The words that decoders share, and ``more`` of the family's; numbers are its own where a file
    says nothing.

    ``mlp``: where the network of a feed-forward is. ``dropouts``: what the family calls them, first
    the one that is the stack's here; none: the file must not ask for any.
    """
    none = Key.only("attention_dropout", 0.0, "dropout here is one number for the whole stack")
    return (
        Key.integer("hidden_size", "dim"),
        Key.integer("num_hidden_layers", "decoder.depth", most=MOST_BLOCKS),
        Key.integer("num_attention_heads", f"{ATTN}.heads", most=MOST_HEADS),
        grouped(kv_heads),
        Key.integer("head_dim", f"{ATTN}.head_dim", head_dim, most=MOST_HEADS),
        Key.integer("intermediate_size", f"{mlp}.hidden", most=MOST_HIDDEN),
        Key.integer("max_position_embeddings", "context", context, most=MOST_POSITIONS),
        Key.integer("vocab_size", "embed.vocab", most=MOST_TOKENS),
        Key.activation(act_names, f"{mlp}.act", act, acts),
        Key.flag("tie_word_embeddings", "head.tied", tied),
        Key.std("initializer_range"),
        Key.number(dropouts, "decoder.dropout", 0.0, most=0.99) if dropouts else none,
        rotary,
        eps,
        *more,
    )


def expert_keys(word: str, experts: int, top_k: int, loss: float = 0.001) -> tuple[Key, ...]:
    """A mixture in every block: its experts by their ``word``, those of a token, and what weighs our
    load-balancing loss."""
    return (
        Key.integer(word, f"{FFN}.experts", experts, most=MOST_HEADS),
        Key.integer("num_experts_per_tok", f"{FFN}.top_k", top_k, most=MOST_HEADS),
        Key.number("router_aux_loss_coef", f"{FFN}.balance_loss", loss),
    )


def without(keys: Sequence[Key], names: str) -> tuple[Key, ...]:
    """The words but for those that a family's files do not have."""
    return tuple(key for key in keys if key.names not in names.split())


def config_reader(model: Decoder, keys: Sequence[Key]) -> Callable[[ConfigReader], Model]:
    """``read_config`` of a family that says no more than its keys."""
    return lambda raw: read_keys(raw, model, keys)


def write(model: Model, keys: Sequence[Key]) -> dict[str, Any]:
    """The words of ``keys``, and those of rotary positions; UserError for a model without a head."""
    position = stack(model).position
    rotary = position if isinstance(position, Rotary) else Rotary()
    return {
        **write_keys(model, keys),
        "rope_theta": rotary.theta,  # in the words of transformers 4, which version 5 reads as well
        "rope_scaling": write_scaling(rotary.scaling),
    }


def writer(keys: Sequence[Key]) -> Callable[[Model], dict[str, Any]]:
    """``write_config`` of a family that says no more than its keys."""
    return lambda model: write(model, keys)


def unsaid(raw: ConfigReader, key: str, default: Any) -> Any:
    """Default of a key that may be null: ``default`` only where the key is absent."""
    return None if key in raw.table else default


def read_windows(raw: ConfigReader, size: int | None, slides: Sequence[bool]) -> list[MaskRule]:
    """Mask rules block by block from ``layer_types``; from ``slides`` where the file does not
    say."""
    kinds = raw.value("layer_types", None)
    valid = isinstance(kinds, list) and all(
        kind in ("full_attention", "sliding_attention") for kind in kinds
    )
    fits = kinds is None or (valid and len(kinds) == len(slides))
    raw.must(
        fits,
        "layer_types",
        f'a list of {len(slides)} times "full_attention" or "sliding_attention"',
    )
    if kinds is not None:
        slides = [kind == "sliding_attention" for kind in kinds]
    raw.must(
        size is not None or not any(slides),
        "layer_types",
        '"full_attention" everywhere without a window',
    )
    return [Window(size) if slide and size is not None else Full() for slide in slides]


def read_kinds(
    raw: ConfigReader, kinds: Sequence[str], default: Sequence[str], key: str = "layer_types"
) -> list[str]:
    """The kind of each block, ``default`` where the file does not say; also by older names."""
    listed = raw.value(key, default)
    items = listed if isinstance(listed, list | tuple) else ()
    words = [OLD_KINDS.get(str(kind), str(kind)) for kind in items]
    fits = len(words) == len(default) and all(kind in kinds for kind in words)
    raw.must(fits, key, f"a list of {len(default)} times {' or '.join(kinds)}")
    return words


def read_hybrid(
    raw: ConfigReader, model: Any, mixer: Any, kinds: Sequence[str], default: Sequence[str]
) -> Any:
    """The model, with ``mixer`` in place of attention in blocks of the first of two kinds."""
    full = first_block(model)
    blocks = dict(zip(kinds, (replace(full, attention=mixer), full), strict=True))
    return with_blocks(model, [blocks[kind] for kind in read_kinds(raw, kinds, default)])


def with_masks(model: Decoder, mask_rules: Sequence[MaskRule]) -> list[Block]:
    """The model's first block once for each rule, with that rule."""
    block = first_block(model)
    return [
        replace(block, attention=replace(block.attention, mask=mask_rule))
        for mask_rule in mask_rules
    ]


def with_blocks(model: Decoder, blocks: Sequence[Block]) -> Decoder:
    """The model with these blocks."""
    return replace(model, decoder=replace(stack(model), pattern=tile(blocks)))


def with_layers(model: Any, blocks: Sequence[Block]) -> Any:
    """The model as deep as these blocks."""
    layers = replace(stack(model), depth=len(blocks), pattern=tile(blocks))
    return replace(model, decoder=layers)


def read_rotary(
    raw: ConfigReader,
    theta: float = 10_000.0,
    fraction: float | None = None,
    kinds: Sequence[str] = SCALINGS,
) -> Rotary:
    """The rotary positions of ``rope_theta`` and ``rope_scaling``, or of transformers 5's
    ``rope_parameters``.

    ``theta`` and ``fraction`` are the family's where the file says nothing; None: it turns all of
    each head.
    """
    theta = raw.number("rope_theta", theta, least=1.0)
    rope = raw.inside("rope_parameters") or raw.inside("rope_scaling")
    fraction_value = read_fraction(raw, 1.0 if fraction is None else fraction, fraction is None)
    if rope is None:
        return Rotary(theta, fraction_value)
    fraction_value, theta = (
        read_fraction(rope, fraction_value, fraction is None),
        rope.number("rope_theta", theta, least=1.0),
    )
    kind = rope.value("rope_type", rope.value("type", "default"))
    if kind not in kinds:
        why = " (it turns a token by the length of the whole text)" if kind in BY_LENGTH else ""
        raise UserError(
            f'{rope.source} is "{kind}", which is not built here{why}; this model needs one of '
            f"{', '.join(kinds)}."
        )
    if kind in LONGROPE:
        return Rotary(theta, fraction_value, read_long(raw, rope))
    return Rotary(theta, fraction_value, None if kind == "default" else read_scaling(rope, kind))


def read_schemes(raw: ConfigReader, local: float, theta: float) -> tuple[Rotary, Rotary]:
    """The schemes of blocks with a window and of the others, from the two tables of
    ``rope_parameters``; ``local`` and ``theta`` where they do not say."""
    tables = raw.inside("rope_parameters")
    assert tables is not None
    names = {"sliding_attention": local, "full_attention": theta}
    need(
        any(name in tables.table for name in names),
        f"{tables.source} has no table for {' or '.join(names)}; add one.",
    )
    windowed, others = (
        read_rotary(ConfigReader({"rope_parameters": tables.value(name, {})}, raw.source), default)
        for name, default in names.items()
    )
    return windowed, others


def with_local(model: Decoder, blocks: Sequence[Block], local: Rotary) -> list[Block]:
    """The blocks, those with a window turned by ``local`` where the stack turns otherwise."""
    position = None if local == stack(model).position else local
    return [
        replace(block, position=position) if isinstance(block.attention.mask, Window) else block
        for block in blocks
    ]


def local_scheme(model: Model) -> Rotary | None:
    """The scheme of blocks with a window, None where no block has one."""
    schemes = (
        block.position or stack(model).position
        for block in stack(model).pattern
        if isinstance(block.attention.mask, Window)
    )
    return next((scheme for scheme in schemes if isinstance(scheme, Rotary)), None)


def read_long(raw: ConfigReader, rope: ConfigReader) -> LongRopeScaling:
    """The scaling of a longrope table."""
    positions = raw.integer("max_position_embeddings", most=MOST_POSITIONS)
    length = raw.integer("original_max_position_embeddings", positions, most=MOST_POSITIONS)
    length = rope.integer("original_max_position_embeddings", length, most=MOST_POSITIONS)
    factor = rope.number("factor", positions / length, least=1e-3)
    size = rope.number("attention_factor", None, least=1e-3, most=1e3)
    for key in ("short_factor", "long_factor"):
        factors = rope.value(key)
        bounds = type(factors) is list and all(
            type(value) in (int, float) and 1e-3 <= value <= 1e6 for value in factors
        )
        rope.must(bounds, key, "a list of numbers, one for each wave")
    short, long = rope.value("short_factor"), rope.value("long_factor")
    return LongRopeScaling(short, long, length, factor, size)


def read_fraction(raw: ConfigReader, unsaid: float, full_only: bool) -> float:
    """The share of each head that turns."""
    if full_only:
        raw.only("partial_rotary_factor", 1.0, "this family turns all of each head")
    share: float = raw.number("partial_rotary_factor", unsaid, most=1.0)
    raw.must(share > 0, "partial_rotary_factor", "a share above 0")
    return share


def read_scaling(rope: ConfigReader, kind: str) -> RopeScaling:
    """The scaling that a ``rope_scaling`` table describes."""
    factor = rope.number("factor", least=1.0)
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    length = rope.integer("original_max_position_embeddings", most=MOST_POSITIONS)
    if kind == "llama3":
        return Llama3Scaling(factor, low, high, length)
    for key in ("mscale", "mscale_all_dim"):
        rope.only(key, None, 'the size here is "attention_factor"')
    fast = rope.number("beta_fast", 32.0, least=1e-3)
    slow = rope.number("beta_slow", 1.0, least=1e-3)
    rope.must(slow < fast, "beta_slow", f"below beta_fast ({fast:g})")
    size = rope.number("attention_factor", None, most=1e3)
    return YarnScaling(factor, length, fast, slow, size, rope.flag("truncate", True))


# --------------------------------------------------------------------------------- config.json, out


def even_heads(model: Model, layout: str) -> None:
    """Refuse heads that do not divide the width, where transformers does."""
    heads = first_block(model).attention.heads
    if model.dim % heads:
        raise UserError(f"The {layout} layout needs heads ({heads}) that divide dim ({model.dim}).")


def window_size(model: Model) -> int | None:
    """The size of the first window among the blocks, None where all see everything."""
    mask_rules = (block.attention.mask for block in stack(model).pattern)
    return next((mask_rule.size for mask_rule in mask_rules if isinstance(mask_rule, Window)), None)


def write_windows(model: Model) -> list[str]:
    """``layer_types``: which blocks slide."""
    blocks = stack(model)
    slides = [isinstance(blocks.block(i).attention.mask, Window) for i in range(blocks.depth)]
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def stack(model: Model) -> Stack:
    """The decoder's stack."""
    return stacks(model)["decoder"]


def first_block(model: Model) -> Block:
    """The first block, for what all blocks have in common."""
    return stack(model).pattern[0]


def with_attention_first(model: Any, layout: str) -> Any:
    """The model with its first block that attends alone, for what such blocks have in common."""
    blocks = [block for block in stack(model).pattern if isinstance(block.attention, Attention)]
    need(bool(blocks), f"The {layout} layout needs a block with attention.")
    return replace(model, decoder=replace(stack(model), pattern=tuple(blocks[:1])))


def mixers(model: Model) -> list[Any]:
    """The mixer of each block."""
    return [stack(model).block(i).attention for i in range(stack(model).depth)]


def write_kinds(model: Model, kinds: Sequence[str]) -> list[str]:
    """``layer_types``: the first of two kinds where a block has another mixer than attention."""
    return [kinds[isinstance(mixer, Attention)] for mixer in mixers(model)]


def first_mixer(model: Model, default: Any) -> Any:
    """The first mixer that is of the type of ``default``; that where there is none."""
    return next((mixer for mixer in mixers(model) if type(mixer) is type(default)), default)


SCALING_TYPES = {
    LinearScaling: "linear",
    Llama3Scaling: "llama3",
    LongRopeScaling: "longrope",
    YarnScaling: "yarn",
}
SCALING_WORDS = {
    "original_context": "original_max_position_embeddings",
    "short": "short_factor",
    "long": "long_factor",
}


def write_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    """A scaling as the ``rope_scaling`` table."""
    if scaling is None:
        return None
    table = {"rope_type": SCALING_TYPES[type(scaling)], **serial.to_dict(scaling)}
    unsaid = ("type", "use_long")
    return {
        SCALING_WORDS.get(name, name): value
        for name, value in table.items()
        if value is not None and name not in unsaid and (name, value) != ("truncate", True)
    }


# ------------------------------------------------------------------------------------ weight names

OURS, THEIRS = "decoder.blocks.{i}", "model.layers.{i}"
ATTENTION = {
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.out": "self_attn.o_proj",
}
QK_NORMS = {"attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm"}
GATED = {"ffn.gate": "mlp.gate_proj", "ffn.up": "mlp.up_proj", "ffn.down": "mlp.down_proj"}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def table(layer_names: Mapping[str, str], *more: NameRule, last_norm: str = "model.norm") -> Table:
    """The table of a decoder: ``layer_names`` maps the names in our blocks to the file's, each a
    weight and perhaps a bias."""
    layers = {
        f"{THEIRS}.{file_name}": f"{OURS}.{param_name}"
        for param_name, file_name in layer_names.items()
    }
    end_layers = {last_norm: "decoder.last_norm", "lm_head": "head.proj"}
    return Table(
        (
            NameRule("model.embed_tokens.weight", "embed.token.weight"),
            *rules({**layers, **end_layers}),
            *more,
        ),
        # follows from the config
        ignore=(f"{THEIRS}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
        copies=(("lm_head.weight", "model.embed_tokens.weight"),),
        prefix="model.",
    )
