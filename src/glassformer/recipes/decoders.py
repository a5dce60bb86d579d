"""What the published decoders share: the words of their config.json, in and out, and the names of their weights.

A family's page says the rest: which norm, which feed-forward, which biases, who sees whom, and its own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..config import (
    MLP,
    Activation,
    Attention,
    Block,
    Decoder,
    Embed,
    FeedForward,
    Full,
    GatedMLP,
    Head,
    Init,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MaskRule,
    Model,
    MoE,
    Position,
    RopeScaling,
    Rotary,
    Stack,
    Window,
    YarnScaling,
    stacks,
)
from ..errors import UserError
from .recipe import ConfigReader, Rule, Table, rules, tile

INIT = Init(0.02, 0.02, "plain")
SCALINGS = ("default", "linear", "llama3", "yarn")
LONG = ("longrope", "su")
BY_LENGTH = ("dynamic", *LONG)  # a token turns otherwise once the text grows long: no cache can hold that
MANY = 1 << 14  # heads, and dimensions a head; far above any published
WIDE = 1 << 22  # hidden

# What transformers calls its activations, the one written first.
ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}

# ---------------------------------------------------------------------------------- config.json, in


def read_attention(
    raw: ConfigReader, kv_heads: int | None = None, head_dim: int | None = None, bias: bool = False
) -> Attention:
    """Heads and their widths; ``kv_heads`` and ``head_dim`` are the family's where the file says nothing."""
    heads = raw.whole("num_attention_heads", most=MANY)
    shared = raw.whole("num_key_value_heads", unsaid(raw, "num_key_value_heads", kv_heads) or heads)
    return Attention(heads, shared, raw.whole("head_dim", head_dim, most=MANY), bias=bias)


def read_gated(raw: ConfigReader, key: str = "hidden_act", act: str = "silu", bias: bool = False) -> GatedMLP:
    """The gated MLP, its activation called ``key``."""
    return GatedMLP(raw.whole("intermediate_size", most=WIDE), raw.choice(key, ACTIVATIONS, act), bias)


def read_mlp(raw: ConfigReader, act: str, bias: bool = True) -> MLP:
    """The MLP without a gate; ``act`` where the file says nothing."""
    return MLP(raw.whole("intermediate_size", most=WIDE), raw.choice("hidden_act", ACTIVATIONS, act), bias)


def read_window(raw: ConfigReader) -> MaskRule:
    """One sliding window for every block, or none."""
    size = raw.whole("sliding_window", None, most=1 << 28)
    return Full() if size is None else Window(size)


def unsaid(raw: ConfigReader, key: str, default: Any) -> Any:
    """What a key that may be null stands for where it has no value: the default only where it is absent."""
    return None if key in raw.table else default


def read_windows(raw: ConfigReader, size: int | None, slides: Sequence[bool]) -> list[MaskRule]:
    """Who sees whom, block by block, from ``layer_types``; ``slides`` where the file does not say."""
    kinds = raw.value("layer_types", None)
    known = isinstance(kinds, list) and all(kind in ("full_attention", "sliding_attention") for kind in kinds)
    fits = kinds is None or (known and len(kinds) == len(slides))
    raw.must(fits, "layer_types", f'a list of {len(slides)} times "full_attention" or "sliding_attention"')
    if kinds is not None:
        slides = [kind == "sliding_attention" for kind in kinds]
    raw.must(size is not None or not any(slides), "layer_types", '"full_attention" everywhere without a window')
    return [Window(size) if slide and size is not None else Full() for slide in slides]


def read_decoder(
    raw: ConfigReader,
    blocks: Block | Sequence[Block],
    position: Position,
    context: int,
    tied: bool = False,
    dropout: float | None = None,
    head: Head = Head(),
) -> Decoder:
    """The whole model around its block or blocks; ``context`` and ``tied`` where the file does not say."""
    if dropout is None:
        raw.only("attention_dropout", 0.0, "dropout here is one number for the whole stack")
    pattern = (blocks,) if isinstance(blocks, Block) else tile(blocks)
    depth = raw.whole("num_hidden_layers", most=2000)
    std = raw.number("initializer_range", 0.02, most=10.0)
    return Decoder(
        raw.whole("hidden_size"),
        raw.whole("max_position_embeddings", context, most=1 << 28),
        Embed(raw.whole("vocab_size", most=1 << 24)),
        Stack(depth, pattern, position, last_norm=pattern[0].norm, dropout=dropout or 0.0),
        replace(head, tied=raw.flag("tie_word_embeddings", tied)),
        Init(std, std, "plain"),
    )


def read_rotary(
    raw: ConfigReader, theta: float = 10_000.0, fraction: float | None = None, kinds: Sequence[str] = SCALINGS
) -> Rotary:
    """The rotary positions of ``rope_theta`` and ``rope_scaling``, or of transformers 5's ``rope_parameters``.

    ``theta`` and ``fraction`` are the family's where the file says nothing; None: it turns all of each head.
    """
    theta = raw.number("rope_theta", theta, least=1.0)
    rope = raw.inside("rope_parameters") or raw.inside("rope_scaling")
    part = read_fraction(raw, 1.0 if fraction is None else fraction, fraction is None)
    if rope is None:
        return Rotary(theta, part)
    part, theta = read_fraction(rope, part, fraction is None), rope.number("rope_theta", theta, least=1.0)
    kind = rope.value("rope_type", rope.value("type", "default"))
    if kind not in kinds:
        why = " (it turns a token by the length of the whole text)" if kind in BY_LENGTH else ""
        raise UserError(
            f'{rope.source} is "{kind}", which is not built here{why}; this model needs one of {", ".join(kinds)}.'
        )
    if kind in LONG:
        return Rotary(theta, part, read_long(raw, rope))
    return Rotary(theta, part, None if kind == "default" else read_scaling(rope, kind))


def read_long(raw: ConfigReader, rope: ConfigReader) -> LongRopeScaling:
    """The scaling of a longrope table."""
    positions = raw.whole("max_position_embeddings", most=1 << 28)
    length = raw.whole("original_max_position_embeddings", positions, most=1 << 28)
    length = rope.whole("original_max_position_embeddings", length, most=1 << 28)
    lists = [rope.value(key) for key in ("short_factor", "long_factor")]
    for key, values in zip(("short_factor", "long_factor"), lists, strict=True):
        numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
        fits = numbers and len(values) > 0 and all(1e-3 <= value <= 1e6 for value in values)
        rope.must(fits, key, "a list of numbers, one for each wave")
    short, long = (tuple(map(float, values)) for values in lists)
    size = rope.number("attention_factor", None, least=1e-3, most=1e3)
    return LongRopeScaling(short, long, length, rope.number("factor", positions / length, least=1e-3), size)


def read_fraction(raw: ConfigReader, unsaid: float, whole: bool) -> float:
    """The share of each head that turns."""
    if whole:
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
        rope.must(low < high, "low_freq_factor", f"below high_freq_factor ({high:g})")
    length = rope.whole("original_max_position_embeddings", most=1 << 28)
    if kind == "llama3":
        return Llama3Scaling(factor, low, high, length)
    rope.only("truncate", True, "the blend here ends at an integer number of waves")
    for key in ("mscale", "mscale_all_dim"):
        rope.only(key, None, 'the size here is "attention_factor"')
    fast, slow = rope.number("beta_fast", 32.0, least=1e-3), rope.number("beta_slow", 1.0, least=1e-3)
    rope.must(slow < fast, "beta_slow", f"below beta_fast ({fast:g})")
    size = rope.number("attention_factor", None, most=1e3)
    rope.must(size is None or size > 0, "attention_factor", "above 0")
    return YarnScaling(factor, length, fast, slow, size)


# --------------------------------------------------------------------------------- config.json, out


def write_decoder(
    model: Model, layout: str, eps: str = "rms_norm_eps", bias: str = "", window: bool = False, dropouts: str = ""
) -> dict[str, Any]:
    """The settings that decoders share; UserError for what is not a decoder.

    ``eps``, ``bias`` and ``dropouts`` (several) are what the family calls these, if it has them; ``window``: it has
    ``sliding_window``.
    """
    if not isinstance(model, Decoder) or model.head is None:
        raise UserError(f"The {layout} layout holds only decoders with a head.")
    block = first_block(model)
    attention, mlp = block.attention, plain_mlp(block.feedforward)
    return {
        "hidden_size": model.dim,
        "num_hidden_layers": model.decoder.depth,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads or attention.heads,
        "head_dim": attention.head_dim or model.dim // attention.heads,
        "intermediate_size": mlp.hidden,
        "max_position_embeddings": model.context,
        "vocab_size": model.embed.vocab,
        "hidden_act": write_act(mlp.act, layout),
        "tie_word_embeddings": model.head.tied,
        "initializer_range": write_std(model),
        **write_rotary(stack(model).position),
        eps: norm_eps(block),
        **({bias: attention.bias} if bias else {}),
        **({"sliding_window": window_size(model)} if window else {}),
        **dict.fromkeys(dropouts.split(), model.decoder.dropout),
    }


def write_std(model: Model) -> float:
    """The standard deviation that weights start with, transformers' own where ours differs from matrix to matrix."""
    return 0.02 if model.init.std is None else model.init.std


def write_act(act: Activation, layout: str) -> str:
    """What transformers calls an activation first."""
    for theirs, ours in ACTIVATIONS.items():
        if ours == act:
            return theirs
    raise UserError(f'The {layout} layout has no name for the activation "{act}".')


def even_width(model: Model, block: Block, layout: str) -> None:
    """Refuse heads that are wider or narrower than their share of the width."""
    if block.attention.head_dim not in (None, model.dim / block.attention.heads):
        raise UserError(f"The {layout} layout holds only heads that share the width evenly.")


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


def write_rotary(position: Position) -> dict[str, Any]:
    """Rotary positions in the words of transformers 4, which version 5 reads as well."""
    rotary = position if isinstance(position, Rotary) else Rotary()
    return {"rope_theta": rotary.theta, "rope_scaling": write_scaling(rotary.scaling)}


def fraction(model: Model) -> float:
    """The share of each head that turns."""
    position = stack(model).position
    return position.fraction if isinstance(position, Rotary) else 1.0


def stack(model: Model) -> Stack:
    """The decoder's stack."""
    return stacks(model)["decoder"]


def first_block(model: Model) -> Block:
    """The first block, for what all blocks have in common."""
    return stack(model).pattern[0]


def write_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    """A scaling as the ``rope_scaling`` table."""
    if scaling is None:
        return None
    if isinstance(scaling, LinearScaling):
        return {"rope_type": "linear", "factor": scaling.factor}
    table: dict[str, Any] = {"factor": scaling.factor, "original_max_position_embeddings": scaling.length}
    if isinstance(scaling, Llama3Scaling):
        return {"rope_type": "llama3", **table, "low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
    size = {} if scaling.size is None else {"attention_factor": scaling.size}
    if isinstance(scaling, LongRopeScaling):
        factors = {"short_factor": list(scaling.short), "long_factor": list(scaling.long)}
        return {"rope_type": "longrope", **table, **factors, **size}
    return {"rope_type": "yarn", **table, "beta_fast": scaling.fast, "beta_slow": scaling.slow, **size}


def norm_eps(block: Block) -> float:
    """The eps of a block's norm; UserError where there is no norm."""
    if block.norm is None:
        raise UserError("No published layout holds blocks without a norm.")
    return block.norm.eps


def plain_mlp(feedforward: FeedForward | None) -> MLP | GatedMLP:
    """The MLP whose numbers a config.json can say; a mixture's expert stands for the mixture."""
    if feedforward is None:
        raise UserError("No published layout holds blocks without a feed-forward.")
    return feedforward.expert if isinstance(feedforward, MoE) else feedforward


# ------------------------------------------------------------------------------------ weight names

OURS, THEIRS = "decoder.blocks.{i}", "model.layers.{i}"
ATTENTION = {
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.out": "self_attn.o_proj",
}
GATED = {"ffn.gate": "mlp.gate_proj", "ffn.up": "mlp.up_proj", "ffn.down": "mlp.down_proj"}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def table(parts: Mapping[str, str], *more: Rule, last_norm: str = "model.norm") -> Table:
    """The table of a decoder: ``parts`` of our blocks and of their layers, each a weight and perhaps a bias."""
    layers = {f"{THEIRS}.{theirs}": f"{OURS}.{ours}" for ours, theirs in parts.items()}
    ends = {last_norm: "decoder.last_norm", "lm_head": "head.proj"}
    return Table(
        (Rule("model.embed_tokens.weight", "embed.token.weight"), *rules({**layers, **ends}), *more),
        ignore=(f"{THEIRS}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),  # follows from the config
        copies=(("lm_head.weight", "model.embed_tokens.weight"),),
        prefix="model.",
    )
