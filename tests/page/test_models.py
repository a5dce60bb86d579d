"""Cards without loading; names that cannot be mistaken; the model that comes with the package."""

from __future__ import annotations

import pytest

import tiny

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

import served
from glassformer import UserError
from glassformer.serve.page.models import Models, shipped


def test_cards_say_what_each_can_do(tmp_path):
    names = ("gpt2", "bert", "t5", "mixtral", "gru", "pooled")
    models = Models([served.saved(name, tmp_path / name) for name in names])
    cards = {card["name"]: card for card in models.cards()}
    assert {name: card["kind"] for name, card in cards.items()} == {
        "gpt2": "decoder",
        "bert": "encoder",
        "t5": "encoder-decoder",
        "mixtral": "decoder",
        "gru": "recurrent",
        "pooled": "decoder",
    }
    can = {
        name: {item for item, true in card["abilities"].items() if true}
        for name, card in cards.items()
    }
    everything = {"lens", "attention", "attribution", "edits"}
    assert can["gpt2"] == {"generate", *everything}
    assert can["bert"] == {"fill", "pool", *everything}
    assert can["t5"] == {"generate", "source", *everything}
    assert (
        "experts" in can["mixtral"]
        and "pool" in can["pooled"]
        and can["gru"] == {"generate", "lens", "edits"}
    )
    assert all(entry.loaded is None for entry in models.entries.values())
    model = models["gpt2"].open().model
    assert cards["gpt2"]["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert cards["gpt2"]["context"] == tiny.CONTEXT and cards["gpt2"]["vocab"] == served.VOCAB


def test_two_of_one_name_are_told_apart(tmp_path):
    paths = [
        served.saved("gpt2", tmp_path / piece / "mine", seed) for seed, piece in enumerate("ab")
    ]
    models = Models(list(paths))
    assert list(models.entries) == ["mine", "mine-2"]
    assert models["mine"].open().digest != models["mine-2"].open().digest
    assert [card["title"] for card in models.cards()] == list(map(str, paths))


def test_what_is_no_model_is_said_at_once(tmp_path):
    with pytest.raises(UserError):
        Models([tmp_path / "nothing"])


def test_the_shipped_model_is_small_and_whole():
    files = {path.name: path.stat().st_size for path in shipped().iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(files) and sum(
        files.values()
    ) <= 2_000_000
    loaded = Models([])["tiny-page"].open()
    assert (
        loaded.dtype == "float32" and loaded.tokenizer is not None and loaded.tokenizer.size == 1024
    )
