"""Examples: what a model is shown and what it is to answer, with the set of their labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import UserError

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

SHORT = 60  # characters of a name or label that a message quotes


@dataclass(frozen=True)
class Conversation:
    """Messages, each with a role and a content, and the tools that the assistant may call; answers
    from number ``first`` on are learned from. ``record`` is what a reward reads."""

    messages: tuple[dict[str, Any], ...]
    tools: list[dict[str, Any]] | None = None
    first: int = 1
    record: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "\n".join(message["content"] for message in self.messages)


@dataclass(frozen=True)
class Example:
    """One example: ``first`` is its source or text, ``second`` its target or other text, ``line``
    where it stands.

    ``label`` is the label's number in the set, or the number itself in a regression; ``references``
    are all targets. A sentence that is tagged has ``words`` and as many ``tags``, their labels'
    numbers. A chat has one of ``conversations``, a preference two, the better one first.
    """

    first: str
    second: str | None = None
    label: float | None = None
    line: int = 0
    references: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    tags: tuple[int, ...] = ()
    conversations: tuple[Conversation, ...] = ()


@dataclass(frozen=True)
class ExampleTable:
    """Examples in the order of their file, the set of ``labels`` in the order of their numbers, and
    ``notes``."""

    name: str
    examples: tuple[Example, ...]
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    def texts(self, first: bool = True, second: bool = True) -> Iterator[str]:
        """Every text, or those of one side: what a tokenizer is trained on."""
        for example in self.examples:
            if first:
                yield example.first
            if second and example.second is not None:
                yield example.second

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of what is learned from these examples, whatever the file is called."""
        digest = hashlib.sha256(json.dumps(self.labels).encode())
        for example in self.examples:
            content: list[Any] = [
                example.words or example.first,
                example.second,
                example.tags or example.label,
            ]
            for conversation in example.conversations:
                content += [conversation.messages, conversation.tools]
                content += [] if conversation.record is None else [conversation.record]
            digest.update(json.dumps(content).encode())
        return digest.hexdigest()

    def split(self, share: float) -> tuple[ExampleTable, ExampleTable]:
        """Training and validation examples: a ``share`` is held out, drawn with a fixed seed; both
        keep their order."""
        out = max(1, round(share * len(self)))
        if out >= len(self):
            raise UserError(
                f"{self.name} holds {len(self)} examples, too few to hold {share:g} of them out; "
                "give more."
            )
        held_out = np.zeros(len(self), bool)
        held_out[np.random.default_rng(0).permutation(len(self))[:out]] = True
        train, valid = (
            tuple(e for e, h in zip(self, held_out, strict=True) if h == which)
            for which in (False, True)
        )
        return replace(self, examples=train), replace(self, examples=valid, notes=())


def encode_words(
    tokenizer: Tokenizer, sentences: Iterable[Sequence[str]]
) -> Iterator[list[list[int]]]:
    """The ids of each word of each sentence, encoded one by one, behind the space that a text has
    before it."""
    sentences = [
        [w if tokenizer.adds_prefix or not at else f" {w}" for at, w in enumerate(words)]
        for words in sentences
    ]
    apart = list(dict.fromkeys(word for words in sentences for word in words))
    ids_of = dict(zip(apart, tokenizer.encode_batch(apart), strict=True))
    for words in sentences:
        missing = next((word for word in words if not ids_of[word]), None)
        if missing is not None:
            raise UserError(
                "The tokenizer makes no token of the word "
                f"{json.dumps(missing.strip())[:SHORT]}; fix it."
            )
        yield [ids_of[word] for word in words]
