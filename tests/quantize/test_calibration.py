"""What matrices are multiplied with: seen in every family, experts apart, in parts that fit the
memory."""

from __future__ import annotations

import random

import pytest
import torch
from torch.testing import assert_close

import tiny
from glassformer import config
from glassformer.core.nn import Tape
from glassformer.core.nn.model import inference
from glassformer.core.tokenizer import train
from glassformer.fast.quantize import calibration
from glassformer.fast.quantize.calibration import Text, grams
from glassformer.fast.quantized import QuantizedLayout
from glassformer.formats.data import tokenise
from glassformer.formats.data.corpus import open_path
from mistakes import mistake


def sums(name, rows):
    model = tiny.model(name)
    sides = [
        (row, row if isinstance(model.config, config.EncoderDecoder) else None) for row in rows
    ]
    return {
        path: value
        for gram in grams(model, sides, list(QuantizedLayout(8).plan(model)))
        for path, value in gram.items()
    }


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "bert", "t5", "glass", "gemma2", "vaswani", "mixtral"]
)
def test_every_matrix_is_met(name):
    """But tables that are only looked up in."""
    model = tiny.model(name)
    tables = {
        path
        for path in QuantizedLayout(8).plan(model)
        if path.startswith(("embed.", "source_embed."))
    }
    assert QuantizedLayout(8).plan(model).keys() - tables <= sums(name, [tiny.tokens(1, 20)]).keys()


def test_a_sum_is_that_of_what_the_tape_sees():
    model = tiny.model("llama")
    rows = [tiny.tokens(1, 20), tiny.tokens(1, 20, seed=1)]
    result = sums("llama", rows)
    expected = torch.zeros(32, 32)
    for row in rows:
        tape = Tape("decoder.blocks.1.ffn.in")
        with inference(model):
            model(row, tape=tape)
        x = tape["decoder.blocks.1.ffn.in"][0]
        expected += x.T @ x
    for name in ("gate", "up"):
        assert_close(result[f"decoder.blocks.1.ffn.{name}.weight"], expected, rtol=1e-4, atol=1e-3)


def test_an_expert_has_its_own_tokens():
    row = tiny.tokens(1, 20)
    result = sums("mixtral", [row])["decoder.blocks.0.ffn.up"]
    tape = Tape("decoder.blocks.0.ffn.*")
    model = tiny.model("mixtral")
    with inference(model):
        model(row, tape=tape)
    x = tape["decoder.blocks.0.ffn.in"][0]
    chosen = tape["decoder.blocks.0.ffn.chosen"][0]
    for expert in range(4):
        individual = x[(chosen == expert).any(-1)]
        assert_close(result[expert], individual.T @ individual, rtol=1e-4, atol=1e-3)


def test_parts_are_the_whole(monkeypatch):
    rows = [tiny.tokens(1, 20)]
    full = sums("llama", rows)
    monkeypatch.setattr(calibration, "MEMORY", 3 * 4 * 32 * 32)
    model = tiny.model("llama")
    outputs = []
    pieces = list(
        grams(
            model,
            [(row, None) for row in rows],
            list(QuantizedLayout(8).plan(model)),
            outputs.append,
        )
    )
    assert len(pieces) > 3
    assert outputs[-1] == f"calibrating, reading {len(pieces)} of {len(pieces)}"
    assert all(torch.equal(full[path], value) for piece in pieces for path, value in piece.items())
    assert full.keys() == {path for piece in pieces for path in piece}


def test_rows_are_spread_and_held_out_apart(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(map(str, range(2000))))
    source = open_path(path)
    tokenizer = train("byte", [], specials=[])
    cfg = tiny.DECODERS["llama"]
    with mistake("outside this model"):
        Text.of(tokenise(source, tokenizer), cfg, 100, 100)
    path.write_text("\x01\x02\x03\x04" * 400)
    text = Text.of(tokenise(open_path(path), tokenizer), cfg, 300, 64)
    assert len(text.rows) == 5
    assert len(text.held_out) == 1
    assert text.rows[0][0].shape == (1, 64)
    assert text.rows[0][1] is None
    draw = random.Random(0)
    path.write_text("".join(chr(draw.randrange(1, 50)) for _ in range(1600)))
    text = Text.of(tokenise(open_path(path), tokenizer), cfg, 10_000, 10_000)
    assert (len(text.rows), len(text.held_out)) == (20, 5)
    assert not any(torch.equal(row, stored) for row, _ in text.rows for stored, _ in text.held_out)
    path.write_text("\x01\x02\x03\x04" * 70)
    with mistake("give 320 or more"):
        Text.of(tokenise(open_path(path), tokenizer), cfg, 300, 64)


def test_two_vocabularies_need_pairs(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\x01\x02\x03\x04" * 400)
    tokenizer = train("byte", [], specials=[])
    with mistake(r"a vocabulary of its own.*--target"):
        Text.of(tokenise(open_path(path), tokenizer), tiny.ALL["two vocabularies"], 300, 64)
    text = Text.of(tokenise(open_path(path), tokenizer), tiny.ALL["t5"], 300, 64)
    assert all(source is tokens for tokens, source in text.rows)
    with mistake("4 pairs of texts are too few; give 5"):
        Text.of_pairs([([1], [2])] * 4, 10, 10)
