"""T5, its version 1.1 and Flan-T5: relative biases instead of positions, scores not scaled, RMSNorm
before.

The first version ties its head and scales what goes into it; 1.1 gates its MLPs and unties the
head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import MLP, Activation, GatedMLP
from ..core.config.init import Init
from ..core.config.model import (
    Attention,
    Block,
    Encoder,
    EncoderDecoder,
    Model,
    stacks,
)
from ..core.config.norm import RMSNorm
from ..core.config.position import RelativeBias
from ..core.errors import UserError
from .keys import (
    ACTIVATIONS,
    MOST_BLOCKS,
    keys,
    only,
    read_keys,
    read_start,
    write_keys,
    write_start,
)
from .names import NameRule, Table
from .recipe import MISSING, ConfigReader, Recipe, Settings
from .vaswani import pair

WHOLE, ENCODER = "T5ForConditionalGeneration", "T5EncoderModel"

# Their words for a feed-forward: gated or not, and its activation.
PROJECTIONS: dict[str, tuple[bool, Activation]] = {
    **{name: (False, act) for name, act in ACTIVATIONS.items()},
    **{f"gated-{name}": (True, act) for name, act in ACTIVATIONS.items()},
    "gated-gelu": (True, "gelu_tanh"),  # as trained, whatever the word says
}


def t5(dim: int, depth: int, heads: int, head_dim: int, hidden: int) -> EncoderDecoder:
    """The shape of the first T5: ReLU, a tied head; trained on 512 tokens."""
    head = Head(scale=dim**-0.5)  # the embedding's table, of what was scaled down
    return build(
        dim, depth, Attention(heads, head_dim=head_dim, scale=1.0), MLP(hidden, "relu"), head
    )


def t5_v1_1(dim: int, depth: int, heads: int, hidden: int) -> EncoderDecoder:
    """The shape of T5 1.1 and Flan-T5: gated GELU, heads of 64, the head a table of its own."""
    attention = Attention(heads, head_dim=64, scale=1.0)
    return build(dim, depth, attention, GatedMLP(hidden, "gelu_tanh"), Head(tied=False))


def alone(model: EncoderDecoder) -> Encoder:
    """Its encoder without the rest: what reads the text for image models and sentence vectors."""
    return Encoder(model.dim, model.context, model.embed, model.encoder, None, model.init)


def build(
    dim: int, depth: int, attention: Attention, mlp: MLP | GatedMLP, head: Head
) -> EncoderDecoder:
    """An encoder and a decoder of this depth with T5's usual biases, norms and dropout; a table of
    biases for each."""
    return pair(
        dim,
        512,
        Embed(32_128),
        (depth, depth),
        Block(attention, mlp),
        RelativeBias(),
        head,
        Init(0.02, 1.0, "plain"),
        last_norm=RMSNorm(),
        dropout=0.1,
    )


KEYS = (
    only("is_decoder", False, "a T5 decoder here stands beside its encoder"),
    *keys(
        "d_model",
        d_kv=(64, "attention.head_dim cross.head_dim"),
        d_ff=MISSING,
        num_heads=(MISSING, "attention.heads cross.heads"),
        num_layers=(MISSING, "encoder.depth"),
        n_positions=(512, "context"),
        vocab_size=MISSING,
        relative_attention_num_buckets=(32, "position.buckets"),
        relative_attention_max_distance=(128, "position.distance"),
        layer_norm_epsilon=1e-6,
        dropout_rate=(0.1, "dropout"),
    ),
)


def read_config(raw: ConfigReader) -> Model:
    """A T5 config.json as our config; ``dropout_rate`` is the stacks' one dropout.

    Whether the head is tied is read from the weights where they are known: transformers 5 writes
    ``tie_word_embeddings`` true whatever the model, and keeps the scaling under a word of its own.
    """
    gated, act = raw.choice("feed_forward_proj", PROJECTIONS, "relu")
    # what transformers makes of that word, and keeps beside it
    raw.only("is_gated_act", gated, "feed_forward_proj says otherwise")
    kept = raw.choice(
        "dense_act_fn", ACTIVATIONS, next(k for k, v in ACTIVATIONS.items() if v == act)
    )
    raw.must(kept == act, "dense_act_fn", f'the activation of feed_forward_proj, "{act}"')
    mlp = (GatedMLP if gated else MLP)(1, act)
    model = read_keys(raw, build(64, 1, Attention(1, head_dim=64, scale=1.0), mlp, Head()), KEYS)
    depth = raw.integer("num_decoder_layers", model.encoder.depth, most=MOST_BLOCKS)
    stated = tied = raw.flag("tie_word_embeddings", True)
    if raw.weights is not None:
        shared = stated and raw.holds("shared.weight")
        tied = not raw.holds("lm_head.weight") or (
            shared and raw.weights.equal("lm_head.weight", "shared.weight")
        )
    head = Head(
        tied=tied, scale=model.dim**-0.5 if raw.flag("scale_decoder_outputs", stated) else 1.0
    )
    decoder = replace(stacks(model)["decoder"], depth=depth)
    model = replace(model, decoder=decoder, head=head, start=read_start(raw))
    return alone(model) if raw.architecture(WHOLE).endswith(ENCODER) else model


def write_config(model: Model) -> Settings:
    """Our config as a T5 config.json, as far as that can say it."""
    encoder = stacks(model)["encoder"]
    raw = {
        "architectures": [ENCODER if isinstance(model, Encoder) else WHOLE],
        **write_keys(model, KEYS),
    }
    mlp: Any = encoder.pattern[0].feedforward
    mlp = getattr(mlp, "expert", mlp)
    names = {act: name for name, act in reversed(PROJECTIONS.items())}
    kind = (isinstance(mlp, GatedMLP), mlp.act)
    if kind not in names:
        raise UserError(f"The t5 layout has no {'gated ' if kind[0] else ''}activation {mlp.act}.")
    raw |= {
        "num_decoder_layers": stacks(model).get("decoder", encoder).depth,
        "feed_forward_proj": names[kind],
        "pad_token_id": 0,
        "eos_token_id": 1,
        **write_start(model),
    }
    if model.head is None:
        return raw
    return {
        **raw,
        "tie_word_embeddings": model.head.tied,
        "scale_decoder_outputs": model.head.scale != 1.0,
    }


_ATTENTION = {"q": "q", "k": "k", "v": "v", "o": "out"}
# of each side, the layers of a block in the file's words and in ours
_LAYERS = {
    "encoder": {"SelfAttention": "attn", "DenseReluDense": "ffn"},
    "decoder": {"SelfAttention": "attn", "EncDecAttention": "cross", "DenseReluDense": "ffn"},
}


def table(model: Model) -> Table:
    """The names of the weights; a gated MLP's differ from a plain one's."""
    block = stacks(model)["encoder"].pattern[0]
    gated = isinstance(block.feedforward, GatedMLP)
    wide = {"wi_0": "gate", "wi_1": "up"} if gated else {"wi": "up"}
    names = {"shared": "embed.token", "lm_head": "head.proj"}
    for side, layers in _LAYERS.items():
        for number, (file_name, param_name) in enumerate(layers.items()):
            file = f"{side}.block.{{i}}.layer.{number}"
            param = f"{side}.blocks.{{i}}.{param_name}"
            inner = {**wide, "wo": "down"} if param_name == "ffn" else _ATTENTION
            names |= {f"{file}.{file_name}.{a}": f"{param}.{b}" for a, b in inner.items()}
            names[f"{file}.layer_norm"] = f"{param}_norm"
        bias = "layer.0.SelfAttention.relative_attention_bias"
        if block.position:  # umT5: a table in each block
            names[f"{side}.block.{{i}}.{bias}"] = f"{side}.blocks.{{i}}.position"
        else:
            names[f"{side}.block.0.{bias}"] = f"{side}.position"
        names |= {f"{side}.final_layer_norm": f"{side}.last_norm"}
    twins = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    return Table(
        tuple(NameRule(f"{a}.weight", f"{b}.weight") for a, b in names.items()),
        # nothing ever read it
        ignore=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
        copies=tuple((name, "shared.weight") for name in (*twins, "lm_head.weight")),
        # files that keep the table under one of these
        renamed=tuple((name, "shared.weight") for name in twins),
    )


_11 = {
    "small": t5_v1_1(512, 8, 6, 1024),
    "base": t5_v1_1(768, 12, 12, 2048),
    "large": t5_v1_1(1024, 24, 16, 2816),
    "xl": t5_v1_1(2048, 24, 32, 5120),
    "xxl": t5_v1_1(4096, 24, 64, 10_240),
}

T5 = Recipe(
    name="t5",
    paper="Raffel et al. 2020 (arXiv 1910.10683); Shazeer 2020 (the gates of 1.1); Chung et al. "
    "2022 (Flan)",
    sizes={
        "small": t5(512, 6, 8, 64, 2048),
        "base": t5(768, 12, 12, 64, 3072),
        "large": t5(1024, 24, 16, 64, 4096),
        "3b": t5(1024, 24, 32, 128, 16_384),
        "11b": t5(1024, 24, 128, 128, 65_536),
        **{f"1.1-{size}": model for size, model in _11.items()},
        **{f"flan-{size}": model for size, model in _11.items()},
        **{f"1.1-{size}-encoder": alone(model) for size, model in _11.items()},
    },
    architectures=(WHOLE, ENCODER, "T5WithLMHeadModel", "T5Model"),
    model_type="t5",
    tokenizer="spiece.model beside the published weights (Unigram, 100 sentinels)",
    checkpoint="google-t5/t5-small",
    read_config=read_config,
    write_config=write_config,
    weights=table,
)
