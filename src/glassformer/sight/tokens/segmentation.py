"""How a word came to its pieces, step by step, by readable code that follows the tokenizer's own
tables.

    text --normalised, split (the library)--> words --merges | longest match | best path (here)-->
    pieces, ids

The ids are those of ``Tokenizer.encode``; ``trace`` looks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ...core.errors import UserError
from ...core.tokenizer.tokenizer import Tokenizer
from ...core.tokenizer.tokenizer_json import Spec, ids_of, without_specials

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
    steps: tuple[Merge | Match | Path, ...]
    pieces: tuple[str, ...]
    ids: tuple[int, ...]
    whole: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def trace(tokenizer: Tokenizer, text: str, rivals: int = 3) -> list[WordTrace]:
    """Every word of a text, as the tokenizer splits it; ``rivals`` other ways where a way has a
    score.

    Raises UserError for a text with an added token in it, which is found whole before words are
    split.
    """
    tracer = Tracer(tokenizer, rivals)
    ids = tokenizer.encode(text)
    traces = [tracer(word) for word in tracer.words(text)]
    if [id for word in traces for id in word.ids] != ids:
        raise UserError(
            "This text holds a token that was added to the vocabulary, which has no "
            "path; leave it out."
        )
    return traces


class Tracer:
    """A tokenizer's tables, made ready to trace many words."""

    def __init__(self, tokenizer: Tokenizer, rivals: int = 3) -> None:
        self.tokenizer = tokenizer
        self.rivals = rivals
        spec: Spec = without_specials(tokenizer._spec, tokenizer.specials) or tokenizer._spec
        self.model: dict[str, Any] = spec["model"]
        self.algorithm: str = self.model["type"]
        self.ids: dict[str, int] = ids_of({"model": self.model})
        self.scores: dict[str, float] = {}
        if self.algorithm == "Unigram":
            self.scores = dict(self.model["vocab"])
            self.longest = max(map(len, self.scores))
            self.unknown_score = min(self.scores.values()) - UNKNOWN_PENALTY
        if self.algorithm == "BPE":
            allowed = {(first, right) for first, right in self.model["merges"]}
            every = enumerate(tokenizer._spec["model"]["merges"])
            self.ranks = {
                (first, right): rank for rank, (first, right) in every if (first, right) in allowed
            }
        algorithms = {
            "BPE": self._bpe,
            "WordPiece": self._wordpiece,
            "Unigram": self._unigram,
            "WordLevel": self._word_level,
        }
        self.way: Callable[[str], WordTrace] = algorithms[self.algorithm]

    def __call__(self, word: str) -> WordTrace:
        return self.way(word)

    def words(self, text: str) -> list[str]:
        """The text normalised and split, as the model is given it."""
        library = self.tokenizer._plain
        if library.normalizer is not None:
            text = library.normalizer.normalize_str(text)
        if library.pre_tokenizer is None:
            return [text] if text else []
        return [word for word, _ in library.pre_tokenizer.pre_tokenize_str(text)]

    # ------------------------------------------------------------------------------ the algorithms

    def _bpe(self, word: str) -> WordTrace:
        """Join the neighbours whose merge comes first, the leftmost of them, until no neighbours
        have one."""
        start = pieces = self._letters(word)
        steps = []
        while pair := self._first(pieces):
            rank, at = pair
            first, right = pieces[at : at + 2]
            pieces = [*pieces[:at], first + right[self._prefix(right) :], *pieces[at + 2 :]]
            label = self.ids[pieces[at]] if self.model.get("ignore_merges") else rank
            steps.append(Merge(label, first, right, tuple(pieces)))
        is_entry = bool(self.model.get("ignore_merges")) and word in self.ids
        return self._made(word, start, steps, [word] if is_entry else pieces, is_entry)

    def _letters(self, word: str) -> list[str]:
        """The word's characters as entries; the bytes of one that is none, or the token for the
        unknown."""
        prefix = self.model.get("continuing_subword_prefix")
        suffix = self.model.get("end_of_word_suffix")
        unknown = self.model.get("unk_token")
        letters: list[str] = []
        was_unknown = False
        for at, letter in enumerate(word):
            name = (prefix or "") * (at > 0) + letter + (suffix or "") * (at == len(word) - 1)
            is_known = name in self.ids
            pieces = (
                [name] if is_known else self._bytes(name) if self.model.get("byte_fallback") else []
            )
            if pieces:
                letters += pieces
            elif unknown is not None and not (was_unknown and self.model.get("fuse_unk")):
                letters.append(unknown)
            was_unknown = not pieces
        return letters

    def _prefix(self, piece: str) -> int:
        """Length of the prefix that marks a later piece."""
        prefix: str = self.model.get("continuing_subword_prefix") or ""
        return len(prefix) if prefix and piece.startswith(prefix) else 0

    def _first(self, pieces: list[str]) -> tuple[int, int] | None:
        """The lowest rank among neighbours, and where the first pair of that rank stands."""
        pairs = itertools.pairwise(pieces)
        return min(
            ((self.ranks[pair], at) for at, pair in enumerate(pairs) if pair in self.ranks),
            default=None,
        )

    def _wordpiece(self, word: str) -> WordTrace:
        """Take the longest entry that the rest begins with; a word with a rest that begins with
        none is unknown."""
        steps: list[Match] = []
        pieces: list[str] = []
        unknown = self.model["unk_token"]
        prefix = self.model["continuing_subword_prefix"]
        if len(word) > self.model["max_input_chars_per_word"]:
            return self._made(word, [word], steps, [unknown])
        at = 0
        while at < len(word):
            end_candidates = range(len(word), at, -1)
            names = ((prefix if at else "") + word[at:end] for end in end_candidates)
            tried, piece = next(
                ((n, name) for n, name in enumerate(names, 1) if name in self.ids),
                (len(end_candidates), None),
            )
            steps.append(Match(word[at:], tried, piece))
            if piece is None:
                return self._made(word, [word], steps, [unknown])
            pieces.append(piece)
            at += len(piece) - (len(prefix) if at else 0)
        return self._made(word, [word], steps, pieces)

    def _unigram(self, word: str) -> WordTrace:
        """The path of the highest score from the word's start to its end (Viterbi), and the next
        best ones."""
        most = self.rivals + 1
        # score, from where, which there
        best: list[list[tuple[float, int, int]]] = [[] for _ in range(len(word) + 1)]
        best[0] = [(0.0, 0, 0)]
        for at in range(len(word)):
            for end, score in self._starting(word, at):
                best[end] += [
                    (before + score, at, which) for which, (before, *_) in enumerate(best[at])
                ]
                # stable: the first found of equals stays first
                best[end].sort(key=lambda path: -path[0])
                del best[end][most:]
        paths = []
        for which, (score, *_) in enumerate(best[-1] if word else []):
            pieces: list[str] = []
            end = len(word)
            rank = which
            while end:
                _, at, rank = best[end][rank]
                pieces.append(word[at:end])
                end = at
            paths.append(Path(tuple(reversed(pieces)), score))
        return self._made(
            word, list(word), paths, self._written(list(paths[0].pieces) if paths else [])
        )

    def _starting(self, word: str, at: int) -> Iterator[tuple[int, float]]:
        """Ends and scores of the entries that start here; one unknown character where
        none is that short."""
        for end in range(at + 1, min(len(word), at + self.longest) + 1):
            score = self.scores.get(word[at:end])
            if score is not None:
                yield end, score
            elif end == at + 1:
                yield end, self.unknown_score

    def _written(self, pieces: list[str]) -> list[str]:
        """Neighbours that are unknown as one, and what is unknown as bytes or as the token for
        it."""
        joined: list[str] = []
        for at, piece in enumerate(pieces):
            if at and piece not in self.scores and pieces[at - 1] not in self.scores:
                joined[-1] += piece
            else:
                joined.append(piece)
        unknown = (
            self.model["vocab"][self.model["unk_id"]][0]
            if self.model.get("unk_id") is not None
            else ""
        )
        written = []
        for piece in joined:
            raw = self._bytes(piece) if self.model.get("byte_fallback") else []
            written += [piece] if piece in self.ids else raw or [unknown]
        return written

    def _word_level(self, word: str) -> WordTrace:
        return self._made(word, [word], [], [word if word in self.ids else self.model["unk_token"]])

    def _bytes(self, text: str) -> list[str]:
        """The entries of a text's bytes, if all are there."""
        names = [f"<0x{byte:02X}>" for byte in text.encode()]
        return names if all(name in self.ids for name in names) else []

    def _made(
        self, word: str, start: list[str], steps: Any, pieces: list[str], is_whole: bool = False
    ) -> WordTrace:
        ids = tuple(self.ids[piece] for piece in pieces)
        tokens = tuple(self.tokenizer.token(id) for id in ids)
        return WordTrace(word, self.algorithm, tuple(start), tuple(steps), tokens, ids, is_whole)
