"""Newer decoders against transformers: logits, padded rows, cached greedy text, weights both ways, and
each word of their configs. Among them: deepseek, glm4_moe, minimax_m2, lfm2, mamba2, qwen3_next; the
mechanisms differential, latent, routed, sinks, sparse_mixer, tuned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from families.parity import (
    TOLERANCE,
    check_both_ways,
    check_defaults,
    difference,
    files,
    shaken,
    tokens,
    transformers,
)
from folders import edit_json, read_json
from glassformer import config, generate
from glassformer import families as recipes
from glassformer.core.nn import Cache
from glassformer.families import ConfigReader
from glassformer.families.modules.latent import LatentAttentionModule
from glassformer.families.modules.routed import RoutedMoEModule
from glassformer.families.routed import RoutedMoE
from glassformer.formats import store
from mistakes import mistake
from seeding import generator_from
from tiny import equal_tensors

TABLES = read_json(Path(__file__).with_name("more_decoders.json"))
CASES = [
    pytest.param(family, changes, id=f"{family} {name}")
    for family, table in TABLES.items()
    for name, changes in table["cases"].items()
]
OF_TEXT = {"Gemma3", "Qwen3_5", "Llama4"}  # whose configs are beside those of images
FIRST = [(family, next(iter(table["cases"].values()))) for family, table in TABLES.items()]
# words that change neither logits nor parameters here, in every family
EVERYWHERE = {"use_cache", "pad_token_id", "bos_token_id", "eos_token_id"}


def settings_of(family):
    return getattr(transformers, f"{family}{'Text' * (family in OF_TEXT)}Config")


def reference_of(family, **changes):
    torch.manual_seed(0)
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    kind = settings_of(family)
    settings = kind(**special | TABLES[family]["sizes"] | changes)
    return shaken(getattr(transformers, f"{family}ForCausalLM")(settings))


@pytest.mark.parametrize("family, changes", CASES)
def test_both_ways(family, changes, tmp_path):
    check_both_ways(reference_of(family, **changes), tmp_path)


@pytest.mark.parametrize("family, changes", CASES)
@torch.no_grad()
def test_padded_rows_and_cached_text(family, changes, tmp_path):
    """Rows padded at the left, and 20 greedy tokens after them with a cache; each row alone where
    theirs are not the same beside padding."""
    reference = reference_of(family, **changes)
    reference.save_pretrained(tmp_path)
    model, _ = store.load(tmp_path)
    ids, mask = tokens(length=21), torch.ones(3, 21, dtype=torch.long)
    for row, pad in enumerate((0, 5, 11)):
        mask[row, :pad] = 0
    pos = (mask.cumsum(1) - 1).masked_fill(mask == 0, -1)
    cache = Cache(model.config)
    logits = model(ids, pos=pos, cache=cache).logits
    if alone := changes in [
        TABLES[family]["cases"][name] for name in TABLES[family].get("alone", ())
    ]:
        expected = torch.zeros_like(logits)
        for row, present in enumerate(mask.bool()):
            expected[row, present] = reference(ids[row, present][None]).logits[0]
    elif family in ("Bloom", "Mpt"):
        expected = reference(ids, attention_mask=mask).logits
    else:
        expected = reference(ids, attention_mask=mask, position_ids=pos.clamp(min=0)).logits
    assert_close(logits[mask == 1], expected[mask == 1], rtol=0.0, atol=TOLERANCE)
    text, last = [], pos[:, -1:]
    for _ in range(20):
        chosen = logits[:, -1].argmax(-1, keepdim=True)
        text.append(chosen)
        last = last + 1
        logits = model(chosen, pos=last, cache=cache).logits
    greedy = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
    if alone:
        rows = [row[present][None] for row, present in zip(ids, mask.bool(), strict=True)]
        texts = [reference.generate(row, attention_mask=row >= 0, **greedy) for row in rows]
        continuations = torch.cat([text[:, -20:] for text in texts])
    else:
        continuations = reference.generate(ids, attention_mask=mask, **greedy)[:, ids.shape[1] :]
    assert torch.equal(torch.cat(text, 1), continuations)


@pytest.mark.parametrize("family, changes", FIRST)
def test_logits_are_of_a_size_that_tells(family, changes):
    with torch.no_grad():
        assert reference_of(family, **changes)(tokens()).logits.std() > 0.5


@pytest.mark.parametrize("family, changes", FIRST)
def test_a_setting_is_not_ignored(family, changes, tmp_path):
    """The same weights read with another setting are another model."""
    reference = reference_of(family, **changes)
    reference.save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", **TABLES[family]["telling"])
    assert difference(store.load(tmp_path)[0], reference, tokens()) > 100 * TOLERANCE


@pytest.mark.parametrize("family", TABLES)
def test_every_word_of_the_config_is_read(family, monkeypatch):
    """Each field of the config class is read or refused, but for those that change nothing."""
    kind = settings_of(family)
    keys_read, value = set(), ConfigReader.value

    def recorded(self, key, *default):
        keys_read.add(key)
        return value(self, key, *default)

    monkeypatch.setattr(ConfigReader, "value", recorded)
    recipes.read_config(json.loads(json.dumps(kind(**TABLES[family]["sizes"]).to_dict())))
    fields = set(kind.__annotations__)
    for nested in kind.sub_configs.values():
        fields |= set(nested.__annotations__)
    fields -= {
        "model_type",
        "keys_to_ignore_at_inference",
        "attribute_map",
        "sub_configs",
        "default_theta",
    }
    fields -= {name for name in fields if name.startswith("base_")}
    silent = EVERYWHERE | set(TABLES[family]["silent"])
    assert fields - keys_read <= silent, fields - keys_read - silent


@pytest.mark.parametrize("family", TABLES)
def test_defaults_are_those_of_transformers(family):
    """A config.json that says only the sizes means what transformers takes it to mean."""
    kind = settings_of(family)
    unsaid = ("window_size", "sliding_window", "rotary_dim", "attn_config")
    sizes = {k: v for k, v in TABLES[family]["sizes"].items() if k not in unsaid}
    if family in ("GPTJ", "CodeGen"):  # 64 dimensions turn
        sizes |= {"n_embd": 256}
    check_defaults(kind, sizes)


@pytest.mark.parametrize(
    "name, changes, text",
    [
        (name, changes, text)
        for name, rows in {
            "mistral/7b-v0.1": [({"layer_types": ["full_attention"]}, '"layer_types" is')],
            "gpt_neo/125m": [
                ({"attention_types": [[["global", "local"], 5]]}, '"attention_types" is'),
                ({"attention_types": [[["global", "sparse"], 6]]}, '"attention_types" is'),
                ({"window_size": 0}, '"window_size" is 0'),
            ],
            "gptj/6b": [
                ({"rotary_dim": None}, '"rotary_dim" is null'),
                ({"rotary_dim": 300}, '"rotary_dim" is 300'),
                ({"rotary_dim": 7}, "Rotary turns 7"),
            ],
            "codegen/350m": [({"n_head": 2, "rotary_dim": 32}, '"n_head" is 2')],
            "gpt_bigcode/santacoder": [
                ({"scale_attn_weights": False}, '"scale_attn_weights" is false'),
                ({"add_cross_attention": True}, '"add_cross_attention" is true'),
                ({"attention_softmax_in_fp32": False}, "precision of fp32"),
            ],
            "bloom/560m": [
                ({"apply_residual_connection_post_layernorm": True}, "post_layernorm"),
            ],
            "mpt/7b": [
                ({"no_bias": False}, '"no_bias" is false'),
                ({"expansion_ratio": 2}, '"expansion_ratio" is 2'),
                ({"logit_scale": 0.5}, '"logit_scale" is 0.5'),
                ({"attn_config": {"clip_qkv": 6}}, 'attn_config: "clip_qkv" is 6'),
                ({"attn_config": {"alibi": False}}, '"alibi" is false'),
                ({"attn_config": {"qk_ln": True}}, '"qk_ln" is true'),
                ({"attn_config": {"prefix_lm": True}}, '"prefix_lm" is true'),
                ({"attn_config": {"attn_type": "multiquery_attention"}}, '"attn_type" is'),
            ],
            "opt/125m": [
                ({"word_embed_proj_dim": 512}, '"word_embed_proj_dim" is 512'),
                ({"layerdrop": 0.1}, '"layerdrop" is 0.1'),
                ({"layer_norm_elementwise_affine": False}, "a weight and a bias"),
            ],
            "gpt_neox/pythia-70m": [({"rotary_pct": 0.3}, "Rotary turns 19")],
            "falcon/7b": [
                (
                    {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 3},
                    '"num_ln_in_parallel_attn" is 3',
                ),
                ({"alibi": True}, '"alibi" is true'),
                ({"num_ln_in_parallel_attn": 2}, '"num_ln_in_parallel_attn" is 2'),
                ({"num_kv_heads": 8}, '"num_kv_heads" is 8'),
            ],
            "olmo2/1b": [({"attention_dropout": 0.1}, '"attention_dropout" is 0.1')],
            "olmo3/7b": [
                ({"rope_parameters": None, "rope_theta": 1e4}, "every OLMo 3 has that of 500,000"),
            ],
            "olmoe/1b-7b": [({"clip_qkv": 8.0}, '"clip_qkv" is 8.0')],
            "glm4_moe/4.5-air": [({"n_shared_experts": 0}, '"n_shared_experts" is 0')],
            "minimax_m2/230b-a10b": [
                ({"shared_intermediate_size": 8}, "no expert is shared"),
                ({"router_jitter_noise": 0.1}, '"router_jitter_noise" is 0.1'),
            ],
            "deepseek_v2/lite": [
                ({"norm_topk_prob": True}, '"norm_topk_prob" is true'),
                ({"topk_method": "noaux_tc"}, '"topk_method" is "noaux_tc"'),
                ({"num_key_value_heads": 2}, "LatentAttention makes a key for each head"),
            ],
            "deepseek_v3/671b": [
                ({"scoring_func": "softmax"}, '"scoring_func" is "softmax"'),
                ({"n_group": 7}, "RoutedMoE.groups 7 does not divide experts 256"),
                ({"topk_group": 9}, "RoutedMoE.top_groups is 9"),
                ({"n_group": 64, "topk_group": 1}, "RoutedMoE.top_k is 8 and 1 groups of 4"),
                ({"n_group": 256, "topk_group": 8}, "RoutedMoE.group_best is 2"),
                ({"head_dim": 32}, '"head_dim" is 32'),
                ({"v_head_dim": 193}, "LatentAttention.value_dim is 193"),
                ({"qk_rope_head_dim": 63}, "LatentAttention.rope_dim is 63"),
                ({"first_k_dense_replace": -1}, '"first_k_dense_replace" is -1'),
            ],
            "granite/3.0-2b": [({"logits_scaling": 0}, '"logits_scaling" is 0')],
            "smollm3/3b": [
                ({"use_sliding_window": True}, '"use_sliding_window" is true'),
                ({"no_rope_layers": [1, 0]}, '"no_rope_layers" is'),
            ],
            "gemma3/270m": [
                ({"use_bidirectional_attention": True}, '"use_bidirectional_attention" is true'),
                ({"attn_logit_softcapping": 50.0}, "no Gemma 3 caps its scores"),
                ({"rope_parameters": {"rope_type": "default"}}, "no table for sliding_attention"),
            ],
            "granitemoehybrid/4.0-h-tiny": [
                ({"position_embedding_type": "alibi"}, '"position_embedding_type" is "alibi"'),
                ({"time_step_limit": [0.0, 1.0]}, '"time_step_limit" is'),
                ({"mamba_expand": 3}, '"mamba_expand" is 3'),
                ({"layer_types": ["mamba"]}, '"layer_types" is'),
                ({"hidden_act": "gelu"}, "the gate here are silu"),
            ],
            "nemotron_h/8b": [
                ({"layers_block_type": ["mlp", "linear_attention"]}, "follows a layer of Mamba-2"),
                ({"layers_block_type": ["linear_attention", "conv"]}, '"layers_block_type" is'),
                ({"moe_latent_size": 64}, "experts read the whole width"),
                ({"num_nextn_predict_layers": 1}, "no layer predicts later tokens"),
                ({"attention_bias": True}, "have no biases"),
            ],
            "qwen3_5/0.8b": [
                ({"hidden_act": "gelu"}, "the gate here are silu"),
                ({"layer_types": 4}, '"layer_types" is 4'),
                ({"linear_num_value_heads": 15}, "GatedDelta.value_heads 15"),
            ],
            "llama4/scout-17b-16e": [
                ({"num_experts_per_tok": 2}, "ScaledInputMoE.top_k is 2"),
                ({"router_jitter_noise": 0.1}, '"router_jitter_noise" is 0.1'),
                ({"attention_chunk_size": None}, "Chunk.size"),
                ({"no_rope_layers": [1, 0]}, '"no_rope_layers" is'),
                ({"no_rope_layers": [2] * 48}, '"no_rope_layers" is'),
                ({"moe_layers": 3}, '"moe_layers" is 3'),
                (
                    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
                    'rope_scaling is "yarn"',
                ),
            ],
            "diffllama/1b": [
                ({"attention_dropout": 0.1}, '"attention_dropout" is 0.1'),
                ({"num_key_value_heads": 1}, "has 1 key-value heads and takes them in pairs"),
                ({"lambda_std_dev": "0.1"}, '"lambda_std_dev" is "0.1"'),
            ],
            "rwkv/169m": [
                ({"rescale_every": 1.5}, '"rescale_every" is 1.5'),
                ({"num_hidden_layers": 0}, '"num_hidden_layers" is 0'),
            ],
            "stablelm/2-1.6b": [({"qk_layernorm": True}, '"qk_layernorm" is true')],
            "cohere2/command-r7b": [
                ({"sliding_window": None}, '"full_attention" everywhere without a window'),
                ({"sliding_window_pattern": 0}, '"sliding_window_pattern" is 0'),
            ],
            "exaone4/32b": [({"layer_types": ["full_attention"]}, '"layer_types" is')],
            "gpt_oss/20b": [({"swiglu_limit": "7"}, '"swiglu_limit" is "7"')],
            "phimoe/3.5": [({"input_jitter_noise": 0.1}, '"input_jitter_noise" is 0.1')],
        }.items()
        for changes, text in rows
    ],
)
def test_what_no_module_does_is_refused(name, changes, text):
    recipe = recipes.RECIPES[name.partition("/")[0]]
    raw = recipe.write_config(recipes.find(name)) | {"model_type": recipe.model_type}
    with mistake(text):
        recipes.read_config({**raw, **changes}, "folder/config.json")


def test_a_model_is_saved_as_the_family_that_it_was_loaded_from(tmp_path):
    """A Mistral without a window has the config of a Llama, and one with a window that of a Phi-3."""
    for changes in ({}, {"sliding_window": None}):
        reference = reference_of("Mistral", **changes)
        reference.save_pretrained(tmp_path / "theirs")
        model, _ = store.load(tmp_path / "theirs")
        store.save(model, tmp_path / "ours")
        assert read_json(tmp_path / "ours/config.json")["model_type"] == "mistral"
    model.family = ""
    store.save(model, tmp_path / "plain")
    assert read_json(tmp_path / "plain/config.json")["model_type"] == "llama"


@pytest.mark.parametrize("heads", [4, 6])
@torch.no_grad()
def test_an_mpt_reads_past_its_max_seq_len_as_one_with_more(heads, tmp_path):
    """transformers has biases of ``max_seq_len`` tokens and fails at more; with a larger number there
    it reads what is read here, whether the file says so or not, with a cache or without."""
    short = {"max_seq_len": 16, "n_heads": heads, "d_model": 8 * heads}
    reference, ids = reference_of("Mpt", **short), tokens()
    reference.save_pretrained(tmp_path / "theirs")
    with pytest.raises(RuntimeError, match="must match the size"):
        reference(ids)
    model, _ = store.load(tmp_path / "theirs")
    longer, _ = store.load(tmp_path / "theirs", context=ids.shape[1])
    reference.config.max_seq_len = ids.shape[1]
    for candidate in (model, longer):
        assert difference(candidate, reference, ids) <= TOLERANCE
    with mistake("The prompt has 40 tokens and the model's context is 16"):
        generate(model, None, ids[0, :40].tolist(), max_new=1)
    text = generate(longer, None, ids[0, :8].tolist(), max_new=40, temperature=0.0).run().tokens
    expected = reference.generate(ids[:1, :8], do_sample=False, max_new_tokens=40, pad_token_id=0)
    assert text == expected[:, 8:].tolist()
    store.save(longer, tmp_path / "ours", layout="hf")
    assert read_json(tmp_path / "ours/config.json")["max_seq_len"] == ids.shape[1]


def test_first_bloom_files(tmp_path):
    """The hub's BLOOM: names without "transformer.", the width called n_embed, texts of 2,048."""
    reference = reference_of("Bloom")
    reference.save_pretrained(tmp_path)
    from safetensors.torch import save_file

    state = {name.removeprefix("transformer."): tensor for name, tensor in files(tmp_path).items()}
    save_file(state, tmp_path / "model.safetensors")
    edit_json(tmp_path / "config.json", hidden_size=None, n_embed=32, seq_length=2048)
    model, _ = store.load(tmp_path)
    assert model.config.context == 2048
    assert difference(model, reference, tokens()) <= TOLERANCE


@torch.no_grad()
def test_a_latent_cache_is_small(tmp_path):
    """A token of a block costs the latent vector and the turned key, whatever the heads."""
    reference_of("DeepseekV3").save_pretrained(tmp_path)
    model, _ = store.load(tmp_path)
    cache = Cache(model.config)
    model(tokens(), cache=cache)
    assert {type(module) for module in model.modules()} > {LatentAttentionModule, RoutedMoEModule}
    assert all((kv.k.shape[1::2], kv.v.shape[1::2]) == ((1, 12), (1, 4)) for kv, _ in cache.layers)


@torch.no_grad()
@pytest.mark.parametrize("family", ["DeepseekV3", "Glm4Moe"])
def test_corrections_are_whole_in_a_model_of_bf16(family, tmp_path):
    """Published ones are F32 beside bf16, and near 9, where bf16 has steps of 0.06."""
    reference = reference_of(family).bfloat16()
    noise = torch.Generator().manual_seed(2)
    for name, weight in reference.named_buffers():
        if name.endswith("score_correction_bias"):
            weight.data = 9 + 0.02 * torch.randn(weight.shape, generator=noise)
    reference.save_pretrained(tmp_path / "theirs")
    kind = type(reference)
    reference = kind.from_pretrained(tmp_path / "theirs", dtype=torch.bfloat16).eval()
    model, _ = store.load(tmp_path / "theirs")
    store.save(model, tmp_path / "ours", layout="hf")
    assert equal_tensors(files(tmp_path / "theirs"), files(tmp_path / "ours"))
    assert difference(model.float(), reference.float(), tokens()) <= TOLERANCE


@torch.no_grad()
def test_a_correction_chooses_and_does_not_weigh():
    """One more in every correction changes nothing; a large one brings its expert into each choice
    with a weight of its score alone."""
    mixture = RoutedMoE(6, 2, config.GatedMLP(8), normalize=False)
    module = RoutedMoEModule(mixture, 16)
    logits = torch.randn(1, 9, 6, generator=generator_from(1))
    module.correction.data = torch.zeros(6)
    weight, chosen = module.choose(logits)
    module.correction.data += 1
    assert torch.equal(module.choose(logits)[0], weight)
    module.correction.data[4] = 9.0
    again, forced = module.choose(logits)
    assert (forced[..., 0] == 4).all() and not (chosen[..., 0] == 4).all()
    assert torch.equal(again, logits.sigmoid().gather(-1, forced))
