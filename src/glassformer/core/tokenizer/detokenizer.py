"""From ids to text as it grows, each class by the one before it:

Vocabulary      id -> name -> bytes
Stream          bytes -> whole characters
Writer          characters -> text without stop strings
Continuation    tokens -> text, until a token, a stop string or a number of tokens ends it
"""

from __future__ import annotations

import codecs
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from ..errors import UserError

Finish: TypeAlias = Literal["eos", "stop", "length", "context"]
# (a token's name, is it the first of the text?) -> the bytes it stands for
ByteDecoder = Callable[[str, bool], bytes]


@functools.cache
def byte_alphabet() -> dict[int, str]:
    """Byte -> the printable character that stands for it in a byte-level vocabulary (GPT-2's)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare_codes = itertools.count(256)
    return {byte: chr(byte if byte in printable else next(spare_codes)) for byte in range(256)}


@functools.cache
def bytes_by_letter() -> dict[str, int]:
    return {letter: byte for byte, letter in byte_alphabet().items()}


def byte_level(name: str, first: bool, added: Collection[str] = ()) -> bytes:
    """The bytes of a name in the byte alphabet; ``added`` names stand for themselves."""
    if name in added:
        return name.encode()
    table = bytes_by_letter()
    try:
        return bytes([table[letter] for letter in name])
    except KeyError:  # not written in the byte alphabet: it stands for itself
        return name.encode()


class Vocabulary:
    """Ids and the text they stand for, by ``decode_token``; ``hidden`` ids are special tokens."""

    size: int

    def __init__(
        self, ids: Mapping[str, int], hidden: frozenset[int], decode_token: ByteDecoder
    ) -> None:
        self._ids, self._hidden, self._decode_token = ids, hidden, decode_token
        self._names = [""] * self.size
        for name, id in ids.items():
            self._names[id] = name
        # the bytes of each id after the first place
        self._later: list[bytes | None] = [None] * self.size

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of ids; special tokens show only with ``special=True``; U+FFFD for broken ones.

        Raises UserError for an id that is out of range.
        """
        try:
            visible_ids = [id for id in ids if special or not self.hides(id)]
        except TypeError:
            raise UserError(
                f"Ids are integers in a list, and this is a {type(ids).__name__}; give a list."
            ) from None
        pieces = [self.bytes_of(id, at == 0) for at, id in enumerate(visible_ids)]
        return b"".join(pieces).decode("utf-8", "replace")

    def stream(self, *, special: bool = False) -> Stream:
        """A decoder for one id at a time: ``push(id)`` and at the end ``flush()``."""
        return Stream(self, special)

    def bytes_of(self, id: int, first: bool = False) -> bytes:
        """The UTF-8 bytes that an id stands for, ``first`` in the text or later."""
        if first:
            return self._decode_token(self.token(id), True)
        piece = self._later[id] if isinstance(id, int) and 0 <= id < self.size else None
        if piece is None:
            piece = self._later[id] = self._decode_token(self.token(id), False)
        return piece

    def hides(self, id: int) -> bool:
        """True where ``decode`` leaves this id out: a special token."""
        return id in self._hidden

    def token(self, id: int) -> str:
        """The name of an id in the vocabulary, such as ``Ġthe``; empty for an unused id."""
        try:
            id = operator.index(id)
        except TypeError:
            raise UserError(
                f"Ids are integers, and {ascii(id)[:50]} is not one; give integers."
            ) from None
        if not 0 <= id < self.size:
            raise UserError(
                f"Token {id} is out of range; this tokenizer has tokens 0 to {self.size - 1}."
            )
        return self._names[id]

    def id(self, token: str) -> int | None:
        """The id of a token's name, None when the vocabulary lacks it."""
        return self._ids.get(token)

    def vocabulary(self) -> dict[str, int]:
        """Every token's name and id, special ones too, in the order of ids."""
        return dict(sorted(self._ids.items(), key=lambda item: item[1]))


class Stream:
    """Text from ids, one at a time: ``push`` and ``flush`` give what ``decode`` gives."""

    def __init__(self, vocabulary: Vocabulary, special: bool = False) -> None:
        self.vocabulary, self.special = vocabulary, special
        self.first = True
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The text that is certain now: empty for a special token or an unfinished character."""
        if not self.special and self.vocabulary.hides(id):
            return ""
        piece = self.vocabulary.bytes_of(id, self.first)
        self.first = False
        return self.decoder.decode(piece)

    def flush(self) -> str:
        """The bytes held back (U+FFFD for an unfinished character); then it starts afresh."""
        tail = self.decoder.decode(b"", final=True)
        self.decoder.reset()
        self.first = True
        return tail


class Writer:
    """One row's text as it grows; ``stopped_by`` is the stop string that has been completed.

    What comes out never contains a stop string, nor the start of one that later tokens complete.
    The first stop string to be complete wins, so the text does not depend on where the tokens'
    borders lie.
    """

    def __init__(
        self, stream: Stream, context: Iterable[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self.stream, self.stops = stream, stops
        self.pending = ""
        self.stopped_by: str | None = None
        # the text goes on from here: the space between two words belongs to what follows
        for token in context:
            stream.push(token)

    @property
    def stopped(self) -> bool:
        return self.stopped_by is not None

    def push(self, token: int) -> str:
        """The text that may be shown after this token: often one token's, or none, or more."""
        return self._show(self.stream.push(token))

    def close(self) -> str:
        """Releases the text that could still have become a stop string, when no token follows."""
        if self.stopped:
            return ""
        text = self._show(self.stream.flush())
        tail, self.pending = self.pending, ""
        return text + tail

    def _show(self, new: str) -> str:
        text = self.pending + new
        if not self.stops:
            return text
        matches = [(at + len(s), at, s) for s in self.stops if (at := text.find(s)) >= 0]
        if matches:
            _, at, self.stopped_by = min(matches)
            self.pending = ""
            return text[:at]
        keep = max(_overlap(text, stop) for stop in self.stops)
        self.pending = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of ``text`` with which ``stop`` begins."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


class Continuation:
    """Tokens that follow ``start``, and why they ended: at a token of ``eos``, at a string of
    ``stops``, or after ``max_tokens`` by the reason ``limit``.

    ``tokens`` hold the eos or the stop string's that ended it (``stopped_by``), too; text leaves
    those out.
    """

    def __init__(
        self,
        start: Sequence[int],
        eos: frozenset[int],
        max_tokens: int,
        limit: Finish,
        tokenizer: Vocabulary | None,
        stops: Sequence[str],
    ) -> None:
        self.start, self.eos, self.max_tokens, self.limit = start, eos, max_tokens, limit
        self.tokenizer, self.stops = tokenizer, stops
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.stopped_by: str | int | None = None

    @functools.cached_property
    def writer(self) -> Writer | None:
        """Text as it grows, made with the first token: whoever asks for it does not wait."""
        if self.tokenizer is None:
            return None
        # the last few say that the text goes on, and begin a character of at most 4 bytes
        return Writer(self.tokenizer.stream(), self.start[-16:], self.stops)

    def append(self, token: int) -> str:
        """The text that may be shown after one more token; ``finish`` is set with the last."""
        self.tokens.append(token)
        text = ""
        if token in self.eos:
            self.finish, self.stopped_by = "eos", token
        elif self.writer is not None:
            text = self.writer.push(token)
        if self.finish is None and len(self.tokens) >= self.max_tokens:
            self.finish = self.limit
        if self.writer is not None:
            text += self.writer.close() if self.finish else ""
            if self.writer.stopped:
                self.finish, self.stopped_by = "stop", self.writer.stopped_by
        return text
