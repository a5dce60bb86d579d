"""What DeepSeek's kin share: the words of a routed mixture in a config.json, the names of its weights,
and blocks that predict later tokens, which a file may hold beside the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.config import Block, Decoder, GatedMLP, Model, MoE
from ..core.errors import UserError
from . import decoders
from .decoders import OURS, THEIRS
from .keys import MOST_BLOCKS, MOST_HEADS, read_part, write_part
from .names import NameRule, Table
from .recipe import ConfigReader
from .routed import RoutedMoE

EXPERTS = tuple(
    NameRule(f"{THEIRS}.mlp.experts.{{e}}.{layer}_proj.weight", f"{OURS}.ffn.{layer}")
    for layer in ("gate", "up", "down")
)
ROUTER = (
    NameRule(f"{THEIRS}.mlp.gate.weight", f"{OURS}.ffn.router.weight"),
    NameRule(f"{THEIRS}.mlp.gate.e_score_correction_bias", f"{OURS}.ffn.correction"),
)
LAYERS = {
    **decoders.GATED,
    **decoders.NORMS,
    **{
        f"ffn.shared.{layer}": f"mlp.shared_experts.{layer}_proj"
        for layer in ("gate", "up", "down")
    },
}
GATED = {
    "ffn.router": "mlp.gate",
    "ffn.shared.gate": "mlp.shared_expert.gate_proj",
    "ffn.shared.up": "mlp.shared_expert.up_proj",
    "ffn.shared.down": "mlp.shared_expert.down_proj",
    "ffn.shared.share": "mlp.shared_expert_gate",
}
WORDS = {
    "num_experts": "experts",
    "num_experts_per_tok": "top_k",
    "moe_intermediate_size": "expert.hidden",
    "norm_topk_prob": "normalize",
    "router_aux_loss_coef": "balance_loss",
}
ROUTED = {
    "n_routed_experts": "experts",
    "num_experts_per_tok": "top_k",
    "moe_intermediate_size": "expert.hidden",
    "norm_topk_prob": "normalize",
    "routed_scaling_factor": "scale",
}
GROUPS = {"n_group": "groups", "topk_group": "top_groups"}
SHARED_WORD = {"shared_expert_intermediate_size": "shared.hidden"}


def mixed(raw: ConfigReader, blocks: Sequence[Block], default: MoE) -> list[Block]:
    """The blocks of a Qwen, with a mixture in those that the file does not call dense; ``default`` has
    the sizes of a file that does not say."""
    dense, step = raw.value("mlp_only_layers", []), raw.integer("decoder_sparse_step", 1)
    raw.must(isinstance(dense, list), "mlp_only_layers", "a list of blocks' numbers")
    mixes = [i not in dense and (i + 1) % step == 0 for i in range(len(blocks))]
    mixture = read_part(raw, default, WORDS | (SHARED_WORD if default.shared else {}))
    return [
        replace(block, feedforward=mixture) if mix else block
        for block, mix in zip(blocks, mixes, strict=True)
    ]


def write_mixed(model: Model, layout: str) -> dict[str, Any]:
    """A Qwen's words of its mixture, and which blocks are dense."""
    stack = decoders.stack(model)
    thinks: list[Any] = [stack.block(i).feedforward for i in range(stack.depth)]
    mixture = next((think for think in thinks if isinstance(think, MoE)), None)
    dense = [i for i, think in enumerate(thinks) if not isinstance(think, MoE)]
    if mixture is None:
        raise UserError(f"The {layout} layout holds only mixtures of experts.")
    return {
        **write_part(mixture, WORDS | (SHARED_WORD if mixture.shared else {})),
        "intermediate_size": getattr(thinks[dense[0]] if dense else mixture.expert, "hidden", 0),
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense,
    }


def count(raw: ConfigReader, key: str, default: int) -> int:
    """An integer from 0 on."""
    value = raw.value(key, default)
    raw.must(type(value) is int and 0 <= value <= MOST_BLOCKS, key, "a number of blocks, or 0")
    return int(value)


def read_mixture(
    raw: ConfigReader, mlp: GatedMLP, default: RoutedMoE, words: Mapping[str, str]
) -> RoutedMoE:
    """The mixture of a config.json whose dense blocks have ``mlp``; ``default`` where the file does
    not say."""
    raw.only("moe_layer_freq", 1, "every block after the dense ones is a mixture")
    shared = raw.integer("n_shared_experts", _shared(default), most=MOST_HEADS)
    experts = raw.value("num_local_experts", None)
    expert = replace(mlp, hidden=default.expert.hidden, bias=False)
    raw = replace(raw, table={"n_routed_experts": experts, **raw.table})
    mixture = read_part(raw, replace(default, expert=expert), words)
    return replace(mixture, shared=replace(mlp, hidden=shared * mixture.expert.hidden))


def _shared(mixture: RoutedMoE) -> int:
    """Number of experts that the shared network is as wide as."""
    return mixture.shared.hidden // mixture.expert.hidden if mixture.shared else 0


def with_mixture(raw: ConfigReader, model: Decoder, mixture: RoutedMoE, dense: int) -> Decoder:
    """The model with a mixture in every block but the first; ``dense`` of these where the file does
    not say."""
    block, depth = decoders.first_block(model), model.decoder.depth
    first = min(count(raw, "first_k_dense_replace", dense), depth)
    mixes = replace(block, feedforward=mixture)
    return decoders.with_blocks(model, [block] * first + [mixes] * (depth - first))


def write_mixture(model: Model, layout: str) -> dict[str, Any]:
    """The words of the model's mixture and of its dense blocks."""
    stack = decoders.stack(model)
    thinks = [stack.block(i).feedforward for i in range(stack.depth)]
    mixture = next((think for think in thinks if isinstance(think, RoutedMoE)), None)
    if mixture is None or mixture.shared is None:
        raise UserError(f"The {layout} layout holds only mixtures with a shared expert.")
    if mixture.shared.hidden % mixture.expert.hidden:
        raise UserError(f"The {layout} layout has a shared expert as wide as several experts.")
    dense = [think for think in thinks if isinstance(think, GatedMLP)]
    return {
        **write_part(mixture, ROUTED | GROUPS),
        "intermediate_size": dense[0].hidden if dense else mixture.shared.hidden,
        "n_shared_experts": _shared(mixture),
        "first_k_dense_replace": len(dense),
    }


def table(layer_names: Mapping[str, str]) -> Callable[[Model], Table]:
    """The table of names for a model: blocks after its last, which predict later tokens, are
    ignored."""
    names = decoders.table({**layer_names, **LAYERS}, *ROUTER, *EXPERTS)

    def of(model: Model) -> Table:
        after = f"model.layers.{decoders.stack(model).depth}"
        inside = [rule.file_name for rule in names.rules if rule.file_name.startswith(THEIRS)]
        inside += [f"{THEIRS}.{name}.weight" for name in ("enorm", "hnorm", "eh_proj")]
        inside += [f"{THEIRS}.{name}.weight" for name in ("shared_head.norm", "shared_head.head")]
        inside.append(f"{THEIRS}.embed_tokens.weight")
        later = tuple(name.replace(THEIRS, after) for name in inside)
        return replace(names, ignore=names.ignore + later)

    return of
