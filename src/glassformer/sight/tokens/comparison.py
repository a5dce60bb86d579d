"""The same text under a tokenizer: its tokens, what is counted, and what it does with
capitals, spaces, digits, ..."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ...core.errors import UserError, need
from ...core.files import JsonObject
from ...core.tokenizer.tokenizer import Tokenizer
from ...core.tokenizer.tokenizer_json import BYTE_TOKEN
from ..labels import visible

SAMPLE = (
    "Glass and GLASS\n🎵 鸟\ndef look(x): return None if x >= 10 elif False\n"
    'two tabs:"\t\t" three tabs:"\t\t\t"\n12.5*40+3=503'
)
"""The text that is shown where none is given: a bit of everything that tokenizers differ in."""
EXAMPLES = {
    "capitals": ("london", "London", "LONDON"),
    "spaces": ("x  y", "x    y", "x        y"),
    "tabs": ("x\ty", "x\t\ty", "x\t\t\ty"),
    "newlines": ("x\ny", "x\n\ny"),
    "digits": ("1234567",),
    "emoji": ("🎵",),
    "other scripts": ("鸟", "Привет", "नमस्ते"),
    "code": ("def", "return", "elif", "None", "False", "import", "==", ">="),
    "unknown": ("𓂀",),  # an Egyptian hieroglyph: in nobody's vocabulary
}
PIECE, BYTES, UNKNOWN = "piece", "bytes", "unknown"


@dataclass(frozen=True)
class Token:
    """One token: its id, its ``name`` in the vocabulary, how it is ``shown``, and its span in the
    text's characters.

    ``kind`` is "piece", "bytes" (a part of a character, or a byte that stands for one) or
    "unknown".
    """

    id: int
    name: str
    shown: str
    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class VocabularyCounts:
    """Counts of a vocabulary: ``base`` entries of the model itself, ``special`` tokens, other ``added``
    ones, and all three.

    ``ids`` is the highest id and one, the rows of an embedding: more than ``entries`` where ids are
    left free.
    """

    base: int
    special: int
    added: int
    entries: int
    ids: int


@dataclass(frozen=True)
class Sheet:
    """Everything that is said about one text under one tokenizer.

    ``refused`` is why it cannot be written at all, and then there are no tokens. ``around`` is what
    stands before and after a text, when a model reads one; ``habits`` what the tokenizer does with
    each kind of text.
    """

    name: str
    algorithm: str
    vocabulary: VocabularyCounts
    tokens: tuple[Token, ...]
    characters: int
    refused: str | None
    specials: tuple[str, ...]
    around: tuple[str, ...]
    habits: dict[str, str]

    @property
    def characters_per_token(self) -> float:
        """Characters of the text for each token; 0 without tokens."""
        return self.characters / len(self.tokens) if self.tokens else 0.0

    @property
    def numbers(self) -> tuple[int, ...]:
        """The counts that are shown: entries, of these base, special and added, then tokens."""
        vocabulary = self.vocabulary
        return (
            vocabulary.entries,
            vocabulary.base,
            vocabulary.special,
            vocabulary.added,
            len(self.tokens),
        )

    def to_dict(self) -> JsonObject:
        return {**asdict(self), "characters_per_token": round(self.characters_per_token, 4)}


def sheet(name: str, tokenizer: Tokenizer, text: str) -> Sheet:
    """The text under a tokenizer that is called ``name``; UserError as ``check`` says."""
    check(text)
    refused, pieces = None, list[Token]()
    try:
        pieces = tokens(tokenizer, text)
    except UserError as error:
        refused = str(error)
    return Sheet(
        name,
        algorithm(tokenizer),
        count(tokenizer),
        tuple(pieces),
        len(text),
        refused,
        tuple(tokenizer.specials),
        tuple(map(tokenizer.token, tokenizer.framed([[]])[0])),
        habits(tokenizer),
    )


def check(text: str) -> None:
    """UserError for a text that is empty or was not UTF-8."""
    need(bool(text), "The text is empty; give some.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"The text is not UTF-8 (character {error.start}); convert it, for example "
            "with `iconv -t utf-8`."
        ) from None


def algorithm(tokenizer: Tokenizer) -> str:
    """Name of the algorithm, such as "byte-level BPE"."""
    model = tokenizer.spec["model"]
    if model["type"] == "BPE" and _decoder(tokenizer) == "ByteLevel":
        return "byte-level BPE" if model["merges"] else "bytes"
    if model["type"] == "WordLevel":
        return "characters" if _decoder(tokenizer) == "Fuse" else "whole words"
    return f"{model['type']}, bytes for the rest" if model.get("byte_fallback") else model["type"]


def _decoder(tokenizer: Tokenizer) -> str | None:
    return (tokenizer.spec.get("decoder") or {}).get("type")


def count(tokenizer: Tokenizer) -> VocabularyCounts:
    entries = len(tokenizer.vocabulary())
    special = len(tokenizer.specials)
    added = sum(not token["special"] for token in tokenizer.spec["added_tokens"])
    return VocabularyCounts(entries - special - added, special, added, entries, tokenizer.size)


def tokens(tokenizer: Tokenizer, text: str) -> list[Token]:
    """The text's tokens in order."""
    results = []
    for id, (start, end) in zip(tokenizer.encode(text), tokenizer.offsets(text), strict=True):
        name, kind = tokenizer.token(id), PIECE
        visible = name.replace("▁", " ")
        if id == tokenizer.unk:
            kind = UNKNOWN
        elif BYTE_TOKEN.fullmatch(name):
            visible, kind = name, BYTES
        elif _decoder(tokenizer) == "ByteLevel":
            raw = tokenizer.bytes_of(id)
            try:
                visible = raw.decode()
            except UnicodeDecodeError:
                visible = f"<0x{raw.hex().upper()}>"
                kind = BYTES
        results.append(Token(id, name, visible, kind, start, end))
    return results


def habits(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the tokens of each kind of text, by its examples, with bars between them."""
    return {topic: " ".join(cut(tokenizer, text) for text in EXAMPLES[topic]) for topic in EXAMPLES}


def cut(tokenizer: Tokenizer, text: str) -> str:
    """The tokens of a text with bars between them, or that it is refused."""
    try:
        return "|".join(visible(token.shown) for token in tokens(tokenizer, text))
    except UserError as error:
        return "(refused)" if "does not know" in str(error) else f"(refused: {error})"
