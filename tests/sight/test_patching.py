"""A grid's cells are those of runs patched one by one, in full; ``patching`` begins each at the patched
block."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.sight import look, patch_grid
from glassformer.sight.edits import patch
from glassformer.sight.patching import PatchedPart, PatchGrid
from mistakes import mistake

CLEAN, CORRUPTED = [5, 9, 12, 3, 40, 7, 22, 31], [5, 9, 12, 18, 40, 7, 8, 31]
SOURCES = [4, 6, 20, 11, 2], [4, 6, 21, 11, 2]
NAMES = [
    "gpt2",
    "llama",
    "gemma2",
    "alibi",
    "phi2",
    "prefix",
    "glass",
    "mixtral",
    "attention-only",
    "strided",
    "normless",
]


def alone(name, piece, layer, head, position, **options):
    """One cell, by a whole pass over the corrupted text with one edit."""
    model, side = tiny.model(name), options.pop("side", "decoder")
    pairs = isinstance(model.config, c.EncoderDecoder)
    sources = options.get("sources", (SOURCES[0], SOURCES[0]) if pairs else (None, None))
    clean, corrupted = options.get("texts", (CLEAN, CORRUPTED))
    path = f"{side}.blocks.{layer}.{piece}"
    present = look(model, None, clean, path, source=sources[0])
    edit = patch(path, present, positions=position, head=head)
    row = look(model, None, corrupted, "logits", source=sources[1], edits=[edit])["logits"][
        0, options.get("at", -1)
    ]
    return (row[17] - row[30]).item()


def check(name, pieces, **options):
    model = tiny.model(name)
    pairs = isinstance(model.config, c.EncoderDecoder)
    source = options.get("sources", SOURCES[0] if pairs else None)
    texts, at = options.get("texts", (CLEAN, CORRUPTED)), options.get("at")
    grid = patch_grid(model, None, *texts, answer=17, wrong=30, parts=pieces, source=source, at=at)
    size = abs(grid.clean_value - grid.corrupted_value)
    assert grid.positions == list(range(len(grid.clean)))
    for piece in grid.parts:
        assert len(piece.value) == len(piece.layers) == len(piece.paths) == len(piece.rows())
        for row, (layer, values) in enumerate(zip(piece.layers, piece.value, strict=True)):
            head = piece.heads[row] if piece.heads else None
            for position in (0, 2, 3, 6, 7)[: len(values)] if row % 2 else (1, 4, 5):
                if position < len(values):
                    want = alone(name, piece.name, layer, head, position, **options)
                    assert values[position] == pytest.approx(want, abs=1e-4 * max(1.0, size)), (
                        piece.name,
                        row,
                        position,
                    )
                    effect = (values[position] - grid.corrupted_value) / (
                        grid.clean_value - grid.corrupted_value
                    )
                    assert piece.effect[row][position] == pytest.approx(effect)


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_is_a_patched_run(name):
    block = tiny.ALL[name].decoder.blocks[0]
    check(
        name,
        ("resid", "attn.write", "ffn.write")
        if block.feedforward is not None
        else ("resid", "attn.write"),
    )


def test_tokens_that_all_see_each_other_are_patched_in_whole_runs():
    """The first three of "prefix" look ahead, so what is patched there changes what lies before
    it."""
    early = [5, 9, 41, 3, 40, 7, 22, 31]
    check("prefix", ("resid", "attn.v", "attn.z"), texts=(CLEAN, early))
    check("prefix", ("resid", "attn.z"), texts=(CLEAN, early), at=1)
    options = {"answer": 17, "wrong": 30, "parts": "v", "positions": [2]}
    values = patch_grid(tiny.model("prefix"), None, CLEAN, early, **options)["attn.v"].value
    want = [
        [alone("prefix", "attn.v", layer, head, 2, texts=(CLEAN, early))]
        for layer in (0, 1)
        for head in range(4)
    ]
    assert_close(torch.tensor(values), torch.tensor(want), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_a_cell_of_a_head_and_of_other_values(name):
    check(name, ("attn.z", "attn.k", "attn.q", "attn.pattern", "ffn.hidden", "mid"))


def test_the_answer_may_be_looked_for_elsewhere():
    check("llama", ("resid", "attn.v"), at=5)


def test_encoders_and_encoder_decoders():
    check("bert", ("resid", "attn.z"), side="encoder", at=4)
    for name in ("vaswani", "t5", "attention-pair"):
        check(name, ("resid", "cross.z", "attn.write"))
        check(name, ("resid", "attn.z"), side="encoder", sources=SOURCES, texts=(CLEAN, CLEAN))
        check(name, ("resid",), side="encoder", sources=SOURCES, texts=(CLEAN, CLEAN), at=2)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "prefix"])
def test_all_positions_at_once(name):
    grid = patch_grid(
        tiny.model(name),
        None,
        CLEAN,
        CORRUPTED,
        answer=17,
        wrong=30,
        parts=["resid", "z"],
        positions="all",
    )
    assert grid.positions == []
    assert all(effect == pytest.approx(1, abs=1e-4) for (effect,) in grid["resid"].effect)
    for layer, head, (value,) in zip(
        grid["attn.z"].layers, grid["attn.z"].heads, grid["attn.z"].value, strict=True
    ):
        assert value == pytest.approx(alone(name, "attn.z", layer, head, None), abs=1e-4)


def test_where_the_texts_do_not_differ_nothing_does():
    """The last layer's stream decides where the answer is read; before the first difference all is
    as it was."""
    grid = patch_grid(tiny.model(tiny.gpt2()), None, CLEAN, CORRUPTED, answer=17, wrong=30)
    *remaining, last = grid["resid"].effect[-1]
    assert last == pytest.approx(1, abs=1e-5) and remaining == [0.0] * 7
    assert all(row[:3] == [0.0] * 3 for piece in grid.parts for row in piece.effect)
    group = patch_grid(
        tiny.model(tiny.gpt2()), None, CLEAN, CORRUPTED, answer=17, wrong=30, positions=[3, -1]
    )
    assert group.positions == [3, 7]
    assert_close(torch.tensor(group["resid"].value), torch.tensor(grid["resid"].value)[:, [3, 7]])


def test_a_grid_of_texts_is_told_in_words():
    tokenizer = train_tokenizer("byte")
    model = tiny.model(replace(tiny.gpt2(), embed=c.Embed(tokenizer.size)))
    outputs: list[tuple[int, int]] = []
    grid = patch_grid(
        model, tokenizer, "a cat is", "a dog is", answer="x", progress=lambda *n: outputs.append(n)
    )
    assert outputs[-1] == (2 * 3 * 8, 2 * 3 * 8) and [done for done, _ in outputs] == sorted(
        done for done, _ in outputs
    )
    data = json.loads(json.dumps(grid.to_dict()))
    assert (
        data["answer"] == "x"
        and data["wrong"] is None
        and data["corrupted"][2:5] == ["d", "o", "g"]
    )
    assert data["parts"][0]["paths"] == ["decoder.blocks.0.resid", "decoder.blocks.1.resid"]
    clean = look(model, tokenizer, "a cat is", "logits")["logits"][0, -1, ord("x")].item()
    assert grid.clean_value == pytest.approx(clean, abs=1e-5)
    assert (
        grid.metric == "logit" and "3:o<a" in grid.text(200) and grid.text(40).count("resid") == 2
    )
    assert len(grid.table(5)) == 6 and "decoder.blocks." in grid.table(5)[1]
    with mistake("it has resid, attn"):
        grid["z"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpt2", {"corrupted": CORRUPTED[1:]}, "8 and 7 tokens"),
        ("gpt2", {"corrupted": CLEAN}, "they do not differ"),
        ("gpt2", {"parts": ["residual"]}, 'No block has a part "residual"; there are attn.in'),
        ("gpt2", {"answer": 99}, "out of range"),
        ("gpt2", {"positions": [8]}, "Position 8 is not in the text"),
        ("gpt2", {"positions": "some"}, '"each", "all"'),
        ("gru", {}, "no blocks"),
        ("vaswani", {}, "reads two texts"),
        ("vaswani", {"source": (SOURCES[0], SOURCES[1][1:])}, "sources have 5 and 4"),
        ("vaswani", {"source": SOURCES[0], "parts": "cross.k"}, 'part "cross.k"'),
        ("gpt2", {"source": SOURCES[0]}, "Only an encoder-decoder"),
    ],
)
def test_what_cannot_be_patched_is_a_sentence(name, options, message):
    fields = {"clean": CLEAN, "corrupted": CORRUPTED, "answer": 17, **options}
    with mistake(message):
        patch_grid(tiny.model(name), None, **fields)


def test_the_table_is_ordered_by_the_size_of_the_effects_whatever_their_sign():
    effects = [[0.2, -0.9], [0.5, -0.1]]
    values = [[1.2, 0.1], [1.5, 0.9]]
    piece = PatchedPart("resid", ["first", "second"], [0, 1], [], values, effects)
    grid = PatchGrid("a", None, 1, ["x", "y"], ["x", "z"], [0, 1], 2.0, 1.0, [piece])
    assert [line.split()[:3] for line in grid.table()[1:]] == [
        ["-0.900", "0.1000", "first"],
        ["0.500", "1.5000", "second"],
        ["0.200", "1.2000", "first"],
        ["-0.100", "0.9000", "second"],
    ]
    assert len(grid.table(2)) == 3
