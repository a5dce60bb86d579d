"""Nemotron-H: layers of Mamba-2, attention, feed-forward or routed experts, one norm each.

A layer that mixes tokens and a feed-forward layer after it are one block here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..core.config import (
    MLP,
    Attention,
    Block,
    Decoder,
    Embed,
    Head,
    Model,
    NoPosition,
    RMSNorm,
    Stack,
)
from ..core.errors import need
from . import decoders, mamba2, mixtures
from .decoders import FFN, OURS
from .keys import Key, read_keys, read_part, write_part
from .mixers import Mamba2
from .names import NameRule, Table, placed, rules
from .recipe import ConfigReader, Recipe, tile
from .routed import RoutedMoE

NORM = RMSNorm(1e-5)
LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
KINDS = tuple(LETTERS.values())
TYPES = (Mamba2, Attention, MLP, RoutedMoE)  # of the sublayers of these kinds


def nemotron_h(
    dim: int,
    context: int,
    attention: Attention,
    mixer: Mamba2,
    think: MLP | RoutedMoE,
    letters: str,
) -> Decoder:
    """The shape of Nemotron-H: 131,072 tokens; one of ``letters`` for each layer."""
    kinds = {"M": mixer, "*": attention, "-": think, "E": think}
    blocks = _blocks([kinds[letter] for letter in letters])
    stack = Stack(len(blocks), tile(blocks), NoPosition(), last_norm=NORM)
    return Decoder(dim, context, Embed(131_072), stack, Head(tied=False), decoders.INIT)


def _blocks(layers: Sequence[Any], norm: Any = NORM) -> list[Block]:
    """Layers as blocks: a feed-forward belongs to the mixer before it."""
    blocks: list[Block] = []
    for layer in layers:
        if type(layer) in (Attention, Mamba2):
            blocks.append(Block(layer, None, norm))
            continue
        need(
            bool(blocks) and blocks[-1].feedforward is None,
            "A feed-forward layer follows a layer of Mamba-2 or of attention here; use a model "
            "whose layers_block_type keeps to that.",
        )
        blocks[-1] = replace(blocks[-1], feedforward=layer)
    return blocks


def _layers(model: Model) -> list[tuple[str, Any]]:
    """The place and the sublayer of each layer of the files."""
    stack = decoders.stack(model)
    return [
        (f"{index}.{name}", sublayer)
        for index in range(stack.depth)
        for name, sublayer in stack.block(index).sublayers.items()
    ]


WORDS = mamba2.mixer_words(
    "mamba_num_heads mamba_head_dim ssm_state_size n_groups conv_kernel use_bias use_conv_bias "
    "layer_norm_epsilon"
) | {"time_step_min": "least_step"}
EXPERTS = (
    mixtures.ROUTED | mixtures.GROUPS | {"moe_shared_expert_intermediate_size": "shared.hidden"}
)
KEYS = decoders.without(
    decoders.keys(
        Key.flag("mlp_bias", f"{FFN}.bias", False),
        Key.only("attention_bias", False, "queries, keys and values have no biases"),
        Key.only("sliding_window", None, "attention sees everything"),
        Key.only("hidden_dropout", 0.0, "nothing is dropped"),
        Key.only("mamba_hidden_act", "silu", "the convolution and the gate here are silu"),
        Key.only("moe_latent_size", None, "experts read the whole width"),
        Key.only("n_shared_experts", 1, "one network is shared"),
        Key.only("num_nextn_predict_layers", 0, "no layer predicts later tokens"),
        context=4096,
        kv_heads=8,
        head_dim=128,
        act="relu2",
        act_names="mlp_hidden_act",
        eps=decoders.eps("layer_norm_epsilon", 1e-5),
        rotary=Key("", "decoder.position", lambda raw: NoPosition()),
    ),
    "num_hidden_layers",
)
_8B = nemotron_h(
    4096,
    8192,
    Attention(32, 8, 128),
    Mamba2(128, groups=8, least_step=0.001),
    MLP(21_504, "relu2"),
    "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
)


def read_config(raw: ConfigReader) -> Any:
    """A Nemotron-H config.json as our config."""
    model = read_keys(raw, decoders.with_attention_first(_8B, "nemotron_h"), KEYS)
    block = decoders.first_block(model)
    letters = raw.value("hybrid_override_pattern", "ME*-")
    raw.must(isinstance(letters, str), "hybrid_override_pattern", "a text of letters")
    listed = raw.value("layers_block_type", [LETTERS.get(letter, letter) for letter in letters])
    raw.must(isinstance(listed, list), "layers_block_type", "a list of layers' kinds")
    kinds = decoders.read_kinds(raw, KINDS, listed, "layers_block_type")
    mixer = mamba2.read_mixer(raw, WORDS, Mamba2(128, groups=8, least_step=0.001))
    think: Any = block.feedforward
    expert = replace(think, hidden=7688, bias=False)
    mixture: Any = RoutedMoE(8, 2, expert, shared=replace(think, hidden=7688))
    mixture = read_part(raw, mixture, EXPERTS) if "moe" in kinds else None
    sublayers = dict(zip(KINDS, (mixer, block.attention, think, mixture), strict=True))
    return decoders.with_layers(model, _blocks([sublayers[kind] for kind in kinds], block.norm))


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Nemotron-H config.json, as far as that can say it."""
    layers = [sublayer for _, sublayer in _layers(model)]
    need(
        {type(layer) for layer in layers} <= set(TYPES),
        "The nemotron_h layout holds Mamba2, Attention, MLP and RoutedMoE.",
    )
    mixture: Any = next((layer for layer in layers if isinstance(layer, RoutedMoE)), None)
    shared = mixture.shared if mixture else MLP(1, "relu2")
    think = next((layer for layer in layers if isinstance(layer, MLP)), shared)
    single = decoders.with_attention_first(model, "nemotron_h")
    block = replace(decoders.first_block(single), feedforward=think)
    return {
        **mamba2.write_mixer(model, WORDS, "expand"),
        **decoders.write(decoders.with_layers(single, [block]), KEYS),
        **(write_part(mixture, EXPERTS) if mixture else {}),
        "layers_block_type": [KINDS[TYPES.index(type(layer))] for layer in layers],
    }


_FILE = "backbone.layers.{i}"
_MIXER = f"{_FILE}.mixer"
_LINEAR = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "out",
    "up_proj": "up",
    "down_proj": "down",
    "gate": "router",
    "shared_experts.up_proj": "shared.up",
    "shared_experts.down_proj": "shared.down",
}
LAYER = (
    NameRule(f"{_FILE}.norm.weight", f"{OURS}_norm.weight"),
    *rules({f"{_MIXER}.{file}": f"{OURS}.{param}" for file, param in _LINEAR.items()}),
    *mamba2.mixer_rules(_MIXER, OURS),
    NameRule(f"{_MIXER}.gate.e_score_correction_bias", f"{OURS}.correction"),
    NameRule(f"{_MIXER}.experts.{{e}}.up_proj.weight", f"{OURS}.up"),
    NameRule(f"{_MIXER}.experts.{{e}}.down_proj.weight", f"{OURS}.down"),
)


def table(model: Model) -> Table:
    """The names of its weights, layer by layer."""
    outer = {"backbone.norm_f": "decoder.last_norm", "lm_head": "head.proj"}
    return Table(
        (
            NameRule("backbone.embeddings.weight", "embed.token.weight"),
            *rules(outer),
            *placed(LAYER, [place for place, _ in _layers(model)]),
        ),
        copies=(("lm_head.weight", "backbone.embeddings.weight"),),
        prefix="backbone.",
    )


NEMOTRON_H = Recipe(
    name="nemotron_h",
    paper="NVIDIA 2025, Nemotron-H: A Family of Accurate and Efficient Hybrid Mamba-Transformer "
    "Models (arXiv 2504.03624)",
    sizes={
        "8b": _8B,
        "nano-9b-v2": nemotron_h(
            4480,
            131_072,
            Attention(40, 8, 128),
            Mamba2(128, 80, groups=8, least_step=0.001),
            MLP(15_680, "relu2"),
            "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        ),
        "3-nano-30b-a3b": nemotron_h(
            2688,
            262_144,
            Attention(32, 2, 128),
            Mamba2(64, groups=8, least_step=0.001),
            RoutedMoE(
                128, 6, MLP(1856, "relu2"), shared=MLP(3712, "relu2"), normalize=True, scale=2.5
            ),
            "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        ),
    },
    architectures=("NemotronHForCausalLM", "NemotronHModel"),
    model_type="nemotron_h",
    tokenizer="nvidia/Nemotron-H-8B-Base-8K",
    read_config=read_config,
    write_config=write_config,
    weights=table,
)
