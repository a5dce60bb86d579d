"""What GGUF files say of a model, in and out: also against the files that llama.cpp's own converter
writes (gguf_facts.py), their fields, names, shapes and numbers, and rows (file_rule)."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter

import glassformer
import tiny
from formats.gguf_facts import ENCODERS, FACTS, PAIRS, facts_of, model_of
from glassformer import config
from glassformer import families as recipes
from glassformer.core.config import serial
from glassformer.core.config.scaling import Llama3Scaling
from glassformer.core.nn import build_model
from glassformer.core.nn.model import inference
from glassformer.fast.quantized import QuantizedLayout, quantize_weights
from glassformer.formats import gguf as gguf_file
from glassformer.formats import gguf_configs as gguf
from glassformer.formats import store, weights
from glassformer.formats.tokenizer_files import open as open_tokenizer
from mistakes import mistake

SIZES = [
    f"{recipe.name}/{size}"
    for recipe in recipes.all()
    if any(entry["recipe"] == recipe.name for entry in gguf.ENTRIES)
    for size in recipe.sizes
]
# what llama.cpp has no words for in a published size
REFUSED = {
    "gpt2/nanogpt": "attention.bias = False",
    "mistral/7b-v0.1": "attention.mask = {'type': 'Window', 'size': 4096}",
    **dict.fromkeys(("starcoder2/3b", "starcoder2/7b", "starcoder2/15b"), "attention.mask"),
}


CASES = json.loads(FACTS.read_text(encoding="utf-8"))


def described(model, family=""):
    """The fields of a model, the shapes of its file's tensors, its factors."""
    fields, factors, entry = gguf.write_fields(model, family)
    shapes = weights.shapes(model)
    links = weights.links(gguf.table(model, entry), shapes)
    return fields, {link.file_names[0]: shapes[link.param_names[0]] for link in links}, factors


@pytest.mark.parametrize("name", SIZES)
def test_a_published_model_comes_back_from_its_fields(name):
    model, family = recipes.find(name), name.partition("/")[0]
    if isinstance(model, config.Encoder):
        labelled = model.pool and model.pool.transform
        model = replace(model, head=None, pool=None if labelled else model.pool)
    fields, shapes, factors = described(model, family)
    if name in REFUSED:
        with mistake(re.escape(REFUSED[name])):
            gguf.check(model, fields, shapes, factors)
    else:
        entry = gguf.check(model, fields, shapes, factors)
        assert entry["architecture"] == fields["general.architecture"]


def test_factors_are_those_that_transformers_divides_by():
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    scaling |= {"original_max_position_embeddings": 8192, "rope_theta": 5e5}
    cfg = transformers.LlamaConfig(hidden_size=128, num_attention_heads=1, rope_parameters=scaling)
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](cfg, "cpu")
    plain = [5e5 ** (-pair / 64) for pair in range(64)]
    expected = [item / float(scaled) for item, scaled in zip(plain, frequencies, strict=True)]
    assert gguf.llama3_factors(Llama3Scaling(8.0), 128, 5e5) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"general.architecture": "grok"}, 'architecture "grok"; only llama, qwen2'),
        ({"general.architecture": 7}, 'architecture "7"'),
        ({"llama.embedding_length": None}, "lacks llama.embedding_length"),
        ({"llama.expert_count": 8}, "lacks llama.expert_used_count"),
        ({"llama.attention.clamp_kqv": 8.0}, "llama.attention.clamp_kqv is 8.0"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count is 4"),
        ({"llama.attention.causal": False}, "llama.attention.causal is False"),
        ({"llama.something_new": "so"}, "llama.something_new is so"),
        ({"llama.attention.head_count": 0}, "num_attention_heads"),
        ({"llama.attention.head_count": [4, 4]}, "num_attention_heads"),
        ({"llama.nextn_predict_layers": 1, "llama.block_count": "5"}, "of another type"),
        ({"llama.rope.freq_base": 1_176_256_512}, "of another type than its name says"),
        ({"llama.rope.scaling.type": "new", "llama.rope.scaling.factor": 4.0}, 'is "new"'),
        ({"llama.embedding_length": "wide"}, "hidden_size"),
        ({"llama.block_count": 1 << 40}, "num_hidden_layers"),
    ],
)
def test_fields_of_what_is_not_read_are_named(change, sentence):
    fields, shapes, factors = described(recipes.find("llama/stories260k"))
    fields = {key: value for key, value in {**fields, **change}.items() if value is not None}
    with mistake(re.escape(sentence)):
        gguf.read_config(fields, shapes, factors, "it")


def test_blocks_that_predict_later_tokens_are_the_last_of_those_counted():
    fields = {"general.architecture": "glm4moe", "glm4moe.block_count": 4}
    later = {**fields, "glm4moe.nextn_predict_layers": 1}
    names = [f"blk.{number}.attn_q.weight" for number in range(6)]
    assert [gguf.is_later(name, later) for name in names] == [False] * 3 + [True] + [False] * 2
    assert not any(gguf.is_later(name, fields) for name in (*names, "output.weight"))


def test_long_factors_without_the_short_ones_are_refused():
    fields, shapes, _factors = described(recipes.find("llama/stories260k"))
    with mistake("lacks what belongs to another .'rope_factors_short.weight'"):
        gguf.read_config(fields, shapes, {gguf.LONG_FACTORS["long"]: [1.0] * 4}, "it")


def test_rotary_factors_of_another_family_are_refused():
    fields, shapes, _factors = described(recipes.find("llama/stories260k"))
    with mistake("factors of its own"):
        gguf.read_config(fields, shapes, {gguf.FACTORS: [1.0, 2.0, 3.0, 4.0]}, "it")


@pytest.mark.parametrize("name", ["opt/125m", "gptj/6b"])
def test_models_that_the_format_does_not_hold_are_refused(name):
    with mistake("save it as hf"):
        gguf.write_fields(recipes.find(name))


@pytest.mark.parametrize(
    "name, changes, sentence",
    [
        ("qwen3moe/30b-a3b", {"decoder.pattern.feedforward.normalize": False}, "normalize = False"),
        ("qwen2/0.5b", {"decoder.pattern.feedforward.act": "gelu"}, "act = gelu"),
        ("gemma2/2b", {"decoder.pattern.attention.scale": 0.5}, "attention.scale = 0.5"),
        ("phi/2", {"decoder.position.theta": 500.0}, "position.theta = 500.0"),
        ("olmoe/1b-7b", {"decoder.pattern.feedforward.normalize": True}, "normalize = True"),
        ("t5/small", {"head.scale": 1.0}, "head.scale = 1.0"),
        (
            "mt5/small",
            {f"{side}.pattern.feedforward.act": "silu" for side in ("encoder", "decoder")},
            "feedforward.act = silu",
        ),
        ("deepseek_v3/671b", {"decoder.position.interleaved": False}, "interleaved = False"),
        ("deepseek_v3/671b", {"decoder.pattern.attention.bias": True}, "attention.bias = True"),
        (
            "qwen3_next/80b-a3b",
            {f"decoder.pattern.{i}.attention.value_dim": 64 for i in range(3)},
            "value_dim = 64",
        ),
        ("qwen3_5/0.8b", {"decoder.pattern.3.attention.bias": True}, "attention.bias = True"),
        ("granitemoehybrid/4.0-h-tiny", {"decoder.position": {"type": "Rotary"}}, "position"),
        (
            "granitemoehybrid/4.0-h-tiny",
            {f"decoder.pattern.{i}.attention.conv_bias": False for i in (*range(5), *range(6, 10))},
            "conv_bias = False",
        ),
        (
            "granitemoehybrid/4.0-h-tiny",
            {f"decoder.pattern.{i}.attention.head_dim": 96 for i in (*range(5), *range(6, 10))},
            "head_dim = 96",
        ),
        (
            "llama4/scout-17b-16e",
            {f"decoder.pattern.{i}.attention.mask.size": 64 for i in range(3)},
            "mask.size = 64",
        ),
    ],
)
def test_settings_that_llama_cpp_has_no_words_for_are_refused(name, changes, sentence):
    """Its programs would compute another model of the same fields."""
    model = serial.change(recipes.find(name), changes)
    with mistake(re.escape(sentence), "has no words for"):
        gguf.check(model, *described(model, name.partition("/")[0]))


@pytest.mark.parametrize(
    "words, sentence",
    [
        ({"hidden_activation": "relu"}, "hidden_activation is relu"),
        ({"mlp_bias": True}, "feedforward.bias = True"),
        ({"layer_types": ["full_attention"] * 3}, "attention.mask = {'type': 'Full'}"),
        ({"layer_types": ["sliding_attention"] * 3}, "attention.mask = {'type': 'Window'"),
    ],
)
def test_settings_of_modernbert_that_llama_cpp_computes_otherwise_are_refused(words, sentence):
    model = recipes.read_config(CASES["ModernBert"]["config"] | words)[1]
    with mistake(re.escape(sentence)):
        gguf.check(model, *described(model))


# ------------------------------------------------------------------- against the converter's files

STATES = {
    "conv_kernel": 4,
    "group_count": 1,
    "inner_size": 64,
    "state_size": 256,
    "time_step_rank": 1,
}
# fields of the converter's that have nothing to do with the model
THEIRS = {
    "Falcon": {"falcon.context_length": 2048},
    "Phimoe": {"phimoe.rope.scaling.original_context_length": 64},
    "ModernBert": {"modern-bert.classifier.pooling_type": 2},
    # of layers that these have none of
    "GraniteMoeHybrid attention alone": {
        f"granitemoe.ssm.{name}": size for name, size in STATES.items()
    },
    "GraniteMoeHybrid dense attention alone": {
        **{f"granite.ssm.{name}": size for name, size in STATES.items()},
        "granite.attention.head_count_kv": [2, 2, 2],
        "granite.expert_count": 0,
        "granite.expert_used_count": 0,
        "granite.expert_shared_feed_forward_length": 28,
        "granite.rope.scaling.finetuned": True,
    },
}
# whose files hold 1 + x or -exp(x): x comes back rounded
UNEQUAL = ("Gemma", "Mamba2", "Qwen3Next", "Qwen3_5", "GraniteMoeHybrid", "NemotronH")


# none is padding, which transformers gives no position in an XLM-RoBERTa
IDS, SOURCE = torch.arange(40)[None] * 7 % 59 + 2, torch.arange(30)[None] * 11 % 59 + 2


def logits_of(model):
    with inference(model):
        out = model(IDS, *[SOURCE] * isinstance(model.config, config.EncoderDecoder))
    return out.hidden if model.config.head is None else out.logits


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_the_converters(tmp_path, name):
    """Written: their fields and tensors, bit for bit; read back: the same model."""
    facts, family = CASES[name], name.partition(" ")[0]
    model = model_of(facts["config"])
    gguf_file.save(model, tmp_path / "model.gguf", "F32", None)
    actual, overrides = facts_of(tmp_path / "model.gguf"), THEIRS.get(name, THEIRS.get(family, {}))
    assert actual["tensors"] == facts["tensors"]
    assert {**actual["fields"], **overrides} == facts["fields"]
    back, tokenizer = glassformer.load(tmp_path / "model.gguf")
    assert tokenizer is None
    if family.startswith(UNEQUAL):
        torch.testing.assert_close(logits_of(back), logits_of(model), rtol=0.0, atol=1e-5)
    else:
        if family != "XLMRoberta":  # of whose table of positions the first two rows are gone
            assert tiny.equal_tensors(back.state_dict(), model.state_dict())
        assert torch.equal(logits_of(back), logits_of(model))
    gguf_file.save(back, tmp_path / "again.gguf", "F32", None)
    assert facts_of(tmp_path / "again.gguf")["fields"] == actual["fields"]


@pytest.mark.parametrize("name", ["Gemma", "Qwen3_5"])
def test_numbers_of_bf16_keep_their_digits_in_another_form(tmp_path, name):
    """1 + x and -exp(x) are F32 there, as the converter computes them: not rounded to bf16 first."""
    name = next(case for case in CASES if case.partition(" ")[0] == name)
    model = model_of(CASES[name]["config"]).bfloat16()
    gguf_file.save(model, tmp_path / "model.gguf", "BF16", None)
    back, _ = glassformer.load(tmp_path / "model.gguf")
    for (path, weight), expected in zip(back.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(weight, expected.float(), rtol=1e-6, atol=1e-6, msg=path)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_heads_narrower_than_a_block_of_codes_side_by_side(tmp_path, kind):
    """Columns that move alone are rounded where they lie there, and read as numbers. Codes that would
    be rounded a second time are refused."""
    name = next(case for case in CASES if case.partition(" ")[0] == "Qwen3_5")
    model = model_of(CASES[name]["config"])
    gguf_file.save(model, tmp_path / "model.gguf", kind, None)
    back, _ = glassformer.load(tmp_path / "model.gguf")
    parts = {"Q8_0": 127, "Q4_0": 5}[kind]  # a scale is searched, and cuts the largest
    for (path, weight), expected in zip(back.named_parameters(), model.parameters(), strict=True):
        assert (weight - expected).abs().max() <= expected.abs().max() / parts, path
    quantize_weights(model, QuantizedLayout(gguf_file.CODED[kind]))
    with mistake("rounded a second time"):
        gguf_file.save(model, tmp_path / "again.gguf", kind, None)
    assert not (tmp_path / "again.gguf").exists()


@pytest.mark.parametrize("mode", ["mean", "first", "last"])
def test_vectors_of_a_text_are_pooled_as_before(tmp_path, mode):
    """An encoder's vector of a text, by llama.cpp's pooling_type."""
    cfg = recipes.read_config(CASES["Bert"]["config"])[1]
    model = build_model(replace(cfg, pool=config.Pool(mode, normalize=True)), seed=0).eval()
    gguf_file.save(model, tmp_path / "model.gguf", "F32", None)
    back, _ = glassformer.load(tmp_path / "model.gguf")
    assert back.config.pool == model.config.pool
    assert tiny.equal_tensors(back.state_dict(), model.state_dict())


def test_what_llama_cpp_wants_beside_a_model_stands_in_its_file(tmp_path):
    """The kinds of segments, and biases of distances in F32."""
    gguf_file.save(model_of(CASES["Bert"]["config"]), tmp_path / "bert.gguf", "F32", None)
    segments = GGUFReader(tmp_path / "bert.gguf").fields["tokenizer.ggml.token_type_count"]
    assert segments.contents() == 2
    gguf_file.save(model_of(CASES["T5"]["config"]), tmp_path / "t5.gguf", "F16", None)
    kinds = {item.name: item.tensor_type.name for item in GGUFReader(tmp_path / "t5.gguf").tensors}
    assert kinds["enc.blk.0.attn_q.weight"] == "F16"
    assert kinds["enc.blk.0.attn_rel_b.weight"] == kinds["dec.blk.0.attn_rel_b.weight"] == "F32"


def test_t5_reads_a_text_as_the_folder_does(tmp_path, shared_data):
    """A translator in one file: the rows behind the vocabulary, the end of a source, the first token of a
    target. A table that nothing ever read, as the first files of T5 hold it, is left."""
    tokenizer = open_tokenizer(shared_data / "tok-t5" / "tokenizer.json")
    model = model_of(CASES["T5 tied"]["config"] | {"vocab_size": 32_128})
    gguf_file.save(model, tmp_path / "t5.gguf", "F32", tokenizer)
    reader, writer = GGUFReader(tmp_path / "t5.gguf"), GGUFWriter(tmp_path / "old.gguf", "t5")
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(key, field.contents(), *field.types[:2])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.add_tensor("dec.blk.0.cross_attn_rel_b.weight", np.ones((32, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    text = "translate English to German: The house is wonderful."
    for name in ("t5.gguf", "old.gguf"):
        back, reads = glassformer.load(tmp_path / name)
        assert reads.encode(text) == tokenizer.encode(text)
        assert tiny.equal_tensors(back.state_dict(), model.state_dict())
        expected = glassformer.translate(model, tokenizer, text, max_new=8)
        assert glassformer.translate(back, reads, text, max_new=8) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    model = model_of(CASES[name]["config"])
    store.save(model, tmp_path / "theirs", layout="hf")
    gguf_file.save(model, tmp_path / "model.gguf", "F32", None)
    family = name.partition(" ")[0]
    encodes, pair = family in ENCODERS, family in PAIRS
    kind = transformers.AutoModelForCausalLM
    if encodes or pair:
        kind = getattr(transformers, CASES[name]["config"]["architectures"][0])
    reference = kind.from_pretrained(tmp_path / "theirs").eval()
    back, _ = glassformer.load(tmp_path / "model.gguf")
    with torch.no_grad():
        expected = reference(SOURCE, decoder_input_ids=IDS) if pair else reference(IDS)
    expected = expected.last_hidden_state if encodes else expected.logits
    if family == "UMT5":  # whose head transformers 5 scales, whatever the file says
        expected = expected * reference.config.d_model**0.5
    assert expected.std() > 0.3 * getattr(model.config.head, "scale", 1.0)
    largest = float(expected.abs().max())
    torch.testing.assert_close(logits_of(back), expected, rtol=0.0, atol=1e-5 * max(largest, 1.0))
