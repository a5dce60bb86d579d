"""Models as GGUF files describe them (llama.cpp's format): their fields and tensors' names, in and
out. No torch here.

{architecture}.embedding_length ..   the words of a config.json by other names
blk.0.attn_q.weight ..               Llama's queries and keys with rotary pairs side by side, others as published
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..core import config
from ..core.config.scaling import Llama3Scaling
from ..core.errors import UserError, need
from ..families import RECIPES
from ..families import read_config as read_published
from ..families import write_config as write_published
from ..families.decoder_pages import write_scaling
from ..families.names import Table

ROTARY = {  # words of a config.json by those of the fields
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
LEARNT = {
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_inner": "feed_forward_length",
    "n_positions": "context_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}
OPTIONAL = {"attention.head_count_kv", "attention.key_length", "rope.freq_base"}
ELSEWHERE = (
    "expert_count",
    "rope.scaling.factor",
    "attention.sliding_window",
    "attention.value_length",
)
"""Fields that change what a model computes and that no model here may have, save with the value it
has anyway."""
FACTORS = "rope_freqs.weight"  # what each rotary frequency is divided by
# as published; the file has only what comes of it
LLAMA_3 = [Llama3Scaling(factor) for factor in (8.0, 32.0)]
Fields = dict[str, Any]


def read_config(
    fields: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    factors: list[float] | None,
    source: str,
) -> config.Model:
    """Our config of a file's fields and tensors; ``factors`` are those of FACTORS. UserError for
    what is not read."""
    kind = fields.get("general.architecture")
    supported = isinstance(kind, str) and kind in CLASSES
    supported_names = ", ".join(CLASSES)
    need(kind is not None, f"{source} lacks general.architecture; copy or convert it again.")
    need(
        supported,
        f'{source} holds the architecture "{str(kind)[:40]}"; only {supported_names} are read here.',
    )
    assert isinstance(kind, str)
    arch_fields = {
        key.removeprefix(f"{kind}."): value
        for key, value in fields.items()
        if key.startswith(f"{kind}.")
    }
    words = LEARNT if kind == "gpt2" else ROTARY
    raw: Fields = {"model_type": kind, "architectures": [CLASSES[kind]]}
    for name, word in words.items():
        need(
            word in arch_fields or word in OPTIONAL,
            f"{source} lacks {kind}.{word}; convert the model again.",
        )
        if word in arch_fields:
            # fp32 in the file
            raw[name] = (
                float(f"{arch_fields[word]:.7g}")
                if isinstance(arch_fields[word], float)
                else arch_fields[word]
            )
    usual = {"attention.value_length": arch_fields.get("attention.key_length")}
    for word in ELSEWHERE:
        plain = arch_fields.get(word) in (None, 0, 1.0, usual.get(word))
        need(
            plain,
            f"{source} says {kind}.{word} is {str(arch_fields.get(word))[:40]}, which is not "
            "read from GGUF here.",
        )
    table = shapes.get("token_embd.weight", ())
    need(len(table) == 2, f"{source} has no token_embd.weight; convert the model again.")
    raw |= {"vocab_size": table[0], "tie_word_embeddings": "output.weight" not in shapes}
    if kind == "llama":
        raw |= {"attention_bias": "blk.0.attn_q.bias" in shapes}
    if kind == "gpt2":
        raw |= dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.0)
    raw |= {"rope_scaling": _scaling(factors, raw, source)} if factors is not None else {}
    return read_published(raw, source)[1]


def _scaling(factors: list[float], raw: Fields, source: str) -> Fields:
    """The Llama 3 scaling whose factors these are."""
    width = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    for scaling in LLAMA_3:
        expected = llama3_factors(scaling, width, raw.get("rope_theta", 10_000.0))
        if len(expected) == len(factors) and all(
            abs(a / b - 1) < 1e-3 for a, b in zip(factors, expected, strict=True)
        ):
            return write_scaling(scaling) or {}
    raise UserError(
        f"{source} divides rotary frequencies by factors of its own ({FACTORS}), not by Llama "
        "3's; fetch hf."
    )


def llama3_factors(scaling: Llama3Scaling, width: int, theta: float) -> list[float]:
    """Divisors of a head's width / 2 frequencies."""
    divisors = []
    for pair in range(width // 2):
        turns = scaling.original_context / (2 * math.pi * theta ** (2 * pair / width))
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        smooth = min(max((turns - low) / max(high - low, 1e-9), 0.0), 1.0)
        divisors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return divisors


def write_fields(model: config.Model) -> tuple[Fields, list[float] | None]:
    """The fields that describe a model, the architecture first, and the factors of its rotary
    frequencies."""
    recipe, raw = write_published(model)
    kind = recipe.name
    need(
        kind in CLASSES,
        f"A GGUF file holds {', '.join(CLASSES)} as written here, not {kind}; save it as hf.",
    )
    raw = {key: value for key, value in raw.items() if value is not None}
    gelu = raw.get("activation_function", "gelu_new") == "gelu_new"
    need(
        gelu and raw.get("bias", True),
        "llama.cpp's gpt2 has biases and the GELU by tanh, which this model has not.",
    )
    need(
        raw.get("sliding_window") is None,
        "llama.cpp's layout for this model has no sliding window; save it as hf.",
    )
    scaling = getattr(config.stacks(model)["decoder"].position, "scaling", None)
    need(
        scaling is None or isinstance(scaling, Llama3Scaling),
        "Only Llama 3's scaling of rotary frequencies is written to GGUF here; save it as hf.",
    )
    words = LEARNT if kind == "gpt2" else ROTARY
    fields: Fields = {"general.architecture": kind}
    fields |= {f"{kind}.{word}": raw[name] for name, word in words.items() if name in raw}
    fields[f"{kind}.vocab_size"] = raw["vocab_size"]
    if kind == "gpt2":
        return fields, None
    width = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    fields |= {f"{kind}.rope.dimension_count": width, f"{kind}.attention.value_length": width}
    factors = scaling and llama3_factors(scaling, width, raw["rope_theta"])
    return fields, factors


def table(model: config.Model, kind: str) -> Table:
    """The names of the tensors of an architecture, and how queries and keys lie in them: the
    family's own table by llama.cpp's names for what is published."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    attention = config.stacks(model)["decoder"].pattern[0].attention
    heads = {"attn_q": attention.heads, "attn_k": attention.kv_heads or attention.heads}
    names = get_tensor_name_map(MODEL_ARCH[kind.upper()], 1)
    renamed = []
    for rule in RECIPES[kind].table(model).rules:
        published, _, end = rule.file_name.replace("{i}", "0").rpartition(".")
        name = str(names.get_name(published)).replace("blk.0.", "blk.{i}.")
        axes = {"weight": "(h d 2) c -> (h 2 d) c", "bias": "(h d 2) -> (h 2 d)"}[end]
        count = heads.get(name.rpartition(".")[2]) if kind == "llama" else None
        rule = replace(rule, file_name=f"{name}.{end}", transpose=False)
        renamed.append(replace(rule, axes=axes, heads=count) if count else rule)
    copies = (("output.weight", "token_embd.weight"),)
    return Table(tuple(renamed), ignore=(FACTORS,), copies=copies)
