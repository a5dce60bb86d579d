"""Runs that are kept: the same request twice, two browsers at once, the bound, and a request that
nobody waits for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

import served
from glassformer.serve.asgi.replies import ClientDisconnected, HttpError
from glassformer.serve.page.fields import RunFields, TensorFields, ThumbnailFields
from glassformer.serve.page.models import Models
from glassformer.serve.page.runs import TraceCache
from glassformer.serve.page.tensor_replies import thumbnails, values


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("models")
    return Models([served.saved("llama", folder / "llama"), served.saved("gpt2", folder / "gpt")])


def nothing() -> None:
    """Somebody waits."""


def test_two_browsers_at_once_get_their_own_answers(models):
    """The same texts in another order from two threads, on two models: what each is told is what
    one alone is."""
    alone = TraceCache(models)
    texts = [
        f"the cat sat on {word}"
        for word in ("a mat", "the log", "a dog", "9", "the mat and the log")
    ]
    second_query = [RunFields(model=name, text=text) for name in ("llama", "gpt") for text in texts]
    query = TensorFields(address="logits")
    expected = {}
    for item in second_query:
        result = alone.make(item)
        expected[result["run"]] = values(alone[result["run"]], query, nothing)
    runs = TraceCache(models)

    def browse(order):
        for item in order:
            result = runs.make(item)
            assert values(runs[result["run"]], query, nothing) == expected[result["run"]]

    with ThreadPoolExecutor(2) as two:
        list(two.map(browse, (second_query, second_query[::-1])))
    assert len(runs) == len(expected)


def test_the_oldest_goes_where_there_is_too_much(models):
    runs = TraceCache(models, max_bytes=1)
    first = runs.make(RunFields(model="llama", text="the cat"))["run"]
    assert runs[first].bytes > 1, "one stays, however large"
    second = runs.make(RunFields(model="llama", text="the dog"))["run"]
    assert len(runs) == 1 and runs[second].id == second
    with pytest.raises(HttpError, match="no run"):
        runs[first]
    again = runs.make(RunFields(model="llama", text="the cat"))
    assert again["run"] == first and "found" not in again


def test_the_bound_is_of_bytes_that_are_held(models):
    """Recorded values; the oldest runs go, and no more of them than must."""
    runs = TraceCache(models)
    result = [
        runs.make(RunFields(model="llama", text=f"the {word}"))["run"]
        for word in ("cat", "dog", "mat", "log")
    ]
    sizes = [runs[run].bytes for run in result]
    trace = runs[result[0]].trace
    storages = {
        x.tensor.untyped_storage()
        for op in trace.operations
        for x in op.outputs
        if x.tensor is not None
    }
    assert 0 < sizes[0] == trace.kept_bytes <= sum(storage.nbytes() for storage in storages)
    bounded = TraceCache(models, max_bytes=sum(sizes[1:]))
    for word in ("cat", "dog", "mat", "log"):
        bounded.make(RunFields(model="llama", text=f"the {word}"))
    assert len(bounded) == 3 and [bounded[run].id for run in result[1:]] == result[1:]


def test_a_request_that_nobody_waits_for_ends_in_the_middle(models):
    runs, calls = TraceCache(models), []

    def check():
        calls.append(1)
        if len(calls) > 6:
            raise ClientDisconnected

    with pytest.raises(ClientDisconnected):
        runs.make(RunFields(model="llama", text="the cat sat"), check)
    assert not len(runs) and len(calls) == 7
    result = runs.make(RunFields(model="llama", text="the cat sat"))
    loaded = runs[result["run"]].loaded
    gone = threading.Event()

    def waiting():
        if gone.is_set():
            raise ClientDisconnected

    # it left the model free
    with loaded.acquire(lambda: None), ThreadPoolExecutor(1) as item:
        waits = item.submit(thumbnails, runs[result["run"]], ThumbnailFields(px=8), waiting)
        gone.set()
        with pytest.raises(ClientDisconnected):
            waits.result(5)


def test_what_is_left_out_is_of_this_text_though_the_run_is_known(models):
    runs, texts = TraceCache(models), ["the cat " * count for count in (500, 900)]
    first, second = (runs.make(RunFields(model="llama", text=text, cut=True)) for text in texts)
    assert second["run"] == first["run"] and second["found"]
    assert 0 < first["left_out"]["tokens"] < second["left_out"]["tokens"]
    assert f"of {len(first['tokens']) + second['left_out']['tokens']:,} tokens" in second["cut"]
