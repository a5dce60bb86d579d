"""Guesses come from what stood earlier in the text."""

from __future__ import annotations

from glassformer.serve.engine.draft import PromptLookup


def test_what_followed_the_same_end_the_last_time_is_guessed() -> None:
    text = [1, 2, 3, 4, 9, 2, 3, 5, 6, 7, 2, 3]
    assert PromptLookup(most=3).propose(text, 9) == [5, 6, 7]
    assert PromptLookup(most=3).propose(text, 1) == [5]
    assert PromptLookup().propose([1, 2, 3, 4], 9) == [] == PromptLookup().propose(text, 0)
    # the longer end counts
    assert PromptLookup(most=2).propose([1, 2, 3, 8, 9, 7, 2, 3, 5, 1, 2, 3], 9) == [8, 9]


def test_guesses_that_are_wrong_stop_for_a_while() -> None:
    lookup, text = PromptLookup(), [5, 6] * 9
    assert len(lookup.propose(text, 9)) == 7
    for _ in range(3):
        lookup.learn(4, 0)
    assert [bool(lookup.propose(text, 9)) for _ in range(5)] == [False, False, False, True, True]
    assert len(lookup.propose(text, 9)) == 2
    for _ in range(3):
        lookup.learn(2, 2)
    assert len(lookup.propose(text, 9)) == 7
