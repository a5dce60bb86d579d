"""Guesses of what comes next, for the model to check several tokens in one pass.

A guess is right where it is the very token that would be drawn: the luck of a place is fixed beforehand, so no text
changes by being guessed, only its speed.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2  # tokens at the end that are looked for earlier in the text
PATIENCE = 3  # steps that a text makes without guesses after the last ones were mostly wrong


class PromptLookup:
    """What followed the last time that the text had the same few tokens as at its end (Saxena 2023).

    Good for texts that repeat their prompt: summaries, code, translations of lists. A text whose guesses are wrong is
    left alone for a while.
    """

    def __init__(self, most: int = 7) -> None:
        self.most = most
        self.share = 0.5  # of the guesses that were right, lately
        self._pause = 0

    def propose(self, tokens: Sequence[int], room: int) -> list[int]:
        """At most ``room`` tokens that may follow; none where nothing like the end stands earlier."""
        if self._pause:
            self._pause -= 1
            return []
        most = min(room, self.most if self.share >= 0.5 else 2)
        for size in range(LONGEST, SHORTEST - 1, -1) if most > 0 else ():
            end = tokens[-size:]
            for start in range(len(tokens) - size - 1, -1, -1):
                if tokens[start + size - 1] == end[-1] and tokens[start : start + size] == end:
                    follows = tokens[start + size : start + size + most]
                    return [follows[place % len(follows)] for place in range(most)]  # a short one is a loop
        return []

    def learn(self, drafted: int, accepted: int) -> None:
        """How the last guesses went."""
        if drafted:
            self.share = 0.75 * self.share + 0.25 * accepted / drafted
            if accepted == 0 and self.share < 0.25:
                self._pause = PATIENCE
