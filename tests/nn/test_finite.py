"""NaN and infinite weights: refused where they are read, named where an answer comes of them;
messages are tame."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import tiny
from glassformer import UserError, generation
from glassformer import config as c
from glassformer import sight as inspection
from glassformer.core.nn import build_model, finite
from glassformer.core.nn.finite import is_finite, must_be_finite
from glassformer.formats import store
from glassformer.formats.checkpoint import Checkpoint
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.tasks import evaluation, predictions, translation
from mistakes import mistake

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "cat", "sat", "on", "mat", "."]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    return open_tokenizer(folder)


def model(shape, name, value):
    """A model with one number of one weight that is not finite."""
    model = tiny.model(replace(shape, embed=replace(shape.embed, vocab=len(WORDS))))
    with torch.no_grad():
        model.get_parameter(name).view(-1)[3] = value
    return model


CAT = "the cat sat"


LLAMA = tiny.DECODERS["llama"]
GPT2 = tiny.DECODERS["gpt2"]
PAIR = replace(tiny.vaswani(), head=c.Head(tied=False))
LABELS = tiny.bert()
VECTOR = replace(tiny.bert(), pool=c.Pool("mean"))
ANSWERS = {
    "generate": (
        LLAMA,
        "decoder.blocks.1.attn.v.weight",
        lambda m, t: generation.generate(m, t, CAT).run(),
    ),
    "greedy": (
        LLAMA,
        "decoder.blocks.1.ffn.up.weight",
        lambda m, t: generation.generate(m, t, CAT, temperature=0).run(),
    ),
    "translate": (
        PAIR,
        "encoder.blocks.0.ffn.up.weight",
        lambda m, t: translation.translate(m, t, [CAT]),
    ),
    "classify": (LABELS, "pool.proj.weight", lambda m, t: predictions.classify(m, t, [CAT])),
    "embed": (
        VECTOR,
        "encoder.blocks.1.ffn_norm.weight",
        lambda m, t: predictions.embed(m, t, [CAT]),
    ),
    "fill": (LABELS, "head.norm.bias", lambda m, t: predictions.fill(m, t, "the ___ sat")),
    "eval": (GPT2, "decoder.last_norm.bias", lambda m, t: evaluation.score(m, t, CAT)),
    "look": (GPT2, "decoder.blocks.0.attn.out.bias", lambda m, t: inspection.look(m, t, CAT)),
}


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("verb", ANSWERS)
def test_no_answer_comes_of_what_is_no_number(verb, value, tokenizer):
    shape, name, answer = ANSWERS[verb]
    with mistake(
        rf"^((en|de)coder\.)?{name} holds NaN or infinite numbers.*load another checkpoint"
    ):
        answer(model(shape, name, value), tokenizer)


def test_weights_too_large_for_the_dtype():
    model = build_model(tiny.DECODERS["llama"], seed=1)
    with mistake(r"though its weights are not.*float32"):
        must_be_finite(model, torch.tensor([1.0, math.nan]))
    must_be_finite(model, torch.ones(2), torch.ones(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_finite(dtype):
    many = torch.full((70_000,), torch.finfo(dtype).max, dtype=dtype)  # whose sum is not finite
    assert is_finite(many)
    assert is_finite(many[:0])
    for value in (math.nan, math.inf, -math.inf):
        many[40_000] = value
        assert not is_finite(many)


@pytest.mark.parametrize("layout", ["hf", "glassformer"])
@pytest.mark.parametrize("shape, piece", [("llama", "q_proj"), ("gpt2", "c_attn")])
def test_files_that_are_read_are_refused_by_the_name_in_them(
    shape, piece, layout, tmp_path, monkeypatch
):
    bad = model(tiny.DECODERS[shape], "decoder.blocks.1.attn.q.weight", math.nan)
    store.save(bad, tmp_path, layout=layout)
    name = r"blocks\.1\.attn\.q\.weight" if layout == "glassformer" else piece
    message = f"{name}.* holds numbers that are NaN, infinite or too large for float32"
    with mistake(message):
        store.load(tmp_path)
    with mistake(name):
        Checkpoint.open(tmp_path).model_as(bad.config)
    monkeypatch.setattr("glassformer.formats.mapped.SMALL", 0)  # mapped: nobody has read them yet
    with mistake(name):
        store.load(tmp_path, dtype="bfloat16")
    mapped, _ = store.load(tmp_path)
    # and again: attention on a CPU makes zeros of NaN scores, so the answer would be finite
    for _ in range(2):
        with mistake(r"decoder.blocks.1.attn.q.weight holds NaN"):
            generation.generate(mapped, None, [[1, 2, 3]]).run()


@pytest.mark.parametrize("name", ["llama", "bert", "vaswani", "lstm"])
def test_mapped_weights_are_looked_at_once_all_of_them(name, tmp_path, monkeypatch):
    """By formats/mapped.py."""
    calls: list[int] = []
    monkeypatch.setattr("glassformer.formats.mapped.SMALL", 0)
    store.save(tiny.model(name), tmp_path / "m", layout="glassformer")
    mapped, _ = store.load(tmp_path / "m")
    monkeypatch.setattr(finite, "is_finite", lambda weight: not calls.append(weight.data_ptr()))
    tokens = [tiny.tokens()] * (2 if name == "vaswani" else 1)
    for _ in range(2):
        mapped(*tokens)
    assert sorted(calls) == sorted(weight.data_ptr() for weight in mapped.parameters())


def test_numbers_too_large_for_the_dtype_asked_for(tmp_path):
    store.save(
        model(tiny.DECODERS["llama"], "decoder.blocks.1.attn.v.weight", 1e30), tmp_path / "m"
    )
    store.load(tmp_path / "m")
    with mistake("too large for float16"):
        store.load(tmp_path / "m", dtype="float16")


# -------------------------------------------------------------------------------------- messages


def test_a_message_cannot_steer_a_terminal_nor_fill_it():
    message = str(
        UserError("says \x1b[2J\x1b]0;owned\x07 and\nmore\r\u202e ünïcode 漢字 \ud800; fix")
    )
    assert message.isprintable()
    assert "\\x1b[2J" in message
    assert "and\\nmore\\r\\u202e ünïcode 漢字 \\ud800; fix" in message
    for filler in ("x", "\x1b", "漢"):
        message = str(UserError(f"begins {filler * 5000} ends."))
        assert len(message) <= 1500
        assert message.isprintable()
        assert message.startswith("begins ")
        assert message.endswith(" ends.")
    assert str(UserError("x" * 1500)) == "x" * 1500
