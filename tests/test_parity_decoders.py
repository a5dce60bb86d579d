"""Logits and weights of the decoders after Llama against transformers: theirs loaded here, ours loaded there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer import UserError, config, recipes, serial, store
from glassformer.cost import cost
from glassformer.nn import Cache, build_model
from test_parity import STRETCH, TOLERANCE, VOCAB, difference, files, shaken, tokens, transformers

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
    "pad_token_id": None,
}
WINDOWS = {"use_sliding_window": True, "sliding_window": 7}
FAMILIES: dict[str, dict[str, dict[str, Any]]] = {
    "Mixtral": {
        "plain": {},
        "one of five": {"num_local_experts": 5, "num_experts_per_tok": 1},
        "three of four": {"num_local_experts": 4, "num_experts_per_tok": 3},
        "all of two": {"num_local_experts": 2},
        "window": {"sliding_window": 7},
        "tied, mha": {"tie_word_embeddings": True, "num_key_value_heads": 4},
        "wide heads, gelu": {"head_dim": 14, "hidden_act": "gelu"},
        "llama3 stretch": {"rope_scaling": STRETCH, "router_aux_loss_coef": 0.0},
    },
    "Qwen2": {
        "plain": {},
        "tied, mqa": {"tie_word_embeddings": True, "num_key_value_heads": 1},
        "windows from the second": {**WINDOWS, "max_window_layers": 1},
        "windows everywhere": {**WINDOWS, "max_window_layers": 0},
        "window in the middle": {**WINDOWS, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        "alternating": {**WINDOWS, "layer_types": ["full_attention", "sliding_attention"] * 2, "num_hidden_layers": 4},
        "yarn": {"rope_scaling": YARN},
        "yarn, all said": {"rope_scaling": {**YARN, "beta_fast": 8.0, "beta_slow": 0.5, "attention_factor": 1.3}},
        "wide heads": {"head_dim": 14},
        "narrow heads": {"head_dim": 6, "num_attention_heads": 8, "num_key_value_heads": 4},
    },
    "Qwen3": {
        "plain": {"head_dim": 8},
        "wide heads, tied": {"head_dim": 14, "tie_word_embeddings": True},
        "heads that do not divide": {"head_dim": 6, "num_attention_heads": 6},
        "biases": {"head_dim": 8, "attention_bias": True},
        "windows": {"head_dim": 8, **WINDOWS, "max_window_layers": 2},
        "yarn": {"head_dim": 8, "rope_scaling": YARN},
    },
    "Qwen3Moe": {
        "plain": {"head_dim": 8, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20},
        "normalised": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 3, "norm_topk_prob": True},
        "one, not normalised": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 1},
        "every second": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 2},
        "dense in the middle": {
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "mlp_only_layers": [1],
            "moe_intermediate_size": 20,
            "use_sliding_window": True,
            "sliding_window": 9,
        },
    },
    "Phi": {
        "plain": {"num_key_value_heads": None},
        "a quarter turns": {"partial_rotary_factor": 0.25},
        "wide heads": {"head_dim": 14, "partial_rotary_factor": 0.6},
        "normalised queries": {"qk_layernorm": True},
        "tied, exact gelu": {"tie_word_embeddings": True, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
        "stretched": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "num_key_value_heads": 1},
        "dropout": {"resid_pdrop": 0.1},
    },
    "Phi3": {
        "plain": {"sliding_window": 7},
        "mqa, tied": {"sliding_window": 7, "num_key_value_heads": 1, "tie_word_embeddings": True},
        "part turns": {"partial_rotary_factor": 0.75},
        "wide heads": {"sliding_window": 1000, "head_dim": 14},
        "dropout": {"resid_pdrop": 0.2},
    },
    "Starcoder2": {
        "plain": {},
        "window": {"sliding_window": 7},
        "no biases": {"use_bias": False, "sliding_window": 5},
        "untied, mha": {"tie_word_embeddings": False, "num_key_value_heads": 4, "residual_dropout": 0.1},
        "relu, wide heads": {"hidden_act": "relu", "head_dim": 14, "norm_epsilon": 1e-3},
    },
    "Gemma": {
        "plain": {"head_dim": 16},
        "mqa, biases": {"head_dim": 8, "num_key_value_heads": 1, "attention_bias": True},
        "untied, old gelu": {"head_dim": 6, "tie_word_embeddings": False, "hidden_act": "gelu"},
    },
    "Gemma2": {
        "plain": {"head_dim": 16, "sliding_window": 6, "num_hidden_layers": 4},
        "odd depth": {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 9},
        "no caps": {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None},
        "low caps": {"head_dim": 6, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        "full everywhere": {"head_dim": 8, "layer_types": ["full_attention"] * 3, "attention_bias": True},
        "untied, relu": {"head_dim": 14, "tie_word_embeddings": False, "hidden_activation": "relu"},
    },
}
CASES = [pytest.param(f, c, id=f"{f} {name}") for f, cases in FAMILIES.items() for name, c in cases.items()]


def theirs_of(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    settings = getattr(transformers, f"{family}Config")(**{**SIZES, **changes})
    return shaken(getattr(transformers, f"{family}ForCausalLM")(settings))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_both_ways(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Theirs -> ours -> theirs: the same logits, files bit for bit, and what they load is what they saved."""
    theirs = theirs_of(family, **changes)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, _ = store.load(tmp_path / "theirs")
    assert difference(ours, theirs, tokens()) <= TOLERANCE

    store.save(ours, tmp_path / "ours", layout="hf")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is type(theirs)
    assert difference(again, ours, tokens()) <= TOLERANCE
    assert same(files(tmp_path / "theirs"), files(tmp_path / "ours"))
    assert same(theirs.state_dict(), again.state_dict())
