"""The parts that published decoders share: the words of their config.json, in and out, and the
names of their weights.

A family's page says the rest: which norm, which feed-forward, which biases, who sees whom, and its
own words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from ..core.config import serial
from ..core.config.layers import (
    MLP,
    Embed,
    FeedForward,
    GatedMLP,
    Head,
    Init,
    LayerNorm,
    Norm,
    RMSNorm,
)
from ..core.config.mask import Full, MaskRule, Window
from ..core.config.model import (
    Attention,
    Block,
    Decoder,
    Encoder,
    Mixer,
    Model,
    Place,
    Stack,
)
from ..core.config.position import NoPosition, Position, Rotary
from ..core.config.scaling import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)
from ..core.errors import UserError, need
from .keys import (
    MOST_POSITIONS,
    ConfigWords,
    Entry,
    Key,
    Section,
    key,
    keys,
    layer_keys,
    read_keys,
    revise,
    write_keys,
)
from .names import NameRule, Names, Table, rules, under
from .recipe import ConfigReader, Settings, tile

M = TypeVar("M", bound=Model)
INIT = Init(0.02, 0.02, "plain")
SCALINGS = ("default", "linear", "llama3", "yarn")
LONGROPE = ("longrope", "su")
# a token turns otherwise once the text grows long: no cache can hold that
BY_LENGTH = ("dynamic", *LONGROPE)
KINDS = ("full_attention", "sliding_attention")  # of blocks, those with a window last
OLD_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}  # of blocks


def decoder(
    attention: Mixer = Attention(1),
    feedforward: FeedForward | None = GatedMLP(1),
    norm: Norm = RMSNorm(),
    position: Position = Rotary(),
    head: Head = Head(),
    place: Place = "pre",
    **stack: Any,
) -> Decoder:
    """A decoder of one such block, whose last norm is the block's, and of sizes that a file says;
    where nothing is given, a Llama."""
    block = Block(attention, feedforward, norm, place)
    body = Stack(1, (block,), position, **{"last_norm": norm, **stack})
    return Decoder(64, 64, Embed(64), body, head, INIT)


GPT2_LAYERS = (Attention(1, bias=True), MLP(1, bias=True), LayerNorm())


# ---------------------------------------------------------------------------------- config.json, in


def rotary(
    theta: float = 10_000.0, fraction: float | None = None, kinds: Sequence[str] = SCALINGS
) -> Key:
    """Rotary positions; ``fraction`` of each head turns where the file says nothing, None: all of
    it in any file."""
    names = "" if fraction is None else "partial_rotary_factor"
    return turned(lambda raw: read_rotary(raw, theta, fraction, kinds), names)


def turned(parse: Callable[[ConfigReader], Any], names: str = "") -> Key:
    """Rotary positions that the file has in words of its own; ``names``: of the share that turns."""
    return Key(names, "position", parse, lambda position: position.get("fraction", 1.0))


def window(default: int | None = None) -> Key:
    """One sliding window for every block, or none; ``default`` where the file does not say."""

    def parse(raw: ConfigReader) -> MaskRule:
        size = window_of(raw, default)
        return Full() if size is None else Window(size)

    return Key(
        "sliding_window",
        "attention.mask",
        parse,
        lambda mask: mask["size"] if mask["type"] == "Window" else None,
    )


def window_of(raw: ConfigReader, default: int | None, word: str = "sliding_window") -> Any:
    """The size of a window: null is none, ``default`` where the file does not say."""
    return raw.integer(word, None if word in raw.table else default, most=MOST_POSITIONS)


def write_rope(model: Model) -> Settings:
    """Rotary positions in the words of transformers 4, which version 5 reads as well."""
    position = rotary_of(model)
    return {"rope_theta": position.theta, "rope_scaling": write_scaling(position.scaling)}


def rotary_of(model: Model) -> Rotary:
    """The rotary positions of the first stack, the usual ones where it has others."""
    position = next(iter(model.stacks.values())).position
    return position if isinstance(position, Rotary) else Rotary()


def write_rope_table(model: Model) -> Settings:
    """Rotary positions in the words of transformers 5."""
    return {"rope_parameters": write_scheme(rotary_of(model))}


def write_scheme(position: Rotary) -> Settings:
    """Rotary positions as a table of ``rope_parameters``."""
    table = write_scaling(position.scaling) or {"rope_type": "default"}
    return {**table, "rope_theta": position.theta}


ROPE, ROPE_TABLE = Section(encode=write_rope), Section(encode=write_rope_table)


def _no_dropout(raw: ConfigReader) -> float:
    raw.only("attention_dropout", 0.0, "dropout here is one number for the whole stack")
    return 0.0


LLAMA = (
    *keys(
        "hidden_size num_hidden_layers num_attention_heads intermediate_size "
        "max_position_embeddings vocab_size",
        num_key_value_heads=None,
        head_dim=None,
        hidden_act="silu",
        tie_word_embeddings=False,
        initializer_range=0.02,
        rms_norm_eps=1e-6,
    ),
    Key("", "dropout", _no_dropout),
    rotary(),
)


def words(
    template: Decoder | Encoder,
    *more: Entry,
    shared: Sequence[Key] = LLAMA,
    without: str = "",
    needed: str = "",
    dropouts: str = "",
    dropout: float = 0.0,
    rope: Section = ROPE,
    even: str = "",
    **defaults: Any,
) -> ConfigWords:
    """The words of a family: those that decoders share, but for ``without``, and its own.

    A word of the family's takes the place of the shared word that fills the same place of our
    config. ``template``: what a file changes. ``dropouts``: what the family calls
    them, first the one that is the stack's here; none: the file must not ask for any. ``even``: the
    layout's name where heads must divide the width.
    """
    first = [Section(encode=lambda model: even_heads(model, even))] if even else []
    dropped = [key(dropouts, dropout, "dropout")] if dropouts else []
    entries = revise(
        (*first, rope, *shared), *more, *dropped, without=without, needed=needed, **defaults
    )
    return ConfigWords(template, entries)


def read_windows(raw: ConfigReader, size: int | None, early: Sequence[bool]) -> list[MaskRule]:
    """Mask rules block by block from ``layer_types``; from ``early`` where the file does not say."""
    slides = [kind == KINDS[1] for kind in read_kinds(raw, KINDS, [KINDS[i] for i in early])]
    fits = size is not None or not any(slides)
    raw.must(fits, "layer_types", '"full_attention" everywhere without a window')
    return [Window(size) if size is not None and slide else Full() for slide in slides]


def blocks_of(model: Any) -> list[Block]:
    """Every block of the stack."""
    return stack(model).blocks


def with_blocks(model: M, blocks: Sequence[Block]) -> M:
    """The model with these blocks."""
    body = replace(stack(model), depth=len(blocks), pattern=tile(blocks))
    changed: Any = {model.main_body: body}
    return replace(model, **changed)


def with_layer(block: Any, slot: str, layer: Any) -> Any:
    """The block with this layer at the dotted path ``slot``."""
    outer, _, inner = slot.partition(".")
    return replace(
        block, **{outer: with_layer(getattr(block, outer), inner, layer) if inner else layer}
    )


def with_layers(model: M, slot: str, layers: Sequence[Any]) -> M:
    """The model whose blocks have these layers, one each, at the dotted path ``slot``."""
    pairs = zip(blocks_of(model), layers, strict=True)
    return with_blocks(model, [with_layer(block, slot, layer) for block, layer in pairs])


def layers_of(model: Any, slot: str) -> list[Any]:
    """The layer in a slot of each block."""
    return list(map(attrgetter(slot), blocks_of(model)))


def first_layer(model: Any, usual: Any, slot: str = "attention") -> Any:
    """The first layer in a slot that is of the type of ``usual``; that where there is none."""
    fitting = (layer for layer in layers_of(model, slot) if isinstance(layer, type(usual)))
    return next(fitting, usual)


def slides(block: Block) -> bool:
    """True for a block with a window."""
    return isinstance(block.attention.mask, Window)


def windows(
    default: int = 4096,
    every: int = 4,
    word: str = "",
    schemes: Callable[[ConfigReader], tuple[Rotary, Rotary]] | None = None,
    still: bool = False,
    optional: bool = False,
    required: bool = True,
) -> Section:
    """``sliding_window`` and ``layer_types``: all blocks but the last of ``every`` slide a window
    where the file says nothing; ``word`` is the file's for ``every``.

    ``schemes``: the positions of blocks with a window and of the others. ``still``: the blocks without one know none.
    ``optional``: nothing slides without the size of a window, and then no block is still.
    ``required``: the size is written where no block slides.
    """

    def decode(raw: ConfigReader, model: Any) -> Any:
        size, depth = window_of(raw, default), stack(model).depth
        idle = optional and size is None
        spaced = word and not (idle or (optional and raw.value("layer_types", None)))
        step = raw.integer(word, every) if spaced else every
        early = [(i + 1) % step != 0 and not idle for i in range(depth)]
        model = with_layers(model, "attention.mask", read_windows(raw, size, early))
        far = NoPosition() if still and not idle else None
        near = schemes(raw)[0] if schemes else None
        near = None if near == stack(model).position else near
        positions = [near if slides(block) else far for block in blocks_of(model)]
        return with_layers(model, "position", positions)

    def encode(model: Model) -> Settings:
        still_blocks = any(block.position for block in stack(model).pattern)
        has_size = still_blocks if optional else required
        size = window_size(model) or (default if has_size else None)
        return {"sliding_window": size, "layer_types": write_windows(model)}

    return Section(decode, encode)


@dataclass(frozen=True)
class LayerChoice:
    """The words of a config.json that say of each block whether it is of a kind; (): none is."""

    decode: Callable[[ConfigReader, int], Sequence[bool]]
    encode: Callable[[Sequence[bool]], Settings] = lambda chosen: {}


def read_kinds(
    raw: ConfigReader, kinds: Sequence[str], default: Sequence[str], word: str = "layer_types"
) -> list[str]:
    """The kind of each block, also by its older name; ``default`` where the file does not say."""
    names = raw.value(word, default)
    names = [OLD_KINDS.get(str(name), name) for name in names] if isinstance(names, list) else ()
    fits = len(names) == len(default) and all(name in kinds for name in names)
    quoted = " or ".join(f'"{kind}"' for kind in kinds)
    raw.must(fits, word, f"a list of {len(default)} times {quoted}")
    return list(names)


def read_turning(raw: ConfigReader, depth: int) -> list[bool]:
    """True for each block whose positions turn: ``no_rope_layers`` is 1 of it, and 0 of a block that
    knows none."""
    interval = raw.integer("no_rope_layer_interval", 4)
    unsaid = [(i + 1) % interval != 0 for i in range(depth)]
    turns = raw.value("no_rope_layers", unsaid)
    turns = unsaid if turns == [] else turns
    fits = isinstance(turns, list) and len(turns) >= depth and all(x in (0, 1) for x in turns)
    raw.must(fits, "no_rope_layers", f"{depth} times 1 (the block turns) or 0")
    return list(map(bool, turns[:depth]))


def read_numbers(raw: ConfigReader, word: str, default: Sequence[int] = ()) -> list[int]:
    """The numbers of some blocks, ``default`` where the file does not say."""
    listed_numbers = raw.value(word, list(default))
    raw.must(isinstance(listed_numbers, list), word, "a list of blocks' numbers")
    return list(listed_numbers)


def numbers(chosen: Sequence[bool], of: bool = True) -> list[int]:
    """The numbers of the blocks that are of a kind, or of those that are not."""
    return [i for i, is_it in enumerate(chosen) if is_it == of]


def listed(first: str, second: str, default: Callable[[ConfigReader, int], Any]) -> LayerChoice:
    """``layer_types`` of two kinds: True for ``first``; ``default`` where the file does not say."""

    kinds = (second, first)

    def decode(raw: ConfigReader, depth: int) -> list[bool]:
        unsaid = [kinds[is_first] for is_first in default(raw, depth)]
        return [kind == first for kind in read_kinds(raw, (first, second), unsaid)]

    return LayerChoice(decode, lambda chosen: {"layer_types": [kinds[i] for i in chosen]})


def _steps(raw: ConfigReader, depth: int) -> list[bool]:
    dense, step = read_numbers(raw, "mlp_only_layers"), raw.integer("decoder_sparse_step", 1)
    return [i not in dense and (i + 1) % step == 0 for i in range(depth)]


SPARSE = LayerChoice(
    _steps, lambda chosen: {"decoder_sparse_step": 1, "mlp_only_layers": numbers(chosen, False)}
)
"""Mixtures in every so many blocks, but for a list of dense ones."""


def counted(word: str, choice: LayerChoice) -> LayerChoice:
    """The choice, of no block where the file counts none of what ``word`` counts."""
    return replace(
        choice, decode=lambda raw, depth: choice.decode(raw, depth) if raw.value(word, 1) else ()
    )


def variant(
    slot: str,
    template: Any,
    choice: LayerChoice,
    make: Callable[[ConfigReader, Any], Any] = lambda raw, usual: None,
    missing: str = "",
    absent: Settings | None = None,
    **places: str | Key,
) -> Section:
    """Blocks with another layer at the path ``slot`` than the first block has, where ``choice`` says so.

    ``places`` are the words of that layer, as ``layer_keys`` has them; ``make`` has what the slot
    holds otherwise, and makes the template. ``missing`` refuses a model without such a block;
    ``absent`` are its words of that layer, where those are not the template's.
    """

    entries = layer_keys(template, **places)

    def decode(raw: ConfigReader, model: Any) -> Any:
        usual = attrgetter(slot)(first_block(model))
        chosen = choice.decode(raw, stack(model).depth)
        if not any(chosen):
            return model
        layer = read_keys(raw, make(raw, usual) or template, entries)
        pairs = zip(layers_of(model, slot), chosen, strict=True)
        return with_layers(model, slot, [layer if is_it else usual for usual, is_it in pairs])

    def encode(model: Any) -> Settings:
        chosen = [isinstance(layer, type(template)) for layer in layers_of(model, slot)]
        need(any(chosen) or not missing, missing)
        raw = write_keys(first_layer(model, template, slot), entries)
        return {**(raw if any(chosen) or absent is None else absent), **choice.encode(chosen)}

    return Section(decode, encode)


def rope_table(raw: ConfigReader) -> ConfigReader | None:
    """The table of rotary positions, of transformers 5 or of version 4."""
    return raw.inside("rope_parameters") or raw.inside("rope_scaling")


def rope_kind(rope: ConfigReader) -> Any:
    """The kind of scaling that such a table names."""
    return rope.value("rope_type", rope.value("type", "default"))


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
    rope = rope_table(raw)
    turns_all = fraction is None
    share = read_fraction(raw, fraction or 1.0, turns_all)
    if rope is None:
        return Rotary(theta, share)
    share, theta = (
        read_fraction(rope, share, turns_all),
        rope.number("rope_theta", theta, least=1.0),
    )
    kind = rope_kind(rope)
    if kind not in kinds:
        why = " (it turns a token by the length of the whole text)" if kind in BY_LENGTH else ""
        raise UserError(
            f'{rope.source} is "{kind}", which is not built here{why}; this model needs one of '
            f"{', '.join(kinds)}."
        )
    if kind in LONGROPE:
        return Rotary(theta, share, read_long(raw, rope))
    return Rotary(theta, share, None if kind == "default" else read_scaling(rope, kind))


def read_schemes(raw: ConfigReader, local: float, theta: float) -> tuple[Rotary, Rotary] | None:
    """The schemes of blocks with a window and of the others, from the two tables of
    ``rope_parameters``; ``local`` and ``theta`` where they do not say. None without such tables."""
    tables = raw.inside("rope_parameters")
    if tables is None:
        return None
    names = {"sliding_attention": local, "full_attention": theta}
    need(
        any(name in tables.table for name in names),
        f"{tables.source} has no table for {' or '.join(names)}; add one.",
    )
    near, far = (
        read_rotary(ConfigReader({"rope_parameters": tables.value(name, {})}, raw.source), default)
        for name, default in names.items()
    )
    return near, far


def local_scheme(model: Model, theta: float) -> Rotary:
    """The scheme of blocks with a window, that of ``theta`` where no block has one."""
    schemes = (
        block.position or rotary_of(model) for block in stack(model).pattern if slides(block)
    )
    return next((scheme for scheme in schemes if isinstance(scheme, Rotary)), Rotary(theta))


def write_schemes(model: Model, theta: float) -> Settings:
    """The schemes of blocks without a window and of those with one, as two tables of
    ``rope_parameters``; ``theta`` where no block has a window."""
    schemes = rotary_of(model), local_scheme(model, theta)
    return {"rope_parameters": dict(zip(KINDS, map(write_scheme, schemes), strict=True))}


def read_long(raw: ConfigReader, rope: ConfigReader) -> LongRopeScaling:
    """The scaling of a longrope table."""
    positions = raw.integer("max_position_embeddings", most=MOST_POSITIONS)
    length = raw.integer("original_max_position_embeddings", positions, most=MOST_POSITIONS)
    length = rope.integer("original_max_position_embeddings", length, most=MOST_POSITIONS)
    factor = rope.number("factor", positions / length, least=1e-3)
    size = rope.number("attention_factor", None, least=1e-3, most=1e3)
    factors = []
    for word in ("short_factor", "long_factor"):
        waves = rope.value(word)
        fits = type(waves) is list and all(
            type(value) in (int, float) and 1e-3 <= value <= 1e6 for value in waves
        )
        rope.must(fits, word, "a list of numbers, one for each wave")
        factors.append(waves)
    short, long = factors
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
    for word in ("mscale", "mscale_all_dim"):
        rope.only(word, None, 'the size here is "attention_factor"')
    fast = rope.number("beta_fast", 32.0, least=1e-3)
    slow = rope.number("beta_slow", 1.0, least=1e-3)
    rope.must(slow < fast, "beta_slow", f"below beta_fast ({fast:g})")
    size = rope.number("attention_factor", None, most=1e3)
    return YarnScaling(factor, length, fast, slow, size, rope.flag("truncate", True))


# --------------------------------------------------------------------------------- config.json, out


def even_heads(model: Model, layout: str) -> Settings:
    """No words: refuse heads that do not divide the width, where transformers does."""
    heads = first_block(model).attention.heads
    if model.dim % heads:
        raise UserError(f"The {layout} layout needs heads ({heads}) that divide dim ({model.dim}).")
    return {}


def window_size(model: Model) -> int | None:
    """The size of the first window among the blocks, None where all see everything."""
    mask_rules = (block.attention.mask for block in stack(model).pattern)
    return next((mask_rule.size for mask_rule in mask_rules if isinstance(mask_rule, Window)), None)


def write_windows(model: Model) -> list[str]:
    """``layer_types``: which blocks slide."""
    return [KINDS[slides(block)] for block in blocks_of(model)]


def stack(model: Model) -> Stack:
    """The stack that the model's head reads."""
    return model.stacks[model.main_body]


def first_block(model: Model) -> Block:
    """The first block, for what all blocks have in common."""
    return stack(model).pattern[0]


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


def write_scaling(scaling: RopeScaling | None) -> Settings | None:
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

NO_NAMES: Names = {}
OURS, THEIRS = "decoder.blocks.{i}", "model.layers.{i}"
QKV = "attn.q attn.k attn.v"


def attention(file: str = "self_attn", out: str = "o_proj", place: str = "attn.") -> dict[str, str]:
    """The names of an attention's layers, below ``file`` and after ``place``."""
    return under(file, {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": out}, place)


ATTENTION = attention()
QK_NORMS = {"attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm"}
PROJECTIONS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
GATED = under("mlp", PROJECTIONS, "ffn.")
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
FAIRSEQ = {
    **attention(out="out_proj"),
    "attn_norm": "self_attn_layer_norm",
    "ffn.up": "fc1",
    "ffn.down": "fc2",
    "ffn_norm": "final_layer_norm",
}
OUTPUT_NORMS = {
    "attn_norm": "post_attention_layernorm",
    "ffn_norm": "post_feedforward_layernorm",
}


EXPERTS = {
    "ffn.router.weight": "mlp.gate.weight",
    "ffn.gate": "mlp.experts.{e}.gate_proj.weight",
    "ffn.up": "mlp.experts.{e}.up_proj.weight",
    "ffn.down": "mlp.experts.{e}.down_proj.weight",
}
SHARED_EXPERT = {
    **under("mlp.shared_expert", PROJECTIONS, "ffn.shared."),
    "ffn.shared.share": "mlp.shared_expert_gate",
}
# follows from the config
CONSTANTS = ("model.layers.{i}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")


def table(
    *layers: Names,
    tables: Names = NO_NAMES,
    turned: Names = NO_NAMES,
    fused: Names = NO_NAMES,
    more: Sequence[NameRule] = (),
    layer: str = THEIRS,
    last_norm: str = "model.norm",
    token: str = "model.embed_tokens",
    outside: Names = NO_NAMES,
    side: str = "decoder",
    head: str = "lm_head",
    prefix: str = "model.",
    ignore: tuple[str, ...] = CONSTANTS,
    **options: Any,
) -> Table:
    """The table of a decoder, or of an encoder like one.

    ``layers`` map the names in our blocks to the file's, each a weight and perhaps a bias, the last
    that the file has of a layer; ``tables`` those of single parameters, ``turned`` layers whose
    matrices lie (inputs, outputs), ``fused`` layers that lie as the ``options`` of ``rules`` say,
    ``outside`` our layers beside the blocks to the file's.
    """
    inside = partial(rules, file=f"{layer}.", place=f"{side}.blocks.{{i}}.")
    straight = {name: file_name for names in layers for name, file_name in names.items()}
    outer = {"embed.token": token, f"{side}.last_norm": last_norm, "head.proj": head}
    return Table(
        (
            *rules({**outer, **outside}),
            *inside(straight),
            *inside(turned, transpose=True),
            *inside(fused, **options),
            *inside(tables, suffixes=("",)),
            *more,
        ),
        ignore=ignore,
        copies=((f"{head}.weight", f"{token}.weight"),),
        prefix=prefix,
    )


LLAMA_TABLE = table(ATTENTION, GATED, NORMS)
