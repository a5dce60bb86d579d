"""Words as vectors: which are near, what is to c as b is to a, and the two files of word2vec.

V words, D width.
"""

from __future__ import annotations

import functools
import mmap
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core import files
from ...core.errors import UserError, nearest, need
from .word_index import Array, read_lines

WIDEST = 1 << 16  # numbers of a vector; a file that says more is not a file of vectors
FIRST = 1 << 16  # bytes in which a file's first line and first vector must lie


@dataclass(frozen=True)
class Vectors:
    """``words`` and their vectors, ``table`` (V, D) float32; both in the order of the file, usually
    by frequency."""

    words: tuple[str, ...]
    table: Array

    @functools.cached_property
    def number(self) -> dict[str, int]:
        """The row of each word."""
        return {word: row for row, word in reversed([*enumerate(self.words)])}

    @functools.cached_property
    def unit(self) -> Array:
        """The vectors at length 1; one of zeros stays."""
        length = np.linalg.norm(self.table, axis=1, keepdims=True)
        unit: Array = self.table / np.maximum(length, 1e-12)
        return unit

    def find(self, word: str) -> int | None:
        """The row of a word as it is written, else in small letters; None where it is unknown."""
        row = self.number.get(word)
        return self.number.get(word.lower()) if row is None else row

    def row(self, word: str) -> int:
        """The row of a word; UserError for an unknown one, with the nearest in spelling."""
        row = self.find(word)
        if row is None:
            hint = nearest(word.lower(), self.words[:20_000])
            raise UserError(
                f'The word "{word}" is not among the {len(self.words):,} known ones; '
                f"try another.{hint}"
            )
        return row

    def cosine(self, first: str, second: str) -> float:
        """Cosine of two words, from -1 to 1. Raises UserError for an unknown word."""
        return float(self.unit[self.row(first)] @ self.unit[self.row(second)])

    def near(self, word: str, most: int = 10) -> list[tuple[str, float]]:
        """The words of the highest cosine with a word, and the cosines."""
        row = self.row(word)
        return self._best(self.unit[row], (row,), most)

    def analogy(self, a: str, b: str, c: str, most: int = 10) -> list[tuple[str, float]]:
        """Answers "a is to b as c is to ...": the words nearest to b - a + c, without those
        three."""
        rows = [self.row(word) for word in (a, b, c)]
        return self._best(self.unit[rows[1]] - self.unit[rows[0]] + self.unit[rows[2]], rows, most)

    def _best(self, target: Array, without: Sequence[int], most: int) -> list[tuple[str, float]]:
        score = self.unit @ (target / max(1e-12, float(np.linalg.norm(target))))
        score[list(without)] = -np.inf
        best = np.argsort(-score, kind="stable")[
            : max(0, min(most, len(score) - len(set(without))))
        ]
        return [(self.words[row], float(score[row])) for row in best]


def right_analogies(
    vectors: Vectors, questions: Sequence[tuple[str, str, str, str]], among: int = 30_000
) -> tuple[int, int]:
    """Analogies (a is to b as c is to d) answered right, and the number whose words are all known.

    Words are looked for ``among`` the first so many, as the authors' program does (Mikolov et al.
    2013).
    """
    number = {word.lower(): row for row, word in reversed([*enumerate(vectors.words[:among])])}
    rows = [[number.get(word.lower(), -1) for word in question] for question in questions]
    known_rows = np.array([row for row in rows if min(row) >= 0], np.int64).reshape(-1, 4)
    unit, right = vectors.unit[:among], 0
    for chunk in np.array_split(known_rows, max(1, len(known_rows) // 256)):
        a, b, c, d = chunk.T
        score = (unit[b] - unit[a] + unit[c]) @ unit.T
        for column in (a, b, c):
            score[np.arange(len(chunk)), column] = -np.inf
        right += int((score.argmax(1) == d).sum())
    return right, len(known_rows)


def read_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Two words and how alike people find them, of each line. Raises UserError with the line for
    another form."""
    pairs = []
    for number, line in _questions(path):
        try:
            first, second, right = line.split()
            pairs.append((first, second, float(right)))
        except ValueError:
            raise UserError(
                f"{path} line {number} is not two words and a number; fix or remove that line."
            ) from None
    return pairs


def read_analogies(path: Path) -> list[tuple[str, str, str, str]]:
    """Four words of each line: a is to b as c is to d; lines that begin with a colon are
    headings."""
    analogies = []
    for number, line in _questions(path):
        if not line.startswith(":"):
            words = line.split()
            need(
                len(words) == 4, f"{path} line {number} is not four words; fix or remove that line."
            )
            analogies.append((words[0], words[1], words[2], words[3]))
    return analogies


def _questions(path: Path) -> list[tuple[int, str]]:
    lines = enumerate(read_lines(path, "give a file of questions"), 1)
    return [(number, line) for number, line in lines if line.strip()]


def save(vectors: Vectors, path: Path, binary: bool | None = None) -> None:
    """Write word2vec's binary file, or its text; None: binary where the name ends in .bin.

    Raises UserError for a word that such a file cannot hold: one with white space.
    """
    for word in vectors.words:
        if not word or re.search(r"\s", word):
            raise UserError(
                f"The word {word!r} has white space in it, which a file of vectors "
                "cannot hold; rename it."
            )
    binary = path.suffix == ".bin" if binary is None else binary
    table = np.ascontiguousarray(vectors.table, "<f4")

    def put(beside: Path) -> None:
        with beside.open("wb") as file:
            file.write(f"{len(table)} {table.shape[1]}\n".encode())
            for word, vector in zip(vectors.words, table, strict=True):
                numbers = vector.tobytes() if binary else " ".join(map(str, vector)).encode()
                file.write(word.encode() + b" " + numbers + b"\n")

    files.write(path, put)


def read_vectors(path: Path) -> Vectors:
    """The vectors in a file of word2vec, binary or text.

    Raises UserError for a file that is none or is cut short, and for a vector of another width,
    with where it stands.
    """
    hint = "" if path.is_file() else files.nearest_path(path)
    need(
        path.is_file(),
        f"{path} is not a file; give a file of vectors (make one with "
        f"glassformer words train).{hint}",
    )
    try:
        with path.open("rb") as file:
            need(path.stat().st_size > 0, f"{path} is empty; give a file of vectors.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _read(content, path)
    except OSError as error:
        raise files.explain(error, path) from None


def _read(content: mmap.mmap, path: Path) -> Vectors:
    start = content.find(b"\n", 0, FIRST) + 1
    heading = re.fullmatch(rb"\s*(\d+)\s+(\d+)\s*", content[:start])
    if heading is None:
        raise UserError(
            f'{path} does not begin with "WORDS WIDTH"; give a file of vectors in '
            "word2vec's format."
        )
    count, width = (int(number) for number in heading.groups())
    possible = count > 0 and 0 < width <= WIDEST
    need(possible, f"{path} says that it holds {count} vectors of {width} numbers; restore it.")
    promised = (
        f"{path} promises {count:,} vectors of {width} numbers and is too short for them; "
        "restore it."
    )
    need(2 * count * width <= len(content), promised)  # before room is made for them
    take = _text_vector if _is_text(content, start) else _binary_vector
    words: list[str] = []
    table, at = np.empty((count, width), np.float32), start
    for number in range(count):
        taken = take(content, at, width, f"{path} line {number + 2}")
        if taken is None:
            raise UserError(f"{path} ends after {number:,} of {count:,} vectors; restore the file.")
        word, table[number], at = taken
        try:
            words.append(word.decode())
        except UnicodeDecodeError:
            raise UserError(
                f"{path}: word {number + 1} ({word[:20]!r}) is not UTF-8 text, or the first line "
                "tells another width than the file's; restore it."
            ) from None
    need(
        not content[at:].strip(),
        f"{path} goes on after its {count:,} vectors of {width} numbers, so another width or number "
        "is meant; fix its first line or restore it.",
    )
    wrong = np.flatnonzero(~np.isfinite(table).all(1))
    if len(wrong):
        raise UserError(
            f'{path}: the vector of "{words[wrong[0]]}" holds what is not a number; restore the '
            "file."
        )
    return Vectors(tuple(words), table)


def _is_text(content: mmap.mmap, start: int) -> bool:
    """True where the first vector parses as text numbers, which binary data hardly ever does."""
    content.seek(start)
    try:
        return bool([float(number) for number in content.readline().decode().split()[1:]])
    except ValueError:
        return False


def _text_vector(
    content: mmap.mmap, at: int, width: int, line: str
) -> tuple[bytes, Array, int] | None:
    """A word, its vector and where the next line begins; None at the end."""
    content.seek(at)
    text = content.readline()
    if not text:
        return None
    need(
        text.endswith(b"\n"),
        f"The file ends within {line}; restore it, or end that line if it is whole.",
    )
    word, *numbers = text.split() or (b"",)
    need(
        len(numbers) == width,
        f"{line} has {len(numbers)} numbers and the first line says {width}; fix or restore the "
        "file.",
    )
    try:
        return word, np.array(numbers, np.float32), content.tell()
    except ValueError:
        raise UserError(f"{line} holds what is not a number; fix or restore the file.") from None


def _binary_vector(
    content: mmap.mmap, at: int, width: int, line: str
) -> tuple[bytes, Array, int] | None:
    space = content.find(b" ", at, at + FIRST)
    end = space + 1 + 4 * width
    if space < 0 or end > len(content):
        return None
    vector = np.frombuffer(content[space + 1 : end], "<f4")
    return content[at:space].lstrip(b"\n"), vector, end
