"""The parts that DeepSeek's kin share: the words of a routed mixture in a config.json, the names of
its weights, and blocks that predict later tokens, which a file may hold beside the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..core.config import GatedMLP, Model
from ..core.errors import need
from . import decoder_pages
from .decoder_pages import (
    EXPERTS,
    GATED,
    NORMS,
    PROJECTIONS,
    THEIRS,
    LayerChoice,
    blocks_of,
    variant,
)
from .keys import MOST_BLOCKS, MOST_HEADS, MOST_HIDDEN, Key, Section, experts_key
from .names import Names, Table, under
from .recipe import ConfigReader, Settings
from .routed import RoutedMoE

NAMES = {**EXPERTS, "ffn.correction": "mlp.gate.e_score_correction_bias"}
SHARED = under("mlp.shared_experts", PROJECTIONS, "ffn.shared.")
UNPREDICTED = Section(encode=lambda model: {"num_nextn_predict_layers": 0})


def routed(
    layout: str,
    default: RoutedMoE,
    dense: int,
    grouped: Callable[[ConfigReader], bool] = lambda raw: True,
) -> Section:
    """A routed mixture in every block but the first ``dense``; numbers are those where the file does
    not say. ``grouped``: whether it chooses within groups."""
    hidden, shared = default.expert.hidden, default.shared

    def groups(word: str, place: str) -> Key:
        usual = getattr(default, place)
        return Key(
            word,
            place,
            lambda raw: raw.integer(word, usual, most=MOST_HEADS) if grouped(raw) else 1,
        )

    def wide(raw: ConfigReader) -> Any:
        """The width of the shared expert: that of so many experts."""
        usual = shared.hidden // hidden if shared else 0
        count = raw.integer("n_shared_experts", usual, most=MOST_HEADS)
        return count * raw.integer("moe_intermediate_size", hidden, most=MOST_HIDDEN)

    def scale(raw: ConfigReader) -> Any:
        return raw.number("routed_scaling_factor", default.scale, least=1e-6)

    def make(raw: ConfigReader, mlp: GatedMLP) -> RoutedMoE:
        raw.only("moe_layer_freq", 1, "every block after the dense ones is a mixture")
        return replace(default, expert=replace(mlp, bias=False), shared=mlp)

    def first_dense(raw: ConfigReader, depth: int) -> list[bool]:
        count = raw.value("first_k_dense_replace", dense)
        fits = type(count) is int and 0 <= count <= MOST_BLOCKS
        raw.must(fits, "first_k_dense_replace", "a number of blocks, or 0")
        return [i >= count for i in range(depth)]

    def write_dense(mixtures: Sequence[bool]) -> Settings:
        return {"first_k_dense_replace": len(mixtures) - sum(mixtures)}

    missing = f"The {layout} layout holds only mixtures with a shared expert."
    section = variant(
        "feedforward",
        default,
        LayerChoice(first_dense, write_dense),
        make,
        missing,
        moe_intermediate_size="expert.hidden",
        n_routed_experts=experts_key("n_routed_experts", default.experts),
        num_experts_per_tok="top_k",
        n_shared_experts=Key("n_shared_experts", "shared.hidden", wide),
        norm_topk_prob="normalize",
        routed_scaling_factor=Key("routed_scaling_factor", "scale", scale),
        n_group=groups("n_group", "groups"),
        topk_group=groups("topk_group", "top_groups"),
    )

    def encode(model: Model) -> Settings:
        raw = section.encode(model)
        width, remainder = divmod(raw["n_shared_experts"], raw["moe_intermediate_size"])
        need(not remainder, f"The {layout} layout has a shared expert as wide as several experts.")
        if not raw["first_k_dense_replace"]:
            raw["intermediate_size"] = raw["n_shared_experts"]
        return {**raw, "n_shared_experts": width}

    return replace(section, encode=encode)


def table(*layers: Names) -> Callable[[Model], Table]:
    """The table of names for a model: blocks after its last, which predict later tokens, are
    ignored."""
    names = decoder_pages.table(*layers, GATED, NORMS, SHARED, tables=NAMES)
    inside = [rule.file_name for rule in names.rules if rule.file_name.startswith(THEIRS)]
    later = ("enorm", "hnorm", "eh_proj", "shared_head.norm", "shared_head.head", "embed_tokens")
    inside += [f"{THEIRS}.{name}.weight" for name in later]

    def of(model: Model) -> Table:
        after = f"model.layers.{len(blocks_of(model))}"
        return replace(
            names, ignore=(*names.ignore, *(name.replace(THEIRS, after) for name in inside))
        )

    return of
