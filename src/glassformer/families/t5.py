"""T5, its version 1.1 and Flan-T5: relative biases instead of positions, scores not scaled, RMSNorm
before.

The first version ties its head and scales what goes into it; 1.1 gates its MLPs and unties the
head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.layers import MLP, Activation, GatedMLP, Head, Init, RMSNorm
from ..core.config.model import (
    Attention,
    Block,
    Encoder,
    EncoderDecoder,
    Model,
)
from ..core.config.position import NoPosition, RelativeBias
from ..core.errors import need
from .ends import TOKENS
from .keys import (
    ACTIVATIONS,
    MOST_BLOCKS,
    MOST_HIDDEN,
    ConfigWords,
    Key,
    Section,
    act_name,
    keys,
)
from .names import Table, rules, under
from .pair_pages import one_table, start, template
from .recipe import MISSING, ConfigReader, Settings, page

# Their words for a feed-forward: gated or not, and its activation.
PROJECTIONS: dict[str, tuple[bool, Activation]] = {
    **{name: (False, act) for name, act in ACTIVATIONS.items()},
    **{f"gated-{name}": (True, act) for name, act in ACTIVATIONS.items()},
    "gated-gelu": (True, "gelu_tanh"),  # as trained, whatever the word says
}


def alone(model: EncoderDecoder) -> Encoder:
    """Its encoder without the rest: what reads the text for image models and sentence vectors."""
    return Encoder(model.dim, model.context, model.embed, model.encoder, None, model.init)


def _feedforward(raw: ConfigReader) -> MLP | GatedMLP:
    gated, act = raw.choice("feed_forward_proj", PROJECTIONS, "relu")
    # what transformers makes of that word, and keeps beside it
    raw.only("is_gated_act", gated, "feed_forward_proj says otherwise")
    stated = raw.choice("dense_act_fn", ACTIVATIONS, act_name(act))
    raw.must(stated == act, "dense_act_fn", f'the activation of feed_forward_proj, "{act}"')
    return (GatedMLP if gated else MLP)(raw.integer("d_ff", most=MOST_HIDDEN), act)


def _write_feedforward(mlp: Settings) -> str:
    mlp = mlp.get("expert", mlp)
    names = {act: name for name, act in reversed(PROJECTIONS.items())}
    gated, act = mlp["type"] == "GatedMLP", mlp["act"]
    need((gated, act) in names, f"The t5 layout has no {'gated ' * gated}activation {act}.")
    return names[gated, act]


KEYS = keys(
    "d_model",
    d_kv=(64, "attention.head_dim cross.head_dim"),
    d_ff=MISSING,
    feed_forward_proj=Key("feed_forward_proj", "feedforward", _feedforward, _write_feedforward),
    num_heads=(MISSING, "attention.heads cross.heads"),
    num_layers=(MISSING, "encoder.depth"),
    n_positions=(512, "context"),
    vocab_size=MISSING,
    relative_attention_num_buckets=(32, "position.buckets"),
    relative_attention_max_distance=(128, "position.distance"),
    layer_norm_epsilon=1e-6,
    dropout_rate=(0.1, "dropout"),
)
START = start()


def ends(scales: bool) -> Section:
    """The head of a model, the depth of its decoder and what a target begins with; an encoder alone
    has none. ``scales``: what goes into a tied head, where the file does not say otherwise.

    Whether the head is tied is read from the weights where they are known: transformers 5 writes
    ``tie_word_embeddings`` true whatever the model, and keeps the scaling under a word of its own.
    """

    def decode(raw: ConfigReader, model: EncoderDecoder) -> Model:
        depth = raw.integer("num_decoder_layers", raw.integer("num_layers"), most=MOST_BLOCKS)
        stated = tied = raw.flag("tie_word_embeddings", True)
        if raw.weights is not None:
            shared = stated and raw.holds("shared.weight")
            tied = not raw.holds("lm_head.weight") or (
                shared and raw.weights.equal("lm_head.weight", "shared.weight")
            )
        scaled = scales and raw.flag("scale_decoder_outputs", stated)
        head = Head(tied=tied, scale=model.dim**-0.5 if scaled else 1.0)
        decoder = replace(model.stacks["decoder"], depth=depth)
        model = START.decode(raw, replace(model, decoder=decoder, head=head))
        if raw.architecture("").endswith(("EncoderModel", TOKENS)):
            return alone(model)
        return model

    def encode(model: Model) -> Settings:
        sides = model.stacks
        raw = {
            "num_decoder_layers": sides.get("decoder", sides["encoder"]).depth,
            "pad_token_id": 0,
            "eos_token_id": 1,
            **START.encode(model),
        }
        if model.head is None:
            return raw
        scaled = {"scale_decoder_outputs": model.head.scale != 1.0} if scales else {}
        return {**raw, **scaled, "tie_word_embeddings": model.head.tied}

    return Section(decode, encode)


def words(scales: bool = True, inside: bool = False, **defaults: Any) -> ConfigWords:
    """The words of a family; ``scales`` as ``ends`` has it; ``inside``: each block has a table of
    biases; ``defaults``: words that a file may lack."""
    position: Any = RelativeBias()
    block = Block(Attention(1, head_dim=64, scale=1.0), MLP(1), RMSNorm())
    if inside:
        block, position = replace(block, position=position), NoPosition()
    model = template(block, position, last_norm=block.norm, init=Init(0.02, 1.0, "plain"))
    unsaid = Section(encode=lambda model: {"decoder_start_token_id": None} if defaults else {})
    return ConfigWords(model, (*KEYS, unsaid, ends(scales)), defaults)


_ATTENTION = {"q": "q", "k": "k", "v": "v", "out": "o"}
# of each side, the layers of a block, by our words, in the file's, with their numbers
_LAYERS = {
    "encoder": {"attn": "0.SelfAttention", "ffn": "1.DenseReluDense"},
    "decoder": {"attn": "0.SelfAttention", "cross": "1.EncDecAttention", "ffn": "2.DenseReluDense"},
}


def table(model: Model) -> Table:
    """The names of the weights; a gated MLP's differ from a plain one's."""
    block = model.stacks["encoder"].pattern[0]
    gated = isinstance(block.feedforward, GatedMLP)
    wide = {"gate": "wi_0", "up": "wi_1"} if gated else {"up": "wi"}
    names = {"embed.token": "shared", "head.proj": "lm_head"}
    for side, layers in _LAYERS.items():
        place, file = f"{side}.blocks.{{i}}.", f"{side}.block.{{i}}.layer."
        bias = "0.SelfAttention.relative_attention_bias"
        names |= {
            f"{place}position": f"{file}{bias}",  # umT5: in each block
            f"{side}.position": f"{side}.block.0.layer.{bias}",
            f"{side}.last_norm": f"{side}.final_layer_norm",
        }
        for name, layer in layers.items():
            inner = {**wide, "down": "wo"} if name == "ffn" else _ATTENTION
            names |= under(f"{file}{layer}", inner, f"{place}{name}.")
            names[f"{place}{name}_norm"] = f"{file}{layer[0]}.layer_norm"
    return Table(
        rules(names),
        # nothing ever read it
        ignore=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
        **one_table(),
    )


page("t5", words=words(), weights=table)
