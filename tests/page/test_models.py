"""Cards without loading; names that cannot be mistaken; the model that comes with the package."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import tiny

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

import served
from glassformer import UserError
from glassformer.serve.asgi.replies import ClientDisconnected
from glassformer.serve.page.models import FairLock, Models, shipped


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


def test_a_lock_goes_to_whoever_has_waited_longest():
    """A client with several threads and long work never keeps another from the model."""
    lock, order, started = FairLock(), [], threading.Barrier(3)

    def heavy(name):
        started.wait()
        with lock.acquire(lambda: None) as give_way:
            for _ in range(100):
                order.append(name)
                time.sleep(0.002)
                give_way()

    with ThreadPoolExecutor(2) as threads:
        works = [threads.submit(heavy, name) for name in "ab"]
        started.wait()
        for _ in range(5):
            time.sleep(0.01)
            before = len(order)
            with lock.acquire(lambda: None):
                assert len(order) - before <= 3
        for work in works:
            work.result(60)
    assert [*map(order.count, "ab")] == [100, 100]
    assert order[10:150] in ([*"ab"] * 70, [*"ba"] * 70), "and long works take turns"


def test_who_leaves_while_he_waits_gives_up_his_place():
    lock = FairLock()

    def leave():
        raise ClientDisconnected

    with lock.acquire(lambda: None), pytest.raises(ClientDisconnected), lock.acquire(leave):
        pass
    with lock.acquire(lambda: None):
        pass


def test_a_circuit_and_a_beam_search_let_others_between_their_passes(tmp_path, monkeypatch):
    client = served.client(served.page(served.saved("gpt2", tmp_path / "m")))
    run = client.ask("/api/runs", model="m", text="the cat")["run"]
    gave_way, acquire = [], FairLock.acquire

    @contextmanager
    def counted(lock, check):
        with acquire(lock, check) as give_way:
            yield lambda: gave_way.append(give_way())

    monkeypatch.setattr(FairLock, "acquire", counted)
    client.ask("/api/beam", model="m", text="the cat", max_new=5)
    searched = len(gave_way)
    assert client.post(f"/api/runs/{run}/circuit", json={"draws": 9}).status_code == 200
    assert searched >= 4 and len(gave_way) - searched > 9
