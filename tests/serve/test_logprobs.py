"""A token is told when its text is shown, and not at all where a stop string cuts it off."""

from __future__ import annotations

from glassformer.core.tokenizer import train
from glassformer.serve.engine import Event
from glassformer.serve.logprobs import TokenBuffer


def tokens_by_event(*events: Event) -> list[list[int]]:
    """The tokens that come with each event."""
    token_buffer = TokenBuffer(train("byte", []), True)
    return [[item.token for item in token_buffer.push(event)] for event in events]


def token(letter: str, text: str = "", **more: object) -> Event:
    return Event(0, train("byte", []).encode(letter)[0], text, -1.0, **more)  # type: ignore[arg-type]


def ids(letters: str) -> list[int]:
    return train("byte", []).encode(letters)


def test_a_token_is_told_with_its_text() -> None:
    assert tokens_by_event(token("a", "a"), token("b", "b")) == [ids("a"), ids("b")]


def test_what_is_held_back_is_told_later_and_in_order() -> None:
    result = tokens_by_event(
        token("a"), token("b"), token("c", "abc"), token("d", finish_reason="length")
    )
    assert result == [[], [], ids("abc"), ids("d")]
    assert tokens_by_event(token("a"), token("b", "a"), token("c", "bc"))[1:] == [
        ids("a"),
        ids("bc"),
    ]


def test_what_a_stop_string_cuts_off_is_never_told() -> None:
    last = token("d", "a", finish_reason="stop", stopped_by="cd")
    assert (
        tokens_by_event(
            token("a"),
            token("b", "b"),
            token("c"),
            token("d", "", finish_reason="stop", stopped_by="cd"),
        )[-1]
        == []
    )
    assert tokens_by_event(token("a"), token("c"), last)[-1] == ids("a")


def test_a_token_that_ends_the_text_is_told() -> None:
    assert tokens_by_event(
        token("a", "a"), token("b", finish_reason="stop", stopped_by=ids("b")[0])
    )[-1] == ids("b")
