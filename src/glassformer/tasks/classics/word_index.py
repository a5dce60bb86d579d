"""Text as words: what is split where, which words are known, and the text as their numbers.

N words of the text, V words of the vocabulary.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core import files
from ...core.errors import UserError, need

Array = np.ndarray[Any, Any]
WORD = re.compile(r"\w+(?:['’]\w+)*")  # don't is one word, and so is state's
FEWEST = 2  # distinct words without which nothing can be told apart


def read_lines(path: Path, fix: str) -> list[str]:
    """The lines of a file of UTF-8 text; UserError, which ends with ``fix``, where there is
    none."""
    need(path.is_file(), f"{path} does not exist; {fix}.")
    try:
        return files.read_text(path).splitlines()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text (byte {error.start}); convert or restore it."
        ) from None
    except OSError as error:
        raise files.explain(error, path) from None


def split(text: str) -> list[str]:
    """The words of a text, in small letters, without punctuation."""
    return WORD.findall(text.lower())


def sentences(texts: Iterable[str]) -> Iterator[list[str]]:
    """The words of each line that has some."""
    for text in texts:
        for line in text.splitlines():
            if words := split(line):
                yield words


@dataclass(frozen=True)
class Words:
    """A text as numbers of its words: ``words`` and ``frequencies`` (V) from the most frequent on.

    ``ids`` (N) are the known words in their order and ``sentence`` (N) the number of the sentence
    each is in, int32.
    """

    words: tuple[str, ...]
    frequencies: Array
    ids: Array
    sentence: Array

    def __len__(self) -> int:
        return len(self.ids)


def index_words(lines: Iterable[list[str]], least: int = 1, name: str = "The text") -> Words:
    """Sentences as numbers; words that occur fewer than ``least`` times are left out.

    Raises UserError for a text that has no words, or too few different ones.
    """
    number: dict[str, int] = {}  # in the order in which they first occur
    met, sentence_ends = array("i"), array("i")
    for words in lines:
        met.extend([number.setdefault(word, len(number)) for word in words])
        sentence_ends.append(len(met))
    if not met:
        raise UserError(f"{name} has no words; give a text with some.")
    occurrence_ids = np.frombuffer(met, np.int32)
    count = np.bincount(occurrence_ids, minlength=len(number))
    order = np.argsort(-count, kind="stable")
    order = order[count[order] >= least]
    if len(order) < FEWEST:
        often = f" that stand there {least} times or more" if least > 1 else ""
        fewer = ", or count rarer ones with a smaller --least" if least > 1 else ""
        raise UserError(
            f"{name} has too few different words{often} to learn from ({len(order)}); give more "
            f"text{fewer}."
        )
    new = np.full(len(number), -1, np.int32)
    new[order] = np.arange(len(order))
    names = list(number)
    ids = new[occurrence_ids]
    sizes: Array = np.diff(np.frombuffer(sentence_ends, np.int32), prepend=0)
    sentence = np.repeat(np.arange(len(sentence_ends), dtype=np.int32), sizes)
    is_known = ids >= 0
    return Words(tuple(names[i] for i in order), count[order], ids[is_known], sentence[is_known])
