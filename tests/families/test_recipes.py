"""The recipe book: sizes as published, config.json in and out, and what no module here does refused
by name."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from glassformer import UserError, config
from glassformer import families as recipes
from glassformer.core.config import serial
from mistakes import mistake

STORIES = recipes.find("llama/stories260k")
LLAMA = recipes.write_config(STORIES)[1]


@pytest.mark.parametrize("name", recipes.names())
def test_every_size_survives_json_and_its_own_layout(name):
    model = recipes.find(name)
    assert serial.loads(config.Model, serial.dumps(model)) == model
    if recipes.RECIPES[name.partition("/")[0]].read_config is None:
        return
    if name.startswith("vaswani/"):  # the paper's sines and cosines take turns, the layout's do not
        model = serial.change(
            model, {f"{side}.position.halves": True for side in ("encoder", "decoder")}
        )
    recipe, raw = recipes.write_config(model)
    assert recipe.name == name.partition("/")[0]
    again, back = recipes.read_config(json.loads(json.dumps(raw)))
    assert again is recipe
    assert recipes.plain(back) == recipes.plain(model)


@pytest.mark.parametrize(
    "name",
    [
        "gpt2/124m",
        "llama/3.1-8b",
        "llama/2-70b",
        "llama/3.2-1b",
        "bert/base",
        "bert/minilm-l6",
        "t5/small",  # not 1.1: transformers 5 calls every T5's head tied, and files say otherwise
        *(
            f"{recipe.name}/{size}"
            for recipe in recipes.DECODERS[2:]
            for size in (recipe.sizes if recipe.read_config else ())
        ),
    ],
)
def test_transformers_reads_our_config_as_we_meant_it(name):
    transformers = pytest.importorskip("transformers")
    raw = recipes.write_config(recipes.find(name))[1]
    reference = transformers.AutoConfig.for_model(
        raw["model_type"], **{k: v for k, v in raw.items() if k != "model_type"}
    )
    again = recipes.read_config(json.loads(json.dumps(reference.to_dict())))[1]
    assert recipes.plain(again) == recipes.plain(recipes.find(name))


def test_the_book_needs_no_torch():
    code = (
        "import sys, glassformer.families as r; r.find('llama/3-8b'); sys.exit('torch' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_find_ignores_case_and_suggests():
    assert recipes.find("Llama/3-8B") == recipes.find("llama/3-8b")
    for wrong, value in {
        "llama/9b": "llama/3.2-1b",
        "lama/3-8b": 'mean "llama/3-8b"',
        "foo": "`glassformer recipes` lists them",
        "gpt2": "gpt2/124m",
    }.items():
        with mistake(value):
            recipes.find(wrong)


# ------------------------------------------------------------------------------ config.json, theirs


def test_defaults_are_those_of_transformers():
    """A config.json that says only the sizes means what transformers takes it to mean."""
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 9}
    full = json.loads(json.dumps(transformers.GPT2Config(**sizes).to_dict()))
    assert (
        recipes.read_config({**sizes, "model_type": "gpt2"})[1]
        == recipes.read_config({**full, "model_type": "gpt2"})[1]
    )


YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 1e4,
}
REFUSED = {
    "llama/stories260k": [
        (
            "architectures",
            ["LlamaForSequenceClassification"],
            r'"LlamaForSequenceClassification" is not in .*Known: GPT2LM',
        ),
        ("architectures", ["LamaForCausalLM"], 'Did you mean "LlamaForCausalLM"'),
        ("architectures", [["x"]], "not in the recipe book"),
        ("hidden_size", 10**12, '"hidden_size" is 1000000000000; it must be an integer from 1 to'),
        ("hidden_size", -64, '"hidden_size" is -64'),
        ("hidden_size", "64", '"hidden_size" is "64"'),
        ("hidden_size", True, '"hidden_size" is true'),
        ("hidden_size", None, 'lacks "hidden_size"'),
        ("vocab_size", 0, '"vocab_size" is 0'),
        ("num_hidden_layers", 10**9, '"num_hidden_layers" is 1000000000'),
        ("max_position_embeddings", 1 << 60, '"max_position_embeddings"'),
        ("num_key_value_heads", 16, "kv_heads is 16"),
        ("num_key_value_heads", 3, "kv_heads 3 does not divide heads 8"),
        ("head_dim", 7, "Rotary turns 7"),
        ("rope_theta", float("nan"), '"rope_theta" is NaN'),
        ("rope_theta", float("inf"), '"rope_theta" is Infinity'),
        ("rms_norm_eps", "small", '"rms_norm_eps" is "small"'),
        ("hidden_act", "gelu_nu", '"hidden_act" is "gelu_nu".*Did you mean "gelu_new"'),
        ("tie_word_embeddings", "yes", '"tie_word_embeddings" is "yes"; it must be true or false'),
        ("quantization_config", {"bits": 4}, "quantised weights are not read here"),
        ("attention_dropout", 0.1, '"attention_dropout" is 0.1'),
        (
            "rope_scaling",
            {"rope_type": "yarn", "factor": 4.0},
            'rope_scaling lacks "original_max_position_embed',
        ),
        ("rope_parameters", {"rope_type": "longrope"}, 'rope_parameters is "longrope"'),
        ("rope_scaling", {"type": "dynamic", "factor": 4.0}, 'rope_scaling is "dynamic"'),
        (
            "rope_scaling",
            {"rope_type": "llama3", "factor": 8.0},
            'rope_scaling lacks "low_freq_factor"',
        ),
        ("rope_scaling", {"type": "linear", "factor": 0.5}, 'rope_scaling: "factor" is 0.5'),
        ("rope_scaling", ["linear"], '"rope_scaling" is \\["linear"\\]; it must be a table'),
        ("rms_norm_eps", 10**400, '"rms_norm_eps"'),
        ("rms_norm_eps", -(10**400), '"rms_norm_eps"'),
        ("rms_norm_eps", float("nan"), '"rms_norm_eps"'),
        ("hidden_size", 2**63, '"hidden_size"'),
        ("num_hidden_layers", 10**6, '"num_hidden_layers"'),
        ("num_attention_heads", 10**6, '"num_attention_heads"'),
        ("architectures", 5, "architecture"),
    ],
    "gpt2/124m": [
        ("scale_attn_weights", False, '"scale_attn_weights" is false'),
        ("scale_attn_by_inverse_layer_idx", True, '"scale_attn_by_inverse_layer_idx" is true'),
        ("add_cross_attention", True, '"add_cross_attention" is true'),
        ("n_head", 7, "7"),
        ("n_positions", 0, '"n_positions" is 0'),
        ("resid_pdrop", 2.0, '"resid_pdrop" is 2.0'),
    ],
    "mixtral/8x7b": [
        ("router_jitter_noise", 0.1, '"router_jitter_noise" is 0.1'),
        ("num_experts_per_tok", 9, "top_k is 9"),
        ("num_local_experts", 0, '"num_local_experts" is 0'),
        ("attention_dropout", 0.1, '"attention_dropout" is 0.1'),
        ("sliding_window", 0, '"sliding_window" is 0'),
    ],
    "qwen2/7b": [
        ("layer_types", ["full_attention"], '"layer_types" is .* a list of 28 times'),
        ("layer_types", ["chunked_attention"] * 28, '"layer_types" is'),
        ("layer_types", ["sliding_attention"] * 28, '"full_attention" everywhere without a window'),
        ("use_mrope", True, '"use_mrope" is true'),
        ("partial_rotary_factor", 0.5, '"partial_rotary_factor" is 0.5'),
        ("rope_scaling", {"type": "dynamic", "factor": 2.0}, 'rope_scaling is "dynamic"'),
        ("rope_scaling", {**YARN, "truncate": False}, '"truncate" is false'),
        ("rope_scaling", {**YARN, "mscale": 1.0}, '"mscale" is 1.0'),
        ("rope_scaling", {**YARN, "beta_slow": 40}, '"beta_slow" is 40'),
        ("rope_scaling", {**YARN, "rope_theta": 1.0}, "Rotary.theta is 1.0"),
        (
            "rope_scaling",
            {"type": "longrope"},
            'rope_scaling is "longrope".*length of the whole text',
        ),
    ],
    "qwen3moe/30b-a3b": [
        ("mlp_only_layers", 3, '"mlp_only_layers" is 3'),
        ("layer_types", ["full_attention"] * 48, '"layer_types" is'),
    ],
    "phi/2": [
        ("partial_rotary_factor", 0.0, '"partial_rotary_factor" is 0.0'),
        ("partial_rotary_factor", 0.42, "Rotary turns 33"),
    ],
    "phi3/mini-4k": [
        ("rope_scaling", {"type": "longrope"}, 'rope_scaling lacks "short_factor"'),
        (
            "rope_scaling",
            {"type": "su", "short_factor": [1.0, 0.0], "long_factor": [1.0, 2.0]},
            r'"short_factor" is \[1.0, 0.0\]',
        ),
        (
            "rope_scaling",
            {"type": "su", "short_factor": [1.0, 1.0], "long_factor": [1.0, 2.0]},
            "LongRopeScaling has 2 factors for 48 frequencies",
        ),
        ("rope_scaling", {"type": "yarn"}, 'rope_scaling is "yarn"'),
    ],
    "starcoder2/3b": [
        ("norm_type", "rms_norm", '"norm_type" is "rms_norm"'),
        ("mlp_type", "gated", '"mlp_type" is "gated"'),
    ],
    "gemma/2b": [
        ("use_bidirectional_attention", True, '"use_bidirectional_attention" is true'),
    ],
    "gemma2/2b": [
        ("query_pre_attn_scalar", 0, '"query_pre_attn_scalar" is 0'),
        ("attn_logit_softcapping", 0, "softcap is 0"),
        ("sliding_window", None, '"full_attention" everywhere without a window'),
    ],
}


@pytest.mark.parametrize(
    "name, changes, text",
    [
        *((name, {key: value}, text) for name in REFUSED for key, value, text in REFUSED[name]),
        ("llama/stories260k", {"architectures": None, "model_type": None}, "names no model"),
        (
            "llama/stories260k",
            {"num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": None},
            "7 heads do not divide dim 64|heads 7",
        ),
        (
            "llama/stories260k",
            {"architectures": None, "model_type": ["llama"]},
            '"model_type"|architecture ',
        ),
    ],
)
def test_what_cannot_be_read_is_one_sentence(name, changes, text):
    raw = recipes.write_config(recipes.find(name))[1]
    with mistake(text) as caught:
        recipes.read_config({**raw, **changes}, "folder/config.json")
    assert str(caught.value).startswith("folder/config.json")


def test_model_type_is_enough():
    assert recipes.read_config({**LLAMA, "architectures": None})[0].name == "llama"


# -------------------------------------------------------------------------------- config.json, ours


UNSAID = {
    "llama/stories260k": [
        (
            "decoder.pattern.attention.softcap",
            5.0,
            "llama, cannot say decoder.pattern.0.attention.softcap = 5.0",
        ),
        (
            "decoder.pattern.attention.qk_norm",
            {"type": "LayerNorm"},
            "cannot say decoder.pattern.0.attention.qk_norm = LayerNorm;",
        ),
        (
            "decoder.pattern.attention.mask",
            {"type": "Strided", "stride": 8},
            "cannot say decoder.pattern.0.attention.mask = Strided",
        ),
        (
            "decoder.pattern.attention.scale",
            1.0,
            "cannot say decoder.pattern.0.attention.scale = 1.0",
        ),
        ("decoder.position", {"type": "Alibi"}, "cannot say decoder.position = Alibi"),
        (
            "decoder.pattern.norm",
            {"type": "LayerNorm"},
            "cannot say decoder.pattern.0.norm = LayerNorm",
        ),
        ("decoder.pattern.place", "sandwich", "cannot say decoder.pattern.0.place = sandwich"),
        ("decoder.first_norm", {"type": "RMSNorm"}, "cannot say decoder.first_norm = RMSNorm"),
        ("embed.scale", 8.0, "cannot say embed.scale = 8.0"),
        ("head.softcap", 30.0, "cannot say head.softcap = 30.0"),
        ("decoder.last_norm", None, "cannot say decoder.last_norm = None"),
        (
            "decoder.pattern.attention",
            {"type": "Attention", "heads": 6, "kv_heads": None, "head_dim": 8, "softcap": 5.0},
            "cannot say decoder.pattern.0.attention.softcap = 5.0",
        ),
    ],
    "mixtral/8x7b": [
        ("decoder.pattern.feedforward.normalize", False, "feedforward.normalize = False"),
        ("decoder.pattern.feedforward.z_loss", 0.001, "feedforward.z_loss = 0.001"),
        ("decoder.pattern.feedforward.capacity_factor", 1.25, "feedforward.capacity_factor = 1.25"),
    ],
    "qwen2/7b": [
        ("decoder.pattern.attention.softcap", 5.0, "attention.softcap = 5.0"),
    ],
    "qwen3/8b": [
        ("decoder.pattern.attention.qk_norm.eps", 1e-3, "attention.qk_norm.eps = 0.001"),
    ],
    "phi/2": [
        ("head.bias", False, "cannot say head.bias = False"),
    ],
    "phi3/mini-4k": [
        ("decoder.position.scaling", {"type": "LinearScaling", "factor": 2.0}, "cannot say"),
    ],
    "starcoder2/3b": [
        ("decoder.pattern.feedforward.bias", False, "cannot say"),
    ],
    "gemma/2b": [
        ("embed.scale", 3.0, "cannot say embed.scale = 3.0"),
        ("decoder.pattern.feedforward.act", "gelu", "feedforward.act = gelu"),
    ],
    "gemma2/2b": [
        ("decoder.pattern.0.attention.scale", 0.3, "attention.scale = 0.3"),
        ("decoder.pattern.0.norm.offset", 0.0, "norm.offset = 0.0"),
        ("decoder.pattern.0.feedforward.act", "tanh", "no name for the activation"),
    ],
}


@pytest.mark.parametrize(
    "name, change, value, text", [(name, *row) for name in UNSAID for row in UNSAID[name]]
)
def test_what_no_layout_can_say_is_named(name, change, value, text):
    with pytest.raises(UserError) as caught:
        recipes.write_config(serial.change(recipes.find(name), {change: value}))
    assert text in str(caught.value)
    assert 'layout "glassformer"' in str(caught.value)


def test_glass_has_no_published_layout():
    with mistake("No published layout holds this model"):
        recipes.write_config(recipes.find("glass/1m"))


def test_a_pattern_of_equal_blocks_is_one_block():
    block = STORIES.decoder.pattern[0]
    doubled = serial.change(STORIES, {"decoder.depth": 4})
    doubled = serial.change(doubled, {"decoder.pattern": [serial.to_dict(block)] * 2})
    assert recipes.write_config(doubled)[0].name == "llama"


def test_small_glass_is_small_enough():
    """The recipe's name promises at most 0.85 million parameters beside the vocabulary."""
    from glassformer.scale.cost import cost

    spent = cost(recipes.find("glass/1m"))
    assert spent.total - spent.parameters["embedding"] <= 850_000
