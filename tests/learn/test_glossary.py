"""Every term of the course: its line of code stands in the source, its number is computed, its
links lead somewhere."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from glassformer.learn import glossary, real_model
from glassformer.learn.exercise import catalogue
from mistakes import mistake

ASKED = """
attention, self-attention, cross-attention, multi-head attention, query, key, value, residual connection,
layer normalization, FFN, causal mask, embedding matrix, weight tying, positional embedding, rotary embedding,
vocabulary, token, logits, softmax, temperature, top-k, top-p, beam search, KV cache, MQA, GQA, encoder,
decoder, MLM, prefix LM, span corruption, fine-tuning, LoRA, perplexity, bits per byte, BLEU, mixture of
experts, router, sparse attention, ring attention, quantization, speculative decoding, logit lens, activation
patching, induction head, attention sink
"""
TERMS = glossary.terms()
TEXT = "The cat sat on the mat because it was tired"
Live = dict[str, Callable[[], str]]


@pytest.fixture(scope="module")
def live():
    """The functions that compute the terms' numbers for the page of the glossary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "_ext"))
        yield importlib.import_module("glossary_numbers").LIVE


@pytest.mark.parametrize("name", [" ".join(name.split()) for name in ASKED.split(",")])
def test_every_term_of_the_course_is_there(name):
    assert name in glossary.names()
    assert glossary.find(name.upper().replace("-", " ")) is glossary.names()[name]


@pytest.mark.parametrize("term", TERMS, ids=[term.key for term in TERMS])
def test_a_term_is_whole(term):
    source = (Path(glossary.PACKAGE) / term.code.path).read_text(encoding="utf-8")
    assert source.count(term.code.text) == 1
    assert term.code.text in "".join(source.splitlines()[term.code.line - 1 :])
    assert term.sentence.endswith(".")
    assert term.sentence[0].isupper()
    assert term.formula
    assert term.page
    assert all(glossary.find(second) is not term for second in term.related)
    assert not term.exercise or term.exercise in {item.name for item in catalogue()}
    json.dumps(term.to_dict())


def test_names_are_told_apart_and_in_the_order_of_the_road():
    message = [name.lower() for term in TERMS for name in (term.name, *term.also)]
    assert len(message) == len(set(message))
    assert len({term.key for term in TERMS}) == len(TERMS)
    assert [term.road for term in TERMS] == sorted(term.road for term in TERMS)
    with mistake("no longer has"):
        _ = glossary.Code("core.nn.layers", "nothing like this").line


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?")


@pytest.mark.parametrize("term", TERMS, ids=[term.key for term in TERMS])
def test_a_live_number_is_computed(term, live):
    """The last digit may be another on another processor."""
    computed = live[term.key]()
    stored = term.live
    assert set(live) == {term.key for term in TERMS}
    assert NUMBER.sub("#", computed) == NUMBER.sub("#", stored)
    numbers, expected = (
        [float(number.replace(",", "")) for number in NUMBER.findall(text)]
        for text in (computed, stored)
    )
    assert numbers and numbers == pytest.approx(expected, rel=2e-3, abs=1.1e-4), computed


def test_numbers_are_the_models(live):
    """Some of them, computed in another way."""
    model, tokenizer = real_model.real()
    ids = torch.tensor([tokenizer.encode(TEXT)])
    logits = real_model.logits(model, ids)[0]
    loss = float(torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]))
    assert f"{loss:.3f} a token, so {math.exp(loss):.1f};" in live["perplexity"]()
    assert f"{float(logits[-1].softmax(-1).max()):.4f}." in live["softmax"]()
    T = ids.shape[1]
    assert live["causal_mask"]().startswith(f"{T * (T - 1) // 2} of the {T * T} scores")
    assert f"causally {T * (T + 1) // 2}." in live["prefix_lm"]()
    assert f"sees {T * (T + 1) // 2 + 6} pairs" in live["prefix_lm"]()
    assert "0.6652, 0.2447, 0.0900" in live["softmax"]()
    assert "128 KiB a token in bf16 instead of 512." in live["grouped_query_attention"]()
    assert "46.7 billion parameters" in live["mixture_of_experts"]()
    assert "12.9 of them" in live["mixture_of_experts"]()
    assert "(0.5403, 0.8415)" in live["rotary_embedding"]()  # cos 1, sin 1
    assert "53.7." in live["bleu"]()
    real_model.real()[0].load_state_dict(
        {name: weight * 0 for name, weight in model.state_dict().items()}
    )
    assert real_model.greedy(*real_model.real()) != real_model.greedy(
        *_zeroed()
    )  # a copy each time


def _zeroed():
    model, tokenizer = real_model.real()
    model.load_state_dict({name: weight * 0 for name, weight in model.state_dict().items()})
    return model, tokenizer


def test_bleu_is_sacrebleus(live):
    sacrebleu = pytest.importorskip("sacrebleu")
    score = sacrebleu.corpus_bleu(["the cat sat on a mat"], [["the cat sat on the mat"]]).score
    assert f": {score:.1f}." in live["bleu"]()


@pytest.mark.parametrize(
    "words", ["causal mask", "'causal mask'", "Causal-Masks", "'look-ahead mask'"]
)
def test_define_prints_it(words, terminal):
    output = terminal(f"define {words}")
    assert output.startswith(
        "causal mask (also look-ahead mask, triangular mask)\n  Hides from each token"
    )
    assert "core/config/mask.py, line " in output
    assert "136 of the 289" in output
    assert "learn start causal-mask" in terminal.notes


def test_a_causal_transformer_is_a_decoder(terminal):
    output = terminal("define 'Causal (decoder-only) transformer'")
    assert output.startswith("decoder (also causal (decoder-only) transformer")


def test_define_as_json_and_as_a_list(terminal):
    data = terminal.json("define MQA")
    assert data["name"] == "multi-query attention"
    assert "live" in data
    assert data["code"]["line"] > 1
    assert len(terminal.json("define")) == len(TERMS)
    assert "attention sink" in terminal("define")


@pytest.mark.parametrize(
    "words, hint",
    [
        ("'casual mask'", 'Did you mean "causal mask"?'),
        ("'kv cash'", 'Did you mean "KV cache"?'),
        ("zzz", "lists the terms"),
    ],
)
def test_an_unknown_term_gets_the_nearest(words, hint, terminal):
    assert hint in terminal.refused(f"define {words}")


def test_the_data_needs_no_torch():
    code = (
        "import sys; from glassformer.learn import glossary, catalogue; glossary.names(); "
        "catalogue(); "
    )
    code += (
        "from glassformer.cli import main; main(['define', 'router']); assert "
        "'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_page_of_the_format_runs(tmp_path, terminal, capsys):
    """docs/learn.md: the teacher's exercise is one, and the lines of Python run."""
    page = (Path(__file__).parents[2] / "docs" / "learn.md").read_text(encoding="utf-8")
    exercise, program = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "double_it.py").write_text(exercise)
    path = tmp_path / "work" / "double_it.py"
    terminal(f"learn start double-it --out {path.parent} --exercises {tmp_path}")
    text = path.read_text()
    check = f"learn check {path} --exercises {tmp_path}"
    terminal(check, code=1)
    path.write_text(text.replace("raise NotImplementedError", "return x * x"))
    assert "Look at: twice is not squared" in terminal(check, code=1)
    path.write_text(text.replace("raise NotImplementedError", "return x + x"))
    terminal(check)
    exec(compile(program, "learn.md", "exec"), {})
    assert "raise NotImplementedError" in capsys.readouterr().out
