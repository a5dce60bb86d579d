"""The quantization_report: its figures against the models themselves, its order, and that better rounding is
better."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch

import tiny
from glassformer import config
from glassformer.core.nn.model import inference
from glassformer.core.nn.replace import replace_parameter
from glassformer.fast.quantize import (
    Text,
    display,
    picture,
    quantize_model,
    quantizing,
)
from glassformer.fast.quantized import QuantizedLayout, QuantizedWeight, quantize_weights, quantized
from mistakes import mistake

ROWS = [tiny.tokens(1, 40, seed=i) for i in range(11)]
TEXT = Text([(row, None) for row in ROWS[:8]], [(row, None) for row in ROWS[8:]])


def logits(model, row):
    with inference(model):
        return model(row).logits[0]


def reported(name="llama", bits=4):
    before = tiny.model(name)
    after = copy.deepcopy(before)
    text = TEXT
    if isinstance(before.config, config.EncoderDecoder):
        text = Text([(row, row) for row in ROWS[:8]], [(row, row) for row in ROWS[8:]])
    return before, after, quantize_model(after, QuantizedLayout(bits), text, name="tiny")


def test_figures_are_those_of_the_models():
    before, after, report = reported()
    kl = 0.0
    repeated = 0
    for row, _ in TEXT.held_out:
        p, q = (logits(model, row).log_softmax(-1) for model in (before, after))
        kl += float((p.exp() * (p - q)).sum())
        repeated += int((p.argmax(-1) == q.argmax(-1)).sum())
    effect = report.wholes[-1].effect
    assert effect is not None
    assert report.measured == 120
    assert report.calibrated == 320
    assert effect.kl == pytest.approx(kl / 120, rel=1e-3)
    assert effect.agreement == pytest.approx(repeated / 120)
    nats = [
        torch.nn.functional.cross_entropy(logits(after, row)[:-1], row[0, 1:])
        for row, _ in TEXT.held_out
    ]
    assert effect.perplexity is not None
    assert report.perplexity is not None
    assert effect.change is not None
    assert effect.perplexity == pytest.approx(float(torch.stack(nats).mean().exp()), rel=1e-4)
    nats = [
        torch.nn.functional.cross_entropy(logits(before, row)[:-1], row[0, 1:])
        for row, _ in TEXT.held_out
    ]
    assert report.perplexity == pytest.approx(float(torch.stack(nats).mean().exp()), rel=1e-4)
    assert effect.change == pytest.approx(
        (effect.perplexity - report.perplexity) / report.perplexity, rel=1e-6
    )
    stored = quantized(after)
    assert {row.name for row in report.rows} == stored.keys()
    for row in report.rows:
        local = stored[row.name]
        plain = before.get_parameter(row.name)
        assert row.before == plain.nbytes
        assert row.after == local.nbytes
        assert row.bits == local.quantized_data.bits
        assert row.weight == pytest.approx(
            float((local.decoded() - plain.detach()).norm() / plain.detach().norm()), rel=1e-3
        )
    assert report.after == sum(weight.nbytes for weight in after.parameters())


def test_a_row_is_that_matrix_alone(monkeypatch):
    monkeypatch.setattr(quantizing, "TOKENS_EACH", 41)  # so two rows of 40
    before, after, report = reported()
    row = report.rows[0]
    replace_parameter(before, row.name, after.get_parameter(row.name))
    plain = tiny.model("llama")
    kl = 0.0
    for text, _ in TEXT.held_out[:2]:
        p, q = (logits(model, text).log_softmax(-1) for model in (plain, before))
        kl += float((p.exp() * (p - q)).sum())
    assert row.effect is not None
    assert row.effect.kl == pytest.approx(kl / 80, rel=1e-3)
    harms = [row.effect.harm for row in report.rows if row.effect]
    assert len(harms) == len(report.rows)
    assert harms == sorted(harms, reverse=True)


def test_calibrated_is_better_than_searched_and_that_than_nearest():
    _, _, report = reported()
    assert [full.rounding for full in report.wholes] == ["nearest", "searched", "calibrated"]
    nearest, searched, calibrated = report.wholes
    assert searched.weight < nearest.weight
    outputs = [full.output or 0.0 for full in report.wholes]
    assert 0 < outputs[2] < outputs[1] < outputs[0]
    assert nearest.effect
    assert calibrated.effect
    assert calibrated.effect.harm < nearest.effect.harm


@pytest.mark.parametrize("name", ["bert", "t5", "mixtral", "attention-pair", "gpt2"])
def test_other_shapes_are_reported_too(name):
    _, after, report = reported(name, 8)
    assert [full.rounding for full in report.wholes] == ["nearest"]
    assert report.to_dict() == json.loads(json.dumps(report.to_dict(), allow_nan=False)) | {
        key: report.to_dict()[key] for key in ("rows", "wholes")
    }
    assert (report.perplexity is None) == (name in ("bert", "t5", "attention-pair"))
    assert all(isinstance(after.get_parameter(row.name), QuantizedWeight) for row in report.rows)


def test_pairs_are_read_on_both_sides_and_their_targets_predicted():
    before, second = (tiny.model("two vocabularies") for _ in range(2))
    pairs = [(ROWS[i][0, :20].tolist(), ROWS[-i][0, :30].tolist()) for i in range(10)]
    text = Text.of_pairs(pairs, 150, 60)
    assert [len(side) for side in (text.rows, text.held_out)] == [5, 2]
    report = quantize_model(second, QuantizedLayout(8), text)
    nats = []
    for tokens, source in text.held_out:
        with inference(before):
            logits = before(tokens, source=source, logits="all").logits[0]
        nats.append(torch.nn.functional.cross_entropy(logits[:-1], tokens[0, 1:]))
    assert report.perplexity == pytest.approx(float(torch.stack(nats).mean().exp()), rel=1e-4)
    assert all(
        row.output is not None
        for row in report.rows
        if not row.name.startswith(("embed", "source_embed"))
    )


def test_columns_are_those_that_say_something():
    _, _, report = reported()
    heading, *lines = display.matrices(report, 3)
    assert heading[-3:] == ("KL", "same top-1", "perplexity change")
    assert len(lines) == 3
    assert {head for head, _ in display.legend(report)} == display.LEGEND.keys() - {"vector error"}
    plain = quantize_model(tiny.model("llama"), QuantizedLayout(4))
    assert display.matrices(plain)[0] == (
        "matrix",
        "bits",
        "KiB before",
        "KiB after",
        "weight error",
    )
    assert [line[0] for line in display.wholes(plain)] == ["rounded", "nearest", "searched"]
    assert {head for head, _ in display.legend(plain)} == {"weight error"}
    encoder = replace(
        tiny.ALL["bert"], head=None, pool=config.Pool("first", labels=2), token_head=None
    )
    vectors = quantize_model(tiny.model(encoder), QuantizedLayout(8), TEXT)
    assert display.matrices(vectors)[0][-1] == "vector error"


def test_groups_longer_than_any_row_are_refused():
    with mistake(r"the longest row here has \d+ numbers; give \d+ or less"):
        quantize_model(tiny.model("llama"), QuantizedLayout(8, group=4096))


def test_without_a_text_the_codes_are_those_of_load():
    model = tiny.model("llama")
    second_model = tiny.model("llama")
    report = quantize_model(model, QuantizedLayout(4))
    quantize_weights(second_model, QuantizedLayout(4))
    assert all(
        torch.equal(weight.quantized_data.codes, quantized(second_model)[path].quantized_data.codes)
        for path, weight in quantized(model).items()
    )
    assert report.perplexity is None
    assert report.rows[0].effect is None
    assert report.rows[0].output is None
    errors = [row.weight for row in report.rows]
    assert errors == sorted(errors, reverse=True)


def test_the_picture_has_a_cell_for_each_matrix():
    pytest.importorskip("matplotlib")
    _, _, report = reported()
    grid = picture(report).axes[0].images[0].get_array()
    assert int((~grid.mask).sum() if hasattr(grid, "mask") else grid.size) == len(report.rows)
