"""One face for every tokenizer: text <-> ids, spans, vocabulary, special tokens, streaming."""

from __future__ import annotations

import functools
import hashlib
import json
import operator
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files
from ..errors import UserError
from .safety import check, marking_lost, refusal
from .specification import (
    MOST_IDS,
    Roles,
    Spec,
    canonical,
    frame,
    framed_by,
    ids_of,
    load,
    opened_by,
    reason,
    roles_of,
    steps,
    without_specials,
)
from .stream import Stream, reader
from .tiktoken_backend import Twin
from .watch import pool, watched

if TYPE_CHECKING:
    import tokenizers

EXTRA = "glassformer"  # the one key that to_json may add to a tokenizer.json: parts played by unusual names
ENDS = ("bos", "eos", "pad", "unk")  # the parts that decide how documents are written
LARGE = 1 << 20
"""Characters: from here on the time to prove a faster engine is won back at once."""
SENTINEL = re.compile(r"<extra_id_(\d+)>")  # T5's marks of what was taken out

_TURNS = threading.Lock()  # of threads that want the faster engine


class Tokenizer:
    """Text <-> ids, by the `tokenizers` library.

    ids are 0..size-1; ``specials`` maps special tokens to ids; ``bos``, ``eos``, ``pad``, ``unk``, ``cls``, ``sep``
    and ``mask`` are ids or None; ``sentinels`` are the ids of T5's <extra_id_0>, <extra_id_1>, ... in this order.
    Special tokens in a text stay plain text unless ``special=True``. Raises UserError for what is not a tokenizer.
    """

    def __init__(self, spec: Spec, roles: Roles | None = None, source: str = "The tokenizer") -> None:
        try:
            check(spec)
            self.roles = roles_of(spec, roles or {})
            self._spec = canonical(spec, self.roles)
            self._read = reader(self._spec.get("decoder"))
            added = [token["content"] for token in self._spec["added_tokens"] if token["content"]]
            special = [
                token["content"] for token in self._spec["added_tokens"] if token["content"] and token["special"]
            ]
            hidden = without_specials(self._spec, special)
            whole, self._lost = marking_lost(self._spec)
            plain = whole if hidden is None else marking_lost(hidden)[0]
        except UserError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
            raise UserError(
                f"{source} lacks what a tokenizer.json must hold ({reason(error)}); restore the file."
            ) from None
        self._source = source
        self._plain = load(plain, source)
        self._plain.encode_special_tokens = True
        self._whole = whole
        self._ids: dict[str, int] = ids_of(
            {**self._spec, "added_tokens": [t for t in self._spec["added_tokens"] if t["content"]]}
        )
        self.size: int = max(self._ids.values(), default=-1) + 1
        if not self.size:
            raise UserError(f"{source} has no vocabulary; restore the file.")
        if self.size > MOST_IDS:
            raise UserError(
                f"{source} has ids up to {self.size - 1}, more than any vocabulary needs; restore the file."
            )
        self._names: list[str] = [""] * self.size
        for name, id in self._ids.items():
            self._names[id] = name
        self._later: list[bytes | None] = [None] * self.size  # what each id stands for after the first place
        spaced = {step.get("type") for step in steps(self._spec.get("decoder"))} <= {"WordPiece"}
        self._literal = set() if spaced else {self._ids[name] for name in added}  # these stand for their own name
        self.specials = {name: self._ids[name] for name in special}
        self._hidden = frozenset(self.specials.values())
        self.bos, self.eos, self.pad, self.unk = map(self._player, ENDS)
        self.cls, self.sep, self.mask = map(self._player, ("cls", "sep", "mask"))
        marks = {int(found[1]): self._ids[name] for name in special if (found := SENTINEL.fullmatch(name))}
        self.sentinels: list[int] = [marks[number] for number in sorted(marks)]

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"Tokenizer({self.size} tokens, {len(self.specials)} special, {self.fingerprint[:8]})"

    # ------------------------------------------------------------------------------ text -> ids

    def encode(self, text: str, *, bos: bool = False, eos: bool = False, special: bool = False) -> list[int]:
        """The ids of a text, with the beginning and end tokens when asked.

        ``special=True`` reads special tokens that are written in the text. Raises UserError for a character
        that the tokenizer cannot write, and for a ``bos`` or ``eos`` it does not have.
        """
        return self.encode_batch([text], bos=bos, eos=eos, special=special)[0]

    def encode_batch(
        self, texts: Iterable[str], *, bos: bool = False, eos: bool = False, special: bool = False
    ) -> list[list[int]]:
        """``encode`` of each text, in parallel."""
        texts = list(texts)
        before = [self._part("bos")] if bos else []
        after = [self._part("eos")] if eos else []
        if not special and sum(map(len, filter(_is_text, texts))) >= LARGE and self._twin is not None:
            workers = os.cpu_count() or 1
            size = -(-len(texts) // (4 * workers))
            with pool(workers) as threads:
                groups = threads.map(self.encode_arrays, (texts[at : at + size] for at in range(0, len(texts), size)))
                found = [ids if isinstance(ids, list) else ids.tolist() for group in groups for ids in group]
        else:
            found = self._encoded(texts, special)
        return [[*before, *ids, *after] for ids in found] if before or after else found

    def encode_arrays(self, texts: Iterable[str]) -> list[Any]:
        """``encode`` of each text, for a large corpus: NumPy arrays by the faster engine where its ids are the same."""
        texts, twin = list(texts), self._twin
        found = [twin.ids(text) if twin is not None and _is_text(text) else None for text in texts]
        rest = iter(self._encoded([text for text, ids in zip(texts, found, strict=True) if ids is None], special=False))
        return [next(rest) if ids is None else ids for ids in found]

    def _encoded(self, texts: list[str], special: bool) -> list[list[int]]:
        """The ids of each text by the library."""
        library = self._special if special else self._plain
        if not texts:
            return []
        found: list[list[int]] = self._asked(
            library, texts, lambda: [one.ids for one in library.encode_batch_fast(texts, add_special_tokens=False)]
        )
        if self._lost is not None and any(self._lost in ids for ids in found):
            raise refusal(texts, library, self._lost, LookupError("it has no token for what it does not know"))
        return found

    def _asked(self, library: tokenizers.Tokenizer, texts: Sequence[str], work: Callable[[], Any]) -> Any:
        """What the library answers, within a budget; UserError where it panics or finds no id."""
        try:
            return watched(work, sum(map(len, filter(_is_text, texts))))
        except (KeyboardInterrupt, SystemExit, UserError):
            raise
        except BaseException as error:  # the library's own panics are not Exceptions
            raise refusal(texts, library, self._lost, error) from None

    def _alone(self, text: str) -> tokenizers.Encoding:
        """The library's whole answer for one text; by a batch, since for a single text it keeps Python's lock."""
        work = partial(self._plain.encode_batch, [text], add_special_tokens=False)
        found: list[tokenizers.Encoding] = self._asked(self._plain, [text], work)
        return found[0]

    def encode_pair(
        self, first: str, second: str | None = None, *, most: int | None = None, special: bool = False
    ) -> tuple[list[int], list[int]]:
        """The ids of one text or two with the tokens that belong around them, and each id's segment, 0 or 1.

        BERT: [CLS] first [SEP] second [SEP]. With ``most`` tokens in all, the longer text is cut until it fits;
        ``special=True`` reads special tokens that are written in a text ([MASK]).
        Raises UserError for two texts when the tokenizer has no token to put between them.
        """
        return self.encode_pairs([first if second is None else (first, second)], most=most, special=special)[0]

    def encode_pairs(
        self, texts: Sequence[str | tuple[str, str]], *, most: int | None = None, special: bool = False
    ) -> list[tuple[list[int], list[int]]]:
        """``encode_pair`` of each text or pair, in parallel."""
        groups = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
        ids = iter(self.encode_batch([text for group in groups for text in group], special=special))
        return [self.framed([next(ids) for _ in group], most) for group in groups]

    def framed(self, texts: list[list[int]], most: int | None = None) -> tuple[list[int], list[int]]:
        """``encode_pair`` of one text or two that are ids already."""
        frame = self._frames[len(texts) - 1]
        if len(texts) == 2 and all(text is not None for text, _, _ in frame):
            raise UserError("This tokenizer has no token to put between two texts; use one that has, such as BERT's.")
        room = None if most is None else most - sum(text is None for text, _, _ in frame)
        if room is not None and sum(map(len, texts)) > room:
            if room < len(texts):
                raise UserError(f"{most} tokens leave no room for the text; allow more.")
            short = min(*map(len, texts), room // 2) if len(texts) == 2 else 0
            first = room - short if len(texts) == 1 or len(texts[0]) > len(texts[1]) else short
            texts = [text[:keep] for text, keep in zip(texts, (first, room - first), strict=False)]
        ids, segments = [], []
        for text, id, segment in frame:
            part = [id] if text is None else texts[text]
            ids += part
            segments += [segment] * len(part)
        return ids, segments

    @functools.cached_property
    def _frames(self) -> tuple[list[tuple[int | None, int, int]], list[tuple[int | None, int, int]]]:
        """What stands around a text and around two: as the file says, else cls or bos before, sep or eos after."""
        one, two = (frame(self._spec, self._source, pair) for pair in (False, True))
        if any(text is None for text, _, _ in two):
            return one, two
        bos = None if self.bos == self.eos else self.bos
        before, after = bos if self.cls is None else self.cls, self.eos if self.sep is None else self.sep
        opening = [] if before is None else [(None, before, 0)]
        closing = [[] if after is None else [(None, after, segment)] for segment in (0, 1)]
        one = [*opening, (0, 0, 0), *closing[0]]
        return one, [*one, (1, 0, 1), *closing[1]]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The span (start, end) in characters that each token of ``encode(text)`` stands for.

        Tokens that share a character, such as the bytes of an emoji, each have that character's span.
        """
        spans: list[tuple[int, int]] = self._alone(text).offsets
        return spans

    @functools.cached_property
    def opens(self) -> bool:
        """Whether something is put in front of each text, as SentencePiece puts a space."""
        before = [*steps(self._spec.get("normalizer")), *steps(self._spec.get("pre_tokenizer"))]
        return any(
            step["type"] == "Prepend"
            or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
            or (step["type"] == "ByteLevel" and step.get("add_prefix_space", True))
            for step in before
        )

    def encode_onward(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids and spans of what goes on behind a line's end: nothing is put in front of it."""
        encoding = self._alone(f"\n{text}")
        first = next((at for at, (_, end) in enumerate(encoding.offsets) if end > 1), len(encoding.ids))
        spans = [(max(start - 1, 0), end - 1) for start, end in encoding.offsets[first:]]
        return encoding.ids[first:], spans

    @property
    def _twin(self) -> Twin | None:
        """The faster engine, where its ids are proven to be the library's; made when it is first asked for."""
        with _TURNS:
            return self._made

    @functools.cached_property
    def _made(self) -> Twin | None:
        return Twin.of(self._spec, self._plain)

    @functools.cached_property
    def _special(self) -> tokenizers.Tokenizer:
        """The library's tokenizer that reads special tokens out of the text."""
        return load(self._whole, self._source)

    def _player(self, part: str) -> int | None:
        name = self.roles[part]
        return None if name is None else self._ids[name]

    def _part(self, part: str) -> int:
        name = self.roles[part]
        if name is None:
            long = {"bos": "beginning", "eos": "end"}[part]
            raise UserError(f"This tokenizer has no {long}-of-text token; encode without {part}=True.")
        return self._ids[name]

    # ------------------------------------------------------------------------------ ids -> text

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of ids; special tokens show only with ``special=True``; a broken character is U+FFFD.

        Raises UserError for an id that is out of range.
        """
        try:
            shown = [id for id in ids if special or not self.hides(id)]
        except TypeError:
            raise UserError(f"Ids are integers in a list, and this is a {type(ids).__name__}; give such.") from None
        pieces = [self.bytes_of(id, at == 0) for at, id in enumerate(shown)]
        return b"".join(pieces).decode("utf-8", "replace")

    def stream(self, *, special: bool = False) -> Stream:
        """A decoder for one id at a time: ``push(id)`` and at the end ``flush()``."""
        return Stream(self, special)

    def bytes_of(self, id: int, first: bool = False) -> bytes:
        """The UTF-8 bytes, perhaps a part of a character, that an id stands for; ``first`` in the text or later."""
        if first:
            name = self.token(id)
            return name.encode() if id in self._literal else self._read(name, True)
        piece = self._later[id] if isinstance(id, int) and 0 <= id < self.size else None
        if piece is None:
            name = self.token(id)
            piece = self._later[id] = name.encode() if id in self._literal else self._read(name, False)
        return piece

    def hides(self, id: int) -> bool:
        """Whether ``decode`` leaves this id out: a special token."""
        return id in self._hidden

    # ------------------------------------------------------------------------------- vocabulary

    def token(self, id: int) -> str:
        """The name of an id as the vocabulary writes it, such as ``Ġthe``; empty for an id that is not used."""
        try:
            id = operator.index(id)
        except TypeError:
            raise UserError(f"Ids are integers, and {ascii(id)[:50]} is not one; give such.") from None
        if not 0 <= id < self.size:
            raise UserError(f"Token {id} is out of range; this tokenizer has tokens 0 to {self.size - 1}.")
        return self._names[id]

    def id(self, token: str) -> int | None:
        """The id of a token's name, None when the vocabulary lacks it."""
        return self._ids.get(token)

    def vocabulary(self) -> dict[str, int]:
        """Every token's name and id, special ones too, in the order of ids."""
        return dict(sorted(self._ids.items(), key=lambda item: item[1]))

    # ------------------------------------------------------------------------------------ files

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of everything that decides ids, as hexadecimal text: equal after a round trip through files."""
        spec = {**self._spec, "post_processor": None}  # nothing is added around a text here
        whole = json.dumps([spec, {part: self.roles[part] for part in ENDS}], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(whole.encode()).hexdigest()

    def to_json(self) -> str:
        """The text of a tokenizer.json, with one more key where parts are played by unusual names."""
        usual = roles_of(self._spec, {}) == self.roles
        return json.dumps(self._spec if usual else {**self._spec, EXTRA: self.roles}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, roles: Roles | None = None, source: str = "The tokenizer") -> Tokenizer:
        """The tokenizer in a tokenizer.json's text; ``roles`` says who plays bos, eos, mask and so on, where known."""
        try:
            spec = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{source} is not valid JSON ({error}); restore or fix it.") from None
        if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
            raise UserError(
                f'{source} has no "model" and so is not a tokenizer.json; restore it or choose another file.'
            )
        stored = spec.pop(EXTRA, None)
        return cls(spec, roles or (stored if isinstance(stored, dict) else None), source)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json into a folder, as `transformers` opens them.

        There too a text then begins with bos, if it does here, or stands between cls and sep.
        """
        folder = Path(folder)
        parts = {f"{part}_token": name for part, name in self.roles.items()}
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **parts}
        spec = self._spec
        if not spec.get("post_processor") and self.cls is not None and self.sep is not None:
            spec = {**spec, "post_processor": framed_by(*self._frames, self._names)}
        elif not spec.get("post_processor") and self.bos != self.eos and self.bos is not None:
            spec = {**spec, "post_processor": opened_by(str(self.roles["bos"]), self.bos)}
        files.write(folder / "tokenizer.json", json.dumps(spec, ensure_ascii=False))
        files.write(folder / "tokenizer_config.json", json.dumps(settings, indent=1, ensure_ascii=False) + "\n")


def _is_text(text: object) -> bool:
    return isinstance(text, str)
