"""Positions, words and texts are found as they are named, and what is not there is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from glassformer import config as c
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.sight import look, streams
from mistakes import mistake


@pytest.mark.parametrize(
    ("query", "result"),
    [
        (None, [7, 8, 9]),
        ("all", list(range(10))),
        ("0", [0]),
        ("0, 3-5,-1", [0, 3, 4, 5, 9]),
        ("-3--1", [7, 8, 9]),
        ("4-4,4", [4]),
        ([1, -1], [1, 9]),
    ],
)
def test_places(query, result):
    assert streams.places(query, 10, 3) == result


def test_the_place_of_a_blank_is_where_the_mask_is():
    tokenizer = train_tokenizer("byte", specials=("[MASK]",))
    mask = tokenizer.mask
    assert mask is not None
    assert streams.place(None, torch.tensor([[1, mask, 2]]), tokenizer) == 1
    assert streams.place(None, torch.tensor([[mask, mask, 2]]), tokenizer) == 2
    assert streams.place(None, torch.tensor([[1, mask, 2]]), None) == 2
    assert streams.place(0, torch.tensor([[1, mask, 2]]), tokenizer) == 0


def test_a_word_is_one_token():
    model = build_model(replace(tiny.DECODERS["llama"], embed=c.Embed(280)), seed=1)
    tokenizer = train_tokenizer("byte")
    assert (
        streams.word_id(model, tokenizer, "a") == ord("a") == streams.word_id(model, None, ord("a"))
    )
    assert streams.word_id(model, tokenizer, " ") == ord(" ")
    small = tiny.model("llama")
    with mistake("this model knows 0 to 49"):
        streams.word_id(small, tokenizer, "a")


@pytest.mark.parametrize("name", tiny.ALL)
def test_states_are_the_streams(name):
    model = tiny.model(name)
    tokens = tiny.tokens(1, 6)
    source = tiny.tokens(1, 5) if isinstance(model.config, c.EncoderDecoder) else None
    states = streams.states(model, streams.Read(tokens, source, {}))
    observed = look(model, None, tokens, source=source)
    assert next(iter(states.by_path)) == f"{states.body}.embed"
    assert all(torch.equal(value, observed[path][0]) for path, value in states.by_path.items())
    assert torch.equal(states.out, observed[f"{states.body}.out"][0])


def test_windows_begin_as_the_model_reads_a_text():
    tokenizer = train_tokenizer("byte", specials=("<s>", "</s>"))
    for name in ("llama", "onward"):  # an encoder-decoder reads a corpus as its source
        model = build_model(replace(tiny.ALL[name], embed=c.Embed(300)), seed=1)
        (short,) = streams.windows(model, tokenizer, ["abc"])
        assert torch.equal(short, streams.prepare(model, tokenizer, "abc").tokens)
        edge = short.shape[1] - 3
        rows = list(streams.windows(model, tokenizer, ["a" * 25, "b"], length=10 + edge))
        assert [row.shape[1] - edge for row in rows] == [10, 10, 5, 1]
        with mistake("too few for a text"):
            list(streams.windows(model, tokenizer, ["a"], length=edge))
