"""A model that starts from another's checkpoint with other ends: what fits is taken, what is new is
drawn and named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from glassformer import config
from glassformer.core.nn import build_model
from glassformer.formats import store
from glassformer.formats.checkpoint import Checkpoint
from mistakes import mistake

BERT = tiny.bert()
POOL = config.Pool("first", "tanh", labels=5)


@pytest.fixture
def folder(tmp_path):
    store.save(build_model(BERT, seed=1), tmp_path / "m", layout="glassformer")
    return tmp_path / "m"


def test_what_fits_is_taken_and_what_is_new_is_named(folder):
    expected = replace(BERT, head=None, pool=POOL)
    loaded = Checkpoint.open(folder).model_as(expected, seed=3)
    old = build_model(BERT, seed=1).state_dict()
    drawn = build_model(expected, seed=3).state_dict()
    assert loaded.new == ("pool.proj.weight", "pool.proj.bias")
    assert not loaded.model.training
    assert set(loaded.unused) == {name for name in old if name.startswith("head.")} | set(
        loaded.new
    )
    for name, weight in loaded.model.state_dict().items():
        assert torch.equal(weight, drawn[name] if name in loaded.new else old[name]), name


def test_nothing_new_and_everything_new(folder):
    loaded = Checkpoint.open(folder).model_as(BERT)
    assert loaded.new == loaded.unused == ()
    assert all(map(torch.equal, loaded.model.parameters(), store.load(folder)[0].parameters()))
    recipe = Checkpoint.open("glass/1m").model_as(BERT, seed=1)  # a recipe has no weights
    assert set(recipe.new) == set(dict(recipe.model.named_parameters()))
    assert recipe.unused == ()
    assert all(map(torch.equal, recipe.model.parameters(), build_model(BERT, seed=1).parameters()))
    store.save(build_model(BERT, seed=1).half(), folder)
    assert {
        weight.dtype for weight in Checkpoint.open(folder).model_as(BERT).model.parameters()
    } == {torch.float16}


@pytest.mark.parametrize(
    "change, text",
    [
        ({"dim": 48}, r"has \(50, 32\) for embed.token.weight and the config wants \(50, 48\)"),
        (
            {"embed": config.Embed(51, segments=2)},
            r"embed.token.weight and the config wants "
            r"\(51, 32\)",
        ),
        (
            {"encoder": replace(BERT.encoder, depth=3)},
            r"has nothing for "
            r"encoder.blocks.2.attn_norm.weight",
        ),
        (
            {"encoder": replace(BERT.encoder, depth=1)},
            r"has weights that the config has no place for \(encoder.blocks.1.attn_norm.weight,"
            r" encoder.blocks.1.attn_norm.bias and 14 more\); change only the head or pool",
        ),
        ({"embed": replace(BERT.embed, segments=0)}, r"no place for \(embed.segment.weight\)"),
    ],
)
def test_a_trunk_that_differs_is_one_sentence(folder, change, text):
    with mistake(text):
        Checkpoint.open(folder).model_as(replace(BERT, **change))
