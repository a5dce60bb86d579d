"""Guesses of what comes next, for the model to check several tokens in one pass.

A guess is right where it is the very token that would be drawn: the luck of a place is fixed
beforehand, so no text changes by being guessed, only its speed.
"""

from __future__ import annotations

from collections.abc import Sequence

# tokens at the end that are compared with what stands earlier in the text; two of them have to be
# alike
LONGEST = 4
TRIED = 8  # places that are compared
PATIENCE = 3  # steps that a text makes without guesses after the last ones were mostly wrong


class PromptLookup:
    """Prompt lookup: proposes the tokens that followed the last occurrence of the text's final few
    tokens (Saxena 2023).

    Good for texts that repeat their prompt: summaries, code, translations of lists. A text whose
    guesses are wrong gets none for a while.
    """

    def __init__(self, most: int = 7) -> None:
        self.most = most
        self.share = 0.5  # of the guesses that were right, lately
        self._pause = 0
        # where what followed two tokens begins, each time
        self._after: dict[tuple[int, int], list[int]] = {}
        self._known = 1  # tokens before this place are in it

    def propose(self, tokens: Sequence[int], room: int) -> list[int]:
        """At most ``room`` tokens that may follow the same text, grown; none where nothing like its
        end came before."""
        for place in range(self._known, len(tokens) - 1):
            self._after.setdefault((tokens[place - 1], tokens[place]), []).append(place + 1)
        self._known = max(self._known, len(tokens) - 1)
        if self._pause:
            self._pause -= 1
            return []
        most = min(room, self.most if self.share >= 0.5 else 2)
        starts = (
            self._after.get((tokens[-2], tokens[-1]), [])[-TRIED:]
            if most > 0 and len(tokens) > 1
            else []
        )
        if not starts:
            return []
        start = max(starts, key=lambda start: (_match_length(tokens, start), start))
        follows = tokens[start : start + most]
        return [follows[place % len(follows)] for place in range(most)]  # a short one is a loop

    def learn(self, drafted: int, accepted: int) -> None:
        """Updates the share of accepted guesses."""
        if drafted:
            self.share = 0.75 * self.share + 0.25 * accepted / drafted
            if accepted == 0 and self.share < 0.25:
                self._pause = PATIENCE


def _match_length(tokens: Sequence[int], start: int) -> int:
    """Number of tokens before ``start`` that equal those at the end, LONGEST at most."""
    size = 0
    while size < min(LONGEST, start) and tokens[start - 1 - size] == tokens[-1 - size]:
        size += 1
    return size
