"""Nemotron-H: layers of Mamba-2, attention, feed-forward or routed experts, one norm each.

A layer that mixes tokens and a feed-forward layer after it are one block here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..core.config import MLP, Attention, Block, Model, NoPosition
from ..core.errors import need
from . import mamba2
from .decoder_pages import (
    OURS,
    blocks_of,
    decoder,
    first_block,
    first_layer,
    read_kinds,
    turned,
    with_blocks,
    words,
)
from .keys import Section, keys, layer_keys, read_keys, write_keys
from .mamba2 import HEAD_DIM, LAYERS, TABLES, UNLIMITED
from .mixers import Mamba2
from .names import NameRule, Table, placed, under
from .recipe import MISSING, ConfigReader, Settings, page
from .routed import RoutedMoE

LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
KINDS = tuple(LETTERS.values())
TYPES = (Mamba2, Attention, MLP, RoutedMoE)  # of the sublayers of these kinds


def _blocks(layers: Sequence[Any], norm: Any) -> list[Block]:
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
    return [
        (f"{index}.{name}", sublayer)
        for index, block in enumerate(blocks_of(model))
        for name, sublayer in block.sublayers.items()
    ]


USUAL = Mamba2(128, groups=8, least_step=0.001)
MIXTURE = RoutedMoE(8, 2, MLP(7688, "relu2"), shared=MLP(7688, "relu2"))
MIXER = layer_keys(
    USUAL,
    mamba_num_heads="state_heads",
    mamba_head_dim="head_dim",
    ssm_state_size="state",
    n_groups="groups",
    conv_kernel="kernel",
    use_bias="bias",
    use_conv_bias="conv_bias",
    layer_norm_epsilon="eps",
    time_step_min="least_step",
)
THINK = keys(
    intermediate_size=(MISSING, "hidden"),
    mlp_hidden_act=("relu2", "act"),
    mlp_bias=(False, "bias"),
)
EXPERTS = layer_keys(
    MIXTURE,
    n_routed_experts="experts",
    num_experts_per_tok="top_k",
    moe_intermediate_size="expert.hidden",
    moe_shared_expert_intermediate_size="shared.hidden",
    norm_topk_prob="normalize",
    routed_scaling_factor="scale",
    n_group="groups",
    topk_group="top_groups",
)


def _read_layers(raw: ConfigReader, model: Any) -> Any:
    """The model with the layers that the file lists, or has a letter for."""
    letters = raw.value("hybrid_override_pattern", "ME*-")
    raw.must(isinstance(letters, str), "hybrid_override_pattern", "a text of letters")
    listed = raw.value("layers_block_type", [LETTERS.get(letter, letter) for letter in letters])
    raw.must(isinstance(listed, list), "layers_block_type", "a list of layers' kinds")
    kinds = read_kinds(raw, KINDS, listed, "layers_block_type")
    block = first_block(model)
    think = read_keys(raw, MLP(1), THINK)
    mixer, attention = read_keys(raw, USUAL, MIXER), block.attention
    sublayers = {"linear_attention": mixer, "full_attention": attention, "mlp": think}
    if "moe" in kinds:
        mixture = replace(MIXTURE, expert=replace(think, bias=False), shared=think)
        sublayers["moe"] = read_keys(raw, mixture, EXPERTS)
    return with_blocks(model, _blocks([sublayers[kind] for kind in kinds], block.norm))


def _write_layers(model: Model) -> Settings:
    layers = [sublayer for _, sublayer in _layers(model)]
    need(
        {type(layer) for layer in layers} <= set(TYPES),
        "The nemotron_h layout holds Mamba2, Attention, MLP and RoutedMoE.",
    )
    mixture = first_layer(model, MIXTURE, "feedforward")
    return {
        **(write_keys(mixture, EXPERTS) if mixture in layers else {}),
        **write_keys(first_layer(model, mixture.shared, "feedforward"), THINK),
        **write_keys(first_layer(model, USUAL), MIXER),
        "layers_block_type": [KINDS[TYPES.index(type(layer))] for layer in layers],
    }


_LINEAR = {
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "out": "o_proj",
    "up": "up_proj",
    "down": "down_proj",
    "router": "gate",
    "shared.up": "shared_experts.up_proj",
    "shared.down": "shared_experts.down_proj",
}
_ALONE = {
    **TABLES,
    "correction": "gate.e_score_correction_bias",
    "up": "experts.{e}.up_proj.weight",
    "down": "experts.{e}.down_proj.weight",
}
TABLE = mamba2.table(
    under("mixer", {**_LINEAR, **LAYERS}, ""),
    tables=under("mixer", _ALONE, ""),
    more=(NameRule(f"{mamba2.LAYER}.norm.weight", f"{OURS}_norm.weight"),),
)


def weights(model: Model) -> Table:
    """The names of its weights, layer by layer."""
    return replace(TABLE, rules=placed(TABLE.rules, [place for place, _ in _layers(model)]))


page(
    "nemotron_h",
    words=words(
        decoder(feedforward=None, position=NoPosition()),
        UNLIMITED,
        HEAD_DIM,
        turned(lambda raw: NoPosition()),
        Section(_read_layers, _write_layers),
        without="num_hidden_layers intermediate_size hidden_act",
        rope=Section(),
        max_position_embeddings=4096,
        num_key_value_heads=8,
        head_dim=128,
        layer_norm_epsilon=1e-5,
    ),
    weights=weights,
)
