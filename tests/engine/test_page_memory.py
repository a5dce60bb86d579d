"""What an engine takes is bounded and said before it begins."""

from __future__ import annotations

import pytest
import torch

import glassformer
import tiny
from glassformer.core.nn import Cache, Decoder, EncoderDecoder
from glassformer.core.nn.cache import MixerState
from glassformer.fast.fused import FusedStack
from glassformer.fast.kernels.shared_library import has
from glassformer.formats import store
from glassformer.serve.engine import page_memory
from glassformer.serve.engine.page_memory import plan_memory, prepacked_view
from mistakes import mistake


@pytest.mark.parametrize("name", ["llama", "t5", "attention-pair"])
def test_no_more_is_taken_than_was_given(name):
    model = tiny.model(name)
    full = plan_memory(model, None, 8, None)
    for share in (2, 3):
        room = plan_memory(model, None, 8, full.nbytes // share)
        cache = room.runner().cache
        nbytes = [kv.pages.nbytes for pair in cache.pages for kv in pair if kv is not None]
        assert sum(nbytes) == room.nbytes <= full.nbytes // share


def test_too_little_memory_is_refused_with_how_much_is_needed():
    model = tiny.model("llama")
    with mistake(r"64 tokens needs 24.00 KiB, and 9.77 KiB are there"):
        plan_memory(model, None, 8, 10_000)
    room = plan_memory(model, 30, 8, 30_000)
    assert room.pool.free == 2
    assert str(room).startswith("24.00 KiB for 2 pages of 32 tokens")
    assert str(room).endswith("; at most 8 texts of 30 tokens at once.")


def test_a_state_needs_no_pages():
    room = plan_memory(tiny.model("gru"), None, 8, None)
    assert not room.rewinds
    assert room.pool.free == 8
    assert "a state a text" in str(room)


STATEFUL = ("gru", "lstm", "mamba2", "lfm2", "qwen3_next", "rwkv", "rwkv7", "additive-lstm")


@pytest.mark.parametrize("name", STATEFUL)
def test_states_are_counted_against_the_memory(name):
    """What the caches of full texts hold is at most what was counted; too little is refused."""
    model = tiny.model(name)
    full = plan_memory(model, 64, 8, None)
    assert not full.rewinds and full.nbytes % 8 == 0 < full.nbytes
    state_bytes = full.nbytes // 8
    with mistake("The state of one text of 64 tokens needs"):
        plan_memory(model, 64, 8, state_bytes - 1)
    room = plan_memory(model, 64, 8, 3 * state_bytes + 1)
    assert (room.sequences, room.pool.free, room.nbytes) == (3, 3, 3 * state_bytes)
    assert "for a state a text" in str(room) and "; at most 3 texts" in str(room)
    tokens, cache, extras = torch.ones(1, 64, dtype=torch.long), Cache(model.config), {}
    with torch.inference_mode():
        if isinstance(model, EncoderDecoder):
            extras["memory"] = model.encode(tokens)
        for chunk in tokens.split(32, dim=1):
            model(chunk, cache=cache, **extras)
    stored_bytes = 0
    for state, cross in cache.layers:
        tensors = state.tensors if isinstance(state, MixerState) else (state.k, state.v)
        stored_bytes += sum(tensor.nbytes for tensor in (*tensors, *(cross.kv or ())))
    assert 0 < stored_bytes <= state_bytes


def test_an_engine_of_states_keeps_to_the_memory():
    """More continuations than states fit are computed in turns, with the answers of a roomy one."""
    model = tiny.model("mamba2")
    state_bytes = plan_memory(model, 64, 1, None).nbytes
    requests = [glassformer.engine.Request([1, 2, 3 + n], max_new=6, seed=n) for n in range(5)]
    answers = []
    for memory in (None, 2 * state_bytes):
        with glassformer.Engine(model, max_context=64, memory=memory) as engine:
            handles = [engine.submit(request) for request in requests]
            answers.append([handle.result().completions[0].tokens for handle in handles])
            caches = engine._worker.runner.caches
    assert answers[0] == answers[1] and len(caches) <= 2


@pytest.fixture
def mapped(tmp_path, monkeypatch):
    """A model saved and loaded again as a large one is: its weights stay in the file until they are
    used."""
    monkeypatch.setattr("glassformer.formats.mapped.SMALL", 0)

    def loaded(model, bits):
        store.save(model, tmp_path, layout="glassformer")
        return glassformer.load(tmp_path, bits=bits)[0]

    return loaded


@pytest.mark.parametrize("bits", [None, 8])
def test_weights_of_a_file_are_read_by_the_blocks_in_c(bits, mapped):
    """Hooks that wait must not keep Python in their blocks."""
    if not has("stack"):
        pytest.skip("needs the compiled kernels: python hatch_build.py")
    view, _ = prepacked_view(mapped(tiny.model("llama"), bits))
    assert isinstance(view, Decoder)
    assert isinstance(view.decoder, FusedStack)


def test_weights_that_are_not_finite_are_refused_before_the_first_request(mapped):
    model = tiny.model("llama")
    model.get_parameter("decoder.blocks.1.attn.q.weight").data[0, 0] = torch.nan
    with mistake(r"blocks.1.attn.q.weight holds NaN"):
        prepacked_view(mapped(model, None))


@pytest.mark.parametrize("name, count", [("llama", 16), ("mamba2", 8)])
def test_half_of_what_is_free_is_taken(name, count, monkeypatch):
    """Of pages, and of states."""
    model = tiny.model(name)
    unit = plan_memory(model, None, 8, None).nbytes // count
    monkeypatch.setattr(page_memory, "available_memory", lambda *device: 10 * unit)
    assert plan_memory(model, None, 8, None).nbytes == 5 * unit
