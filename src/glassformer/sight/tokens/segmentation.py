"""The segmentation of a word into its pieces, step by step, by readable code that follows the
tokenizer's own tables.

    text --normalised, split (the library)--> words --merges | longest match | best path (here)-->
    steps; the pieces and ids themselves are the library's
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import TypeAlias

from ...core.errors import UserError
from ...core.files import JsonObject
from ...core.tokenizer.tokenizer import Tokenizer, open_library
from ...core.tokenizer.tokenizer_json import ids_of

UNKNOWN_PENALTY = 10.0  # below the worst score: what Unigram gives a character that is in no piece


@dataclass(frozen=True)
class Merge:
    """Two neighbours joined because their pair comes first in the list of merges; ``pieces`` is the
    word after it.

    ``rank`` is the merge's place, or the joined token's id where a file gives only ranks
    (tiktoken).
    """

    rank: int
    left: str
    right: str
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class Match:
    """The longest entry that the rest of a word begins with, after ``tried`` looks; None where
    there is none."""

    rest: str
    tried: int
    piece: str | None


@dataclass(frozen=True)
class Path:
    """One way to write a word, and the sum of its pieces' log probabilities."""

    pieces: tuple[str, ...]
    score: float


Step: TypeAlias = Merge | Match | Path


@dataclass(frozen=True)
class WordTrace:
    """One word: what it starts as, the steps, what comes out.

    BPE steps are Merges, WordPiece's are Matches, Unigram's are Paths, the best first. ``whole``: a
    vocabulary of ranks takes a word that is a token as it is, and the merges only show whether they
    would come to the same.
    """

    word: str
    algorithm: str
    start: tuple[str, ...]
    steps: tuple[Step, ...]
    pieces: tuple[str, ...]
    ids: tuple[int, ...]
    whole: bool = False

    def to_dict(self) -> JsonObject:
        return asdict(self)


def trace(tokenizer: Tokenizer, text: str, rivals: int = 3) -> list[WordTrace]:
    """Every word of a text, as the tokenizer splits it; ``rivals`` other ways where a way has a
    score.

    Raises UserError for a text with an added token in it, which is found whole before words are
    split.
    """
    tracer = Tracer(tokenizer, rivals)
    ids = tokenizer.encode(text)
    traces = [tracer(word) for word in tokenizer.words(text)]
    if [id for word in traces for id in word.ids] != ids:
        raise UserError(
            "This text contains a token that was added to the vocabulary without a "
            "path; leave that token out."
        )
    return traces


class Tracer:
    """A tokenizer's tables, made ready to trace many words."""

    def __init__(self, tokenizer: Tokenizer, rivals: int = 3) -> None:
        self.tokenizer = tokenizer
        self.rivals = rivals
        spec = tokenizer._plain_spec
        self.model: JsonObject = spec["model"]
        self.algorithm: str = self.model["type"]
        self.ids = ids_of({"model": self.model})
        self.ranks_only: bool = self.model.get("ignore_merges", False)
        if self.algorithm == "BPE":
            self.ranks = {
                (first, right): rank
                for rank, (first, right) in enumerate(tokenizer.spec["model"]["merges"])
                if not {first, right, first + right} & tokenizer.specials.keys()
            }
            letters = {**self.model, "merges": [], "ignore_merges": False}
            self.letters = open_library({**spec, "model": letters}, "The tokenizer").model.tokenize
        if self.algorithm == "Unigram":
            self.scores: dict[str, float] = dict(self.model["vocab"])
            self.longest = max(map(len, self.scores))
            self.unknown_score = min(self.scores.values()) - UNKNOWN_PENALTY

    def __call__(self, word: str) -> WordTrace:
        start, steps = [word], list[Step]()
        if self.algorithm == "BPE":
            start = [token.value for token in self.letters(word)]
            steps = self._merges(start)
        elif self.algorithm == "WordPiece":
            steps = self._matches(word)
        elif self.algorithm == "Unigram":
            start, steps = list(word), self._paths(word)
        ids = [token.id for token in self.tokenizer._plain.model.tokenize(word)]
        pieces = map(self.tokenizer.token, ids)
        is_entry = self.ranks_only and word in self.ids
        return WordTrace(
            word, self.algorithm, tuple(start), tuple(steps), tuple(pieces), tuple(ids), is_entry
        )

    # ------------------------------------------------------------------------------ the algorithms

    def _merges(self, pieces: list[str]) -> list[Step]:
        """Join the neighbours whose merge comes first, the leftmost of them, until no neighbours
        have one."""
        prefix: str = self.model.get("continuing_subword_prefix") or ""
        steps: list[Step] = []
        while ranked := [
            (self.ranks[pair], at)
            for at, pair in enumerate(itertools.pairwise(pieces))
            if pair in self.ranks
        ]:
            rank, at = min(ranked)
            first, right = pieces[at : at + 2]
            pieces = [*pieces[:at], first + right.removeprefix(prefix), *pieces[at + 2 :]]
            label = self.ids[pieces[at]] if self.ranks_only else rank
            steps.append(Merge(label, first, right, tuple(pieces)))
        return steps

    def _matches(self, word: str) -> list[Step]:
        """Take the longest entry that the rest begins with; a word with a rest that begins with
        none is unknown."""
        steps: list[Step] = []
        remainder = word if len(word) <= self.model["max_input_chars_per_word"] else ""
        while remainder:
            prefix: str = self.model["continuing_subword_prefix"] if steps else ""
            names = [prefix + remainder[:end] for end in range(len(remainder), 0, -1)]
            piece = next((name for name in names if name in self.ids), None)
            tried = len(names) if piece is None else names.index(piece) + 1
            steps.append(Match(remainder, tried, piece))
            remainder = "" if piece is None else remainder[len(piece) - len(prefix) :]
        return steps

    def _paths(self, word: str) -> list[Step]:
        """The paths of the highest scores from the word's start to its end (Viterbi), the best
        first; the first found of equals stays first."""
        best = [[Path((), 0.0)]]
        for end in range(1, len(word) + 1):
            paths = [
                Path((*path.pieces, word[at:end]), path.score + score)
                for at in range(max(0, end - self.longest), end)
                if (score := self._score(word[at:end])) is not None
                for path in best[at]
            ]
            best.append(sorted(paths, key=lambda path: -path.score)[: self.rivals + 1])
        return [*best[-1]] if word else []

    def _score(self, piece: str) -> float | None:
        """The score of an entry, or of one unknown character."""
        return self.scores.get(piece, self.unknown_score if len(piece) == 1 else None)
