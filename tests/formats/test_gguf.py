"""GGUF files and their fields (gguf_fields), against llama.cpp's own Python reader (the package
gguf), and against files that lie."""

from __future__ import annotations

import random
import resource
import struct
import time

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter, dequantize

import glassformer
import tiny
from folders import snapshot
from glassformer import families as recipes
from glassformer.commands import common
from glassformer.core.config import serial
from glassformer.core.errors import UserError
from glassformer.core.nn import build_model
from glassformer.core.nn.model import inference
from glassformer.core.tokenizer import train
from glassformer.fast.quantized import QuantizedLayout, quantize_weights, quantized
from glassformer.formats import gguf, store
from glassformer.formats.checkpoint import Checkpoint
from glassformer.formats.gguf_file import read_gguf
from mistakes import mistake

TEXT = "the cat sat on the mat, and the dog sat on the cat. " * 20
TINY = b"\x04\0\0\0\0\0\0\0tiny"  # the text of a field
# the first tensor up to its kind: its name, its axes and their sizes
KIND = b"token_embd.weight" + struct.pack("<IQQ", 2, 64, 300)
SMALL = {"decoder.depth": 2, "context": 64, "embed.vocab": 300}


SCALES = {"Q4_K": [0, 2], "Q6_K": [208], "Q2_K": [80, 82], "IQ4_XS": [0], "IQ4_NL": [0]}
SCALES |= {"Q5_K": [0, 2], "Q3_K": [108], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2]}


def kind_of(name):
    return GGMLQuantizationType[name]


def model_of(name="llama/stories260k", seed=1, dim=64):
    heads = {} if name.startswith("gpt2") else {"decoder.pattern.attention.kv_heads": 2}
    heads |= {"decoder.pattern.attention.heads": 4, "decoder.pattern.feedforward.hidden": 96}
    heads |= {"decoder.position.length": 64} if name.startswith("gpt2") else {}
    if name.startswith("qwen3"):
        heads["decoder.pattern.attention.head_dim"] = 16
    cfg = serial.change(recipes.find(name), {**SMALL, **heads, "dim": dim})
    cfg = serial.change(
        cfg, {"init": {"type": "Init", "std": 0.15, "embed_std": 0.3, "residual": "plain"}}
    )
    return tiny.model(cfg, seed=seed)


def logits_of(model):
    with inference(model):
        return model(tiny.tokens()).logits


def written(folder, kind="F32", name="llama/stories260k"):
    path = folder / "model.gguf"
    gguf.save(model_of(name), path, kind, train("bpe", [TEXT], 300), "tiny")
    return path


@pytest.mark.parametrize("kind, width", [("Q8_0", 34), ("Q4_0", 18)])
def test_blocks_are_joined_as_they_are_parted(kind, width):
    raw = np.random.default_rng(0).integers(0, 256, (5, width), dtype=np.uint8)
    codes, scales = gguf.split(kind, raw)
    assert np.array_equal(gguf.join(kind, codes, scales), raw)
    numbers = dequantize(raw, GGMLQuantizationType[kind])
    assert np.array_equal(codes * scales.astype(np.float32), numbers, equal_nan=True)


@pytest.mark.parametrize("kind", SCALES)
def test_other_kinds_are_the_numbers_that_llama_cpp_reads(tmp_path, kind):
    """Every byte of one matrix drawn at random, but the scales, which are finite."""
    gguf.save(model_of(dim=256), tmp_path / "model.gguf", "F32", None)
    reader = GGUFReader(tmp_path / "model.gguf")
    block, width = GGML_QUANT_SIZES[kind_of(kind)]
    raw = np.random.default_rng(0).integers(0, 256, (300, 256 // block, width)).astype(np.uint8)
    for at in SCALES[kind]:
        raw[..., at : at + 2] = np.frombuffer(np.float16(0.25).tobytes(), np.uint8)
    raw = raw.reshape(300, -1)
    writer = GGUFWriter(tmp_path / "other.gguf", "llama")
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        if tensor.name == "token_embd.weight":
            writer.add_tensor(tensor.name, raw, raw_dtype=kind_of(kind))
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    back, _ = glassformer.load(tmp_path / "other.gguf")
    table = back.get_parameter("embed.token.weight").detach().numpy()
    assert np.array_equal(table, dequantize(raw, kind_of(kind)))


@pytest.mark.parametrize("name", ["llama/stories260k", "qwen2/0.5b", "qwen3/0.6b", "gpt2/124m"])
def test_a_model_comes_back_bit_for_bit(tmp_path, name):
    model = model_of(name)
    back, tokenizer = glassformer.load(written(tmp_path, "F32", name))
    assert torch.equal(logits_of(back), logits_of(model))
    assert tokenizer is not None
    assert tokenizer.encode(TEXT) == train("bpe", [TEXT], 300).encode(TEXT)


def few(bits=8, **layout):
    """The model in codes."""
    model = model_of()
    quantize_weights(model, QuantizedLayout(bits, **layout))
    return model


def codes_of(model):
    return {path: weight.quantized_data.codes for path, weight in quantized(model).items()}


@pytest.mark.parametrize(
    "kind, most", [("F16", 3e-3), ("BF16", 3e-2), ("Q8_0", 0.05), ("Q4_0", 0.6)]
)
def test_kinds_are_as_near_as_their_bits(tmp_path, kind, most):
    expected = logits_of(model_of())
    path = written(tmp_path, kind)
    back, _ = glassformer.load(path)
    assert float((logits_of(back) - expected).norm() / expected.norm()) < most
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    up = tensors["blk.1.ffn_up.weight"]
    assert up.tensor_type.name == kind
    assert tensors["output_norm.weight"].tensor_type.name == "F32"
    name = "decoder.blocks.1.ffn.up.weight"
    weight = quantized(back)[name].decoded() if kind[0] == "Q" else back.get_parameter(name)
    assert np.array_equal(dequantize(up.data, kind_of(kind)), weight.detach().numpy())


def test_queries_and_keys_lie_as_llama_cpp_opens_them(tmp_path):
    """Each head's rotary pairs, halves of it here, side by side there; values as they are."""
    model = model_of()
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(written(tmp_path)).tensors}
    for piece, heads in (("q", 4), ("k", 2), ("v", 1)):
        weight = model.get_parameter(f"decoder.blocks.1.attn.{piece}.weight").detach().numpy()
        turned = weight.reshape(heads, 2, 8, 64).swapaxes(1, 2) if piece != "v" else weight
        assert np.array_equal(tensors[f"blk.1.attn_{piece}.weight"], turned.reshape(weight.shape))


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_go_out_and_come_back(tmp_path, bits):
    """Codes of a model quantized here, queries and keys turned to llama.cpp's order and back."""
    model = few(bits)
    gguf.save(model, tmp_path / "a.gguf", "F16", None)
    back, tokenizer = glassformer.load(tmp_path / "a.gguf")
    assert tokenizer is None
    assert tiny.equal_tensors(codes_of(model), codes_of(back))
    assert torch.equal(logits_of(back), logits_of(model))
    store.save(back, tmp_path / "folder")
    assert torch.equal(logits_of(glassformer.load(tmp_path / "folder")[0]), logits_of(model))
    plain, _ = glassformer.load(tmp_path / "a.gguf", dtype="float32")
    assert not quantized(plain)


@pytest.mark.parametrize("bits", [None, 8])
def test_keys_of_latent_attention_are_rounded_as_they_lie(tmp_path, bits):
    """A file cuts their matrix in two for each head, one part transposed, so that codes of its rows
    are none of the file's."""
    words = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    words |= {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 300}
    words |= {"num_attention_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 64, "v_head_dim": 32}
    words |= {"qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "first_k_dense_replace": 1}
    words |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    words |= {"n_group": 1, "topk_group": 1, "initializer_range": 0.15}
    model = tiny.model(recipes.read_config(words)[1])
    if bits:
        quantize_weights(model, QuantizedLayout(bits))
    gguf.save(model, tmp_path / "a.gguf", "Q8_0" if bits is None else "F16", None)
    places = read_gguf(tmp_path / "a.gguf")[1]
    kind = "F16" if bits else "Q8_0"
    assert [places[f"blk.1.attn_{projection}_b.weight"][:2] for projection in "kv"] == [
        (kind, (4, 64, 32)),
        (kind, (4, 32, 64)),
    ]
    back, _ = glassformer.load(tmp_path / "a.gguf")
    name = "decoder.blocks.1.attn.kv_up.weight"
    expected = quantized(model)[name].decoded() if bits else model.get_parameter(name)
    step = 2**-11 if bits else float(expected.detach().abs().max()) / 127
    torch.testing.assert_close(back.get_parameter(name), expected, rtol=0.0, atol=step * 0.51)
    if bits:
        codes = codes_of(model)
        assert tiny.equal_tensors({path: codes[path] for path in codes_of(back)}, codes_of(back))
        assert len(codes) == len(codes_of(back)) + 2


def test_larger_groups_go_out_as_their_codes_too(tmp_path):
    """A scale is repeated for each block of 32, so nothing is rounded again."""
    model = few(4, group=64)
    stored = gguf.save(model, tmp_path / "a.gguf", "F16", None)
    assert stored["Q4_0"] == 14
    assert stored["Q8_0"] == 1
    assert stored.total() == 20
    reference = quantized(glassformer.load(tmp_path / "a.gguf")[0])
    for path, weight in quantized(model).items():
        assert torch.equal(weight.decoded(), reference[path].decoded())
    assert read_gguf(tmp_path / "a.gguf")[0]["general.file_type"] == gguf.FILE_TYPES["Q4_0"]


@pytest.mark.parametrize("bits, kind", [(8, "Q4_0"), (4, "Q8_0"), (8, "")])
def test_codes_are_not_rounded_again(tmp_path, bits, kind):
    """Other kinds that are not written, and an adapter on codes: commands/test_quantize.py."""
    message = f"codes of {bits} bits, and {kind} would round them a second time"
    with mistake(message if kind else "not in"):
        gguf.save(few(bits), tmp_path / "a.gguf", kind, None)
    assert not list(tmp_path.iterdir())


def test_rows_that_no_block_divides_are_f16(tmp_path, shared_data):
    model, tokenizer = glassformer.load(shared_data / "stories260K")
    gguf.save(model, tmp_path / "stories.gguf", "Q8_0", tokenizer)
    kinds = {name: place.kind for name, place in read_gguf(tmp_path / "stories.gguf")[1].items()}
    assert kinds["blk.0.ffn_down.weight"] == "F16"
    assert kinds["blk.0.ffn_up.weight"] == "Q8_0"
    back, reader = glassformer.load(tmp_path / "stories.gguf")
    text = "Once upon a time, there was a girl who didn't like 3 big dogs."
    assert reader.encode(text) == tokenizer.encode(text)
    steps = (
        glassformer.generate(*pair, "Once upon a time", max_new=30, temperature=0)
        for pair in ((model, tokenizer), (back, reader))
    )
    first, second = ("".join(step.text for step in run) for run in steps)
    assert first == second


def test_a_file_is_a_model_everywhere(tmp_path):
    path = written(tmp_path, "Q8_0")
    opened = Checkpoint.open(path)
    assert opened.is_gguf
    assert opened.source_tokenizer() is None
    fitted = opened.model_as(opened.config, dtype=torch.float32)
    assert not quantized(fitted.model)
    assert not fitted.new
    few, _ = glassformer.load(written(tmp_path, "F16"), bits=4)
    assert quantized(few)
    assert common.new_file(path)


def test_what_is_no_gguf_or_cut_short_is_refused(tmp_path):
    path = written(tmp_path)
    raw = path.read_bytes()
    cut = (raw[:3], raw[:100], raw[:-1000])
    for piece in (*cut, b"PK" + raw[2:], raw[:4] + b"\x09\0\0\0" + raw[8:]):
        path.write_bytes(piece)
        with mistake(r"whole GGUF|architecture"):
            glassformer.load(path)
    with mistake(r"There is no folder"):
        glassformer.load(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    "old, new, sentence",
    [
        *(
            (KIND + bytes(4), KIND + struct.pack("<I", number), f"kind {name}")
            for number, name in ((24, "I8"), (31, "31"), (1 << 31, "2147483648"))
        ),
        (b"general.name", b"general.n\xffme", "the name of field 14 of 24: a text is not UTF-8 at"),
        (TINY, TINY.replace(b"i", b"\xff"), "the field 'general.name': a text is not UTF-8"),
        (
            b"token_embd.weight\x02",
            b"token_embd.weight\x07",
            "tensor 1 of 20, 'token_embd.weight': a tensor has 7 axes",
        ),
        (b"general.architecture", b"general.architectuRe", "lacks general.architecture"),
        (b"tokenizer.ggml.model", b"tokenizer.ggml.Model", "it lacks tokenizer.ggml.model"),
        (
            b"blk.1.attn_q.weight",
            b"blk.1.attn_Q.weight",
            "no place for blk.1.attn_Q.weight; copy or convert it again",
        ),
    ],
)
def test_what_is_broken_is_named(tmp_path, old, new, sentence):
    path = written(tmp_path)
    raw = path.read_bytes()
    assert old in raw
    path.write_bytes(raw.replace(old, new, 1))
    with mistake(sentence):
        glassformer.load(path)


def place_of(raw, name):
    """Where the eight bytes of a tensor's offset stand, behind its name, its shape and its kind."""
    axes = raw.index(name) + len(name)
    return axes + 4 + 8 * raw[axes] + 4


DAMAGE = {
    "one tensor where another lies": "'blk.0.attn_k.weight': it overlaps",
    "two tensors in each other's place": "it overlaps another",
    "a gap": "leaves a gap",
    "numbers of a smaller kind": "leaves a gap",
    "a longer file": "its end: 64 bytes follow the tensors",
    "fewer blocks than there are": "no place for blk.1",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_no_file_opens_with_the_weights_of_another_place(tmp_path, damage):
    """llama.cpp refuses all of these as well."""
    path = written(tmp_path)
    raw = bytearray(path.read_bytes())
    a, b = (place_of(raw, b"blk.0.attn_%s.weight" % letter) for letter in (b"k", b"v"))
    offsets = raw[a : a + 8], raw[b : b + 8]
    match damage:
        case "one tensor where another lies":
            raw[a : a + 8] = offsets[1]
        case "two tensors in each other's place":
            raw[a : a + 8], raw[b : b + 8] = offsets[::-1]
        case "a gap":
            raw[a] += 32
        case "numbers of a smaller kind":
            raw[a - 4] = GGMLQuantizationType.Q8_0
        case "a longer file":
            raw += bytes(64)
        case "fewer blocks than there are":
            at = raw.index(b"llama.block_count") + len(b"llama.block_count") + 4
            assert raw[at] == 2
            raw[at] = 1
    path.write_bytes(bytes(raw))
    with mistake(DAMAGE[damage]):
        glassformer.load(path)


def test_a_field_comes_once(tmp_path):
    fields = b"".join(_text("llama.block_count") + struct.pack("<II", 4, n) for n in (2, 1))
    (tmp_path / "twice.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + fields)
    with mistake("the field 'llama.block_count': it comes twice"):
        glassformer.load(tmp_path / "twice.gguf")


def test_files_with_bytes_changed_give_a_model_or_a_sentence(tmp_path):
    """300 files with some of the first 6,000 bytes changed: fields, names, shapes, kinds, offsets
    and scales."""
    path = written(tmp_path, "Q8_0")
    draw = random.Random(0)
    raw = path.read_bytes()
    loaded = 0
    for _ in range(300):
        group = bytearray(raw)
        for _ in range(draw.choice((1, 1, 2, 8))):
            at = draw.randrange(min(len(raw), draw.choice((64, 1500, 20_000))))
            group[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        path.write_bytes(bytes(group))
        try:
            glassformer.load(path)
            loaded += 1
        except UserError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 600
    assert 0 < loaded < 300


def test_a_disk_that_fills_up_is_a_sentence_and_leaves_nothing(tmp_path):
    """The limit of a file's size stands in for it: numpy says neither with an error's number."""
    model = build_model(tiny.ALL["llama"], seed=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with mistake("The disk that holds .*/m.gguf is full; free some space"):
            gguf.save(model, tmp_path / "new" / "m.gguf", "F32", None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not snapshot(tmp_path)


def test_a_file_that_is_there_already_survives_a_failure(tmp_path):
    path = tmp_path / "a.gguf"
    model = model_of()
    path.write_bytes(b"before")
    with torch.no_grad():
        model.get_parameter("embed.token.weight")[0, 0] = 1e6
    with mistake("too large for F16"):
        gguf.save(model, path, "F16", None)
    assert snapshot(tmp_path) == {"a.gguf": b"before"}


def _text(text):
    return struct.pack("<Q", len(text)) + text.encode()


@pytest.mark.parametrize("kind", ["tensors", "fields", "texts"])
def test_more_of_anything_than_a_model_has_is_refused_at_once(tmp_path, kind):
    many = 300_000
    counts = {"tensors": (300_000, 0), "fields": (0, 300_000), "texts": (0, 1)}
    head = b"GGUF" + struct.pack("<IQQ", 3, *counts[kind])
    if kind == "tensors":
        places = (struct.pack("<IQIQ", 1, 8, 0, 32 * i) for i in range(many))
        head += b"".join(_text(f"t{i}") + place for i, place in enumerate(places))
        head += bytes(-len(head) % 32 + 32 * many)
    elif kind == "fields":
        head += b"".join(_text(f"f{i}") + struct.pack("<II", 4, i) for i in range(many))
    else:
        head += _text("general.architecture") + struct.pack("<IIQ", 9, 8, 4_000_000)
        head += bytes(8 * 4_000_000)
    path = tmp_path / "many.gguf"
    path.write_bytes(head)
    began = time.process_time()
    with mistake(r"more than any model has|too long"):
        glassformer.load(path)
    assert time.process_time() - began < 0.3
