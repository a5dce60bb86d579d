"""GPT-2, and nanoGPT's variant of it: no biases, a vocabulary padded to a round number, the exact
GELU."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.config import (
    MLP,
    Activation,
    Attention,
    Block,
    Decoder,
    Embed,
    LayerNorm,
    Learned,
    Model,
    Stack,
    serial,
)
from ..core.errors import need
from .decoders_old import ATTN, BLOCK, FFN, first_block
from .keys_old import (
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
from .recipe import ConfigReader, Recipe


def gpt2(
    dim: int,
    depth: int,
    heads: int,
    vocab: int = 50257,
    bias: bool = True,
    act: Activation = "gelu_tanh",
) -> Decoder:
    """The shape of GPT-2: learned positions, LayerNorm before, a tied head; 1,024 positions."""
    block = Block(Attention(heads, bias=bias), MLP(4 * dim, act, bias), LayerNorm(bias=bias))
    stack = Stack(depth, (block,), Learned(1024), last_norm=LayerNorm(bias=bias))
    return Decoder(dim, 1024, Embed(vocab), stack)


def keys(
    *more: Key,
    dim: str = "n_embd",
    depth: str = "n_layer",
    heads: str = "n_head",
    hidden: str = "n_inner",
    positions: str = "n_positions",
    context: int = 1024,
    table: bool = True,
    act: str = "gelu_new",
    tied: bool = True,
    dropouts: str = "resid_pdrop attn_pdrop embd_pdrop",
    dropout: float = 0.0,
    eps_places: str = f"{BLOCK}.norm.eps decoder.last_norm.eps",
) -> tuple[Key, ...]:
    """The words that decoders before Llama share, each with its name in the family's files, and
    ``more`` of the family's.

    ``table``: whether positions are learned. ``dropouts``: the stack's comes first here. A name
    that is empty is a number that the files do not have: a feed-forward is then four times as wide,
    and the context is ``context``.
    """

    def inner(raw: ConfigReader) -> Any:
        width = 4 * raw.integer(dim)
        return raw.integer(hidden, width, most=MOST_HIDDEN) if hidden else width

    def length(raw: ConfigReader) -> Any:
        return raw.integer(positions, raw.integer("n_ctx", context, most=MOST_POSITIONS))

    activation = (Key.activation("activation_function", f"{FFN}.act", act),) if act else ()
    return (
        Key.integer(dim, "dim"),
        Key.integer(depth, "decoder.depth", most=MOST_BLOCKS),
        Key.integer(heads, f"{ATTN}.heads", most=MOST_HEADS),
        Key(hidden, f"{FFN}.hidden", inner),
        Key(positions, "context decoder.position.length" if table else "context", length),
        Key.integer("vocab_size", "embed.vocab", most=MOST_TOKENS),
        *activation,
        Key.number("layer_norm_epsilon", eps_places, 1e-5, most=1.0),
        Key.flag("tie_word_embeddings", "head.tied", tied),
        Key.std("initializer_range"),
        Key.number(dropouts, "decoder.dropout", dropout, most=0.99),
        *more,
    )


def fixed_act(model: Model, act: Activation, layout: str) -> None:
    """Refuse another activation than that of a layout which has no word for it."""
    feedforward = first_block(model).feedforward
    fits = getattr(feedforward, "act", None) == act
    need(fits, f'The {layout} layout has no other activation than "{act}".')


SCALED = Key.only(
    "scale_attn_weights", True, "attention here always divides by the root of the head's width"
)
ALONE = Key.only("add_cross_attention", False, "a decoder alone has nothing to look across at")
_BIASES = f"{ATTN}.bias {FFN}.bias {BLOCK}.norm.bias decoder.last_norm.bias"
KEYS = keys(
    SCALED,
    ALONE,
    Key.only("scale_attn_by_inverse_layer_idx", False, "no attention here scales by its layer"),
    Key.flag("bias", _BIASES, True),  # nanoGPT's word
    dropout=0.1,
)


def read_config(raw: ConfigReader) -> Model:
    """A GPT-2 config.json as our config."""
    return read_keys(raw, gpt2(768, 12, 12), KEYS)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a GPT-2 config.json, as far as that can say it."""
    raw = write_keys(model, KEYS)
    return {name: value for name, value in raw.items() if (name, value) != ("bias", True)}


def layout(model: Model) -> Model:
    """The same model with every bias: what the published files hold."""
    return serial.change(model, dict.fromkeys(_BIASES.split(), True))


OURS, THEIRS = "decoder.blocks.{i}", "transformer.h.{i}"
NORMS = {"attn_norm": "ln_1", "ffn_norm": "ln_2"}
# (in, out) in GPT-2's files
LAYERS = {**NORMS, "attn.out": "attn.c_proj", "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}


def fused(
    file_name: str,
    params: Sequence[str] = ("q", "k", "v"),
    layer: str = THEIRS,
    transpose: bool = False,
    axes: str = "",
    heads: int = 1,
    groups: int = 1,
) -> tuple[NameRule, NameRule]:
    """The rules of a layer that computes queries, keys and values together."""
    weights, biases = (
        tuple(f"{OURS}.attn.{name}.{end}" for name in params) for end in ("weight", "bias")
    )
    vector = axes.replace(" c", "")  # a bias has no columns
    return (
        NameRule(
            f"{layer}.{file_name}.weight", weights, transpose, axes=axes, heads=heads, groups=groups
        ),
        NameRule(f"{layer}.{file_name}.bias", biases, axes=vector, heads=heads, groups=groups),
    )


def table(
    layer_names: Mapping[str, str],
    *more: NameRule,
    layer: str = THEIRS,
    transpose: bool = False,
    token: str = "wte",
    first_norm: str = "",
    last_norm: str = "ln_f",
    prefix: str = "transformer.",
    head: str = "lm_head",
) -> Table:
    """The table of a decoder in GPT-2's names: ``layer_names`` maps the names in our blocks to the
    file's, each a weight and perhaps a bias.

    ``transpose``: matrices of the blocks are (inputs, outputs).
    """
    layers = [
        rules(
            {f"{layer}.{file_name}": f"{OURS}.{param_name}"},
            transpose=transpose and param_name not in NORMS,
        )
        for param_name, file_name in layer_names.items()
    ]
    ends = {
        f"{prefix}{token}": "embed.token",
        f"{prefix}wpe": "decoder.position",
        f"{prefix}{first_norm}": "decoder.first_norm",
        f"{prefix}{last_norm}": "decoder.last_norm",
        head: "head.proj",
    }
    return Table(
        (*more, *itertools.chain(*layers), *rules(ends)),
        # the causal mask, kept as if it were a weight
        ignore=tuple(f"{layer}.{name}" for name in MASKS),
        copies=((f"{head}.weight", f"{prefix}{token}.weight"),),
        prefix=prefix,
    )


MASKS = (
    *(f"attn.{name}" for name in ("bias", "masked_bias", "causal_mask")),
    *(f"attn.attention.{name}" for name in ("bias", "masked_bias")),
    *(f"attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq")),
)
TABLE = table(LAYERS, *fused("attn.c_attn", transpose=True), transpose=True)

GPT2 = Recipe(
    name="gpt2",
    paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners; Karpathy "
    "2022, nanoGPT",
    sizes={
        "124m": gpt2(768, 12, 12),
        "350m": gpt2(1024, 24, 16),
        "774m": gpt2(1280, 36, 20),
        "1.5b": gpt2(1600, 48, 25),
        "nanogpt": gpt2(768, 12, 12, vocab=50304, bias=False, act="gelu"),
    },
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    model_type="gpt2",
    tokenizer="openai-community/gpt2",
    read_config=read_config,
    write_config=write_config,
    weights=TABLE,
    layout=layout,
)
