"""What an engine takes is bounded and said before it begins."""

from __future__ import annotations

import pytest

import tiny
from glassformer.engine.memory import room_for
from glassformer.errors import UserError


@pytest.mark.parametrize("name", ["llama", "t5", "attention-pair"])
def test_no_more_is_taken_than_was_given(name: str) -> None:
    model = tiny.model(tiny.ALL[name])
    whole = room_for(model, None, 8, None)
    for share in (2, 3):
        room = room_for(model, None, 8, whole.nbytes // share)
        cache = room.runner().cache  # type: ignore[attr-defined]
        held = [kv.pages.nbytes for pair in cache.pages for kv in pair if kv is not None]
        assert sum(held) == room.nbytes <= whole.nbytes // share


def test_too_little_memory_is_refused_with_how_much_is_needed() -> None:
    model = tiny.model(tiny.DECODERS["llama"])
    with pytest.raises(UserError, match=r"64 tokens needs 24.00 KiB, and 9.77 KiB are there"):
        room_for(model, None, 8, 10_000)
    room = room_for(model, 30, 8, 30_000)
    assert room.pool.free == 2 and str(room).startswith("24.00 KiB for 2 pages of 32 tokens")
    assert str(room).endswith("; at most 8 texts of 30 tokens at once.")


def test_a_state_needs_no_pages() -> None:
    room = room_for(tiny.model(tiny.DECODERS["gru"]), None, 8, None)
    assert not room.rewinds and room.pool.free == 8 and "a state a text" in str(room)
