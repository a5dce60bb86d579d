"""One face for every tokenizer: text <-> ids, spans, vocabulary, special tokens, streaming.

Ids are those of the `tokenizers` library. Long texts, and all texts of a tokenizer read from
tiktoken's ranks, are encoded by tiktoken, where its ids are proven to be the same
(``formats/tiktoken_backend.py``). The library's panics, hangs and silent losses become sentences.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from .. import registry
from ..errors import UserError, library_errors, need
from . import tokenizer_json
from .detokenizer import Vocabulary, byte_alphabet
from .tokenizer_json import ByRank, Roles, Spec, byte_decoder, ids_of, make_spec, steps

if TYPE_CHECKING:
    import tokenizers


# the one key that to_json may add to a tokenizer.json: roles played by unusual names
EXTRA = "glassformer"
ENDS = ("bos", "eos", "pad", "unk")  # the roles that decide how documents are written
LARGE = 1 << 20
"""Characters: from here on the time to build tiktoken's tables is won back at once."""
SENTINEL = re.compile(r"<extra_id_(\d+)>")  # T5's marks of what was taken out


class Tokenizer(Vocabulary):
    """Text <-> ids, by the `tokenizers` library.

    ids are 0..size-1; ``specials`` maps special tokens to ids; ``bos``, ``eos``, ``pad``, ``unk``,
    ``cls``, ``sep`` and ``mask`` are ids or None; ``sentinels`` are the ids of T5's <extra_id_0>,
    <extra_id_1>, ... in this order. Special tokens in a text stay plain text unless
    ``special=True``. ``source_tokenizer`` reads an encoder-decoder's sources where they have a
    vocabulary of their own; ``ends`` end what its model writes where ``eos`` alone does not;
    ``chat_template`` (Jinja) makes one text of a conversation.
    ``spec`` and ``roles`` are as ``formats/tokenizer_forms.py`` leaves them. Raises UserError for
    what is not a tokenizer.
    """

    source_tokenizer: Tokenizer | None

    def __init__(self, spec: Spec, roles: Roles, source: str = "The tokenizer") -> None:
        self._source, self.source_tokenizer = source, None
        self._tables, self.roles = spec, roles
        self._by_rank = isinstance(spec["model"].get("merges"), ByRank)
        decode_token = byte_decoder(spec, lambda: self._plain.decoder)
        if not self._by_rank:  # a file of ranks is checked already
            self._plain  # noqa: B018 - says what is wrong with the file
        ids = tokenizer_json.ids_of(self._tables)
        self.size: int = max(ids.values(), default=-1) + 1
        need(self.size > 0, f"{source} has no vocabulary; restore the file.")
        need(
            self.size <= tokenizer_json.MOST_IDS,
            f"{source} has ids up to {self.size - 1}, more than any vocabulary needs; "
            "restore the file.",
        )
        added = self._tables["added_tokens"]
        special = [token["content"] for token in added if token["special"]]
        self.specials = {name: ids[name] for name in special}
        super().__init__(ids, frozenset(self.specials.values()), decode_token)
        self.bos, self.eos, self.pad, self.unk, self.cls, self.sep, self.mask = (
            None if name is None else ids[name]
            for name in map(self.roles.get, (*ENDS, "cls", "sep", "mask"))
        )
        self.ends: tuple[int, ...] = ()
        self.frames_as_file = False  # nothing stands around a text unless the file says so
        self.chat_template: str | None = None
        marks = ((SENTINEL.fullmatch(name), id) for name, id in self.specials.items())
        self.sentinels = [id for _, id in sorted((int(m[1]), id) for m, id in marks if m)]

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end what a model writes."""
        return frozenset(self.ends or (() if self.eos is None else (self.eos,)))

    @property
    def for_source(self) -> Tokenizer:
        """Tokenizer of an encoder-decoder's sources."""
        return self.source_tokenizer or self

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        digest = self.fingerprint[:8]
        return f"Tokenizer({self.size} tokens, {len(self.specials)} special, {digest})"

    # ------------------------------------------------------------------------------ text -> ids

    def encode(
        self, text: str, *, bos: bool = False, eos: bool = False, special: bool = False
    ) -> list[int]:
        """The ids of a text, with the beginning and end tokens when asked.

        ``special=True`` reads special tokens that are written in the text. Raises UserError for a
        character that the tokenizer cannot write, and for a ``bos`` or ``eos`` it does not have.
        """
        return self.encode_batch([text], bos=bos, eos=eos, special=special)[0]

    def encode_batch(
        self, texts: Iterable[str], *, bos: bool = False, eos: bool = False, special: bool = False
    ) -> list[list[int]]:
        """``encode`` of each text, in parallel."""
        texts = list(texts)
        before = [self._end("bos", "beginning", self.bos)] if bos else []
        after = [self._end("eos", "end", self.eos)] if eos else []
        with_specials = functools.partial(self._by_library, special=True)
        encode = with_specials if special else self.encoder(count_characters(texts))
        lists = [ids if isinstance(ids, list) else ids.tolist() for ids in encode(texts)]
        return [[*before, *ids, *after] for ids in lists] if before or after else lists

    def _end(self, role: str, long: str, id: int | None) -> int:
        if id is None:
            raise UserError(
                f"This tokenizer has no {long}-of-text token; encode without {role}=True."
            )
        return id

    def encoder(self, characters: int) -> Callable[[Sequence[str]], list[Any]]:
        """The fastest function that encodes each of some texts, of so many characters in all, to
        lists or NumPy arrays of ids.

        The tables that it needs are built here, so that threads may then call it.
        """
        fast = (self._by_rank or characters >= LARGE) and self._tiktoken is not None
        return self._tiktoken.encode_batch if fast else self._by_library

    @functools.cached_property
    def _tiktoken(self) -> Any:
        """An encoder from outside whose ids are proven to be the library's; None without one."""
        plain = None if self._by_rank else self._plain
        for module in registry.load("tokenizer_backends"):  # formats/tiktoken_backend.py
            return module.of(self._tables, plain, self._by_library)
        return None

    def _by_library(self, texts: Sequence[str], special: bool = False) -> list[list[int]]:
        chosen = self._special if special else self._plain
        return [answer.ids for answer in encodings(chosen, texts, "encode_batch_fast")]

    def encode_pair(
        self,
        first: str,
        second: str | None = None,
        *,
        most: int | None = None,
        special: bool = False,
    ) -> tuple[list[int], list[int]]:
        """The ids of one text or two with the tokens around them, and each id's segment, 0 or 1.

        BERT: [CLS] first [SEP] second [SEP]. With ``most`` tokens in all, the longer text is cut
        until it fits; ``special=True`` reads special tokens that are written in a text ([MASK]).
        Raises UserError for two texts when the tokenizer has no token to put between them.
        """
        texts = [first] if second is None else [first, second]
        return self.framed(self.encode_batch(texts, special=special), most)

    def encode_pairs(
        self, texts: Sequence[str | tuple[str, str]], most: int | None = None, as_file: bool = False
    ) -> list[tuple[list[int], list[int]]]:
        """``encode_pair`` of each text or pair, in parallel; ``as_file`` as in ``framed``."""
        groups = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
        ids = iter(self.encode_batch([text for group in groups for text in group]))
        return [self.framed([next(ids) for _ in group], most, as_file) for group in groups]

    def framed(
        self, texts: list[list[int]], most: int | None = None, as_file: bool = False
    ) -> tuple[list[int], list[int]]:
        """``encode_pair`` of texts that are ids already; ``as_file``: in what the file says alone."""
        as_file = as_file or self.frames_as_file
        frame = (self._file_frames if as_file else self._frames)[len(texts) - 1]
        around = sum(text is None for text, _, _ in frame)
        if len(texts) == 2 and not around and not as_file:
            raise UserError(
                "This tokenizer has no token to put between two texts; use one that "
                "has, such as BERT's."
            )
        if most is not None and sum(map(len, texts)) > most - around:
            room = most - around
            need(room >= len(texts), f"{most} tokens leave no room for the text; allow more.")
            texts = [text[:size] for text, size in zip(texts, cut_sizes(texts, room), strict=False)]
        ids, segments = list[int](), list[int]()
        for text, id, segment in frame:
            piece = [id] if text is None else texts[text]
            ids += piece
            segments += [segment] * len(piece)
        return ids, segments

    @functools.cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """Ids that the file puts before and after a text; none where it says nothing."""
        places = self._file_frames[0]
        at = [text for text, _, _ in places].index(0)
        return [id for _, id, _ in places[:at]], [id for _, id, _ in places[at + 1 :]]

    @functools.cached_property
    def _file_frames(self) -> tuple[list[Place], list[Place]]:
        single, double = (places_around(self._tables, self._source, pair) for pair in (False, True))
        return single, double

    @functools.cached_property
    def _frames(self) -> tuple[list[Place], list[Place]]:
        """Special tokens around one text and two: the file's, else cls or bos and sep or eos."""
        if any(text is None for text, _, _ in self._file_frames[1]):
            return self._file_frames
        bos = None if self.bos == self.eos else self.bos
        opens = bos if self.cls is None else self.cls
        closes = self.eos if self.sep is None else self.sep
        frame = [(None, opens, 0), (0, 0, 0), (None, closes, 0), (1, 0, 1), (None, closes, 1)]
        double = [(text, id, segment) for text, id, segment in frame if id is not None]
        return [place for place in double if place[2] == 0], double

    def offsets(self, text: str, *, special: bool = False) -> list[tuple[int, int]]:
        """The span (start, end) in characters of each token of ``encode(text, special=special)``.

        Tokens that share a character, such as the bytes of an emoji, each have that character's
        span.
        """
        (answer,) = encodings(self._special if special else self._plain, [text])
        spans: list[tuple[int, int]] = answer.offsets
        return spans

    def words(self, text: str) -> list[str]:
        """The text normalised and split, as the library's model is given it."""
        if self._plain.normalizer is not None:
            text = self._plain.normalizer.normalize_str(text)
        if self._plain.pre_tokenizer is None:
            return [text] if text else []
        return [word for word, _ in self._plain.pre_tokenizer.pre_tokenize_str(text)]

    @functools.cached_property
    def adds_prefix(self) -> bool:
        """True where something is put in front of each text, as SentencePiece puts a space."""
        return not self._by_rank and len("".join(self.words("a"))) > 1

    def encode_continuation(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids and spans of a text that continues another: nothing is put in front of it."""
        (answer,) = encodings(self._plain, [f"\n{text}"])
        ids, offsets = answer.ids, answer.offsets
        first = next((at for at, (_, end) in enumerate(offsets) if end > 1), len(ids))
        return ids[first:], [(max(start - 1, 0), end - 1) for start, end in offsets[first:]]

    @functools.cached_property
    def spec(self) -> Spec:
        return tokenizer_json.with_merges(self._tables)

    @functools.cached_property
    def _plain_spec(self) -> Spec:
        """The same, with a model that finds no special token in plain text."""
        return marking_lost(tokenizer_json.without_specials(self.spec))

    @functools.cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """The library's tokenizer that leaves special tokens in a text as plain text."""
        plain = open_library(self._plain_spec, self._source)
        plain.encode_special_tokens = True
        return plain

    @functools.cached_property
    def _special(self) -> tokenizers.Tokenizer:
        return open_library(marking_lost(self.spec), self._source)

    # ------------------------------------------------------------------------------------ files

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 (hexadecimal) of all that decides ids; a round trip keeps it."""
        spec = {**self.spec, "post_processor": None}  # nothing is added around a text here
        content = [spec, {role: self.roles[role] for role in ENDS}]
        serialized = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(serialized.encode()).hexdigest()

    def to_json(self) -> str:
        """The text of a tokenizer.json, with one more key where unusual names play the parts."""
        usual = tokenizer_json.roles_of(self.spec, {}) == self.roles
        extra = {} if usual else {EXTRA: self.roles}
        return json.dumps({**self.spec, **extra}, ensure_ascii=False)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json as `transformers` opens them."""
        (room,) = registry.load("tokenizer_files")  # formats/tokenizer_saving.py
        room.save(self, Path(folder))


def cut_sizes(texts: Sequence[Sequence[int]], room: int) -> tuple[int, int]:
    """The tokens of one text or two that fit in ``room``: the longer one is cut first."""
    short = min(*map(len, texts), room // 2) if len(texts) == 2 else 0
    first = room - short if len(texts) == 1 or len(texts[0]) > len(texts[1]) else short
    return first, room - first


T = TypeVar("T")
# which text, or None for a token of its own, its id, its segment
Place: TypeAlias = tuple[int | None, int, int]

UNWATCHED = 1 << 14  # characters; what is smaller is done at once
SECONDS, RATE = 10.0, 50_000  # the budget: these, and a second for so many characters
TICK = 0.1  # seconds between two looks at the clock
BLANK = "\U0010ffff"  # no character: stands for the letters of a special token
LOST = "\0 lost"  # stands where a BPE without an unknown token would leave a character out

# .abandoned: set once the thread's pool was left by an exception (formats/tiktoken_backend.py)
worker = threading.local()


# ------------------------------------------------------------------------------------ opening


def open_library(spec: Spec, source: str) -> tokenizers.Tokenizer:
    """The library's tokenizer; it adds nothing around a text and trims no spans."""
    import tokenizers

    none = f"{source} holds no tokenizer that can be used"
    with library_errors(lambda error: UserError(f"{none} ({reason(error)}); restore it.")):
        return tokenizers.Tokenizer.from_str(
            json.dumps({**spec, "post_processor": None}, ensure_ascii=False)
        )


def reason(error: BaseException) -> str:
    first = (str(error) or type(error).__name__).splitlines()[0]
    return first if len(first) <= 200 else first[:200] + "..."


def marking_lost(spec: Spec) -> Spec:
    """The specification with a token ``LOST`` for each character the model would leave out.

    Only a BPE with no unknown token leaves any out, where not every byte is an entry; others come
    back as they are.
    """
    model = spec["model"]
    if model["type"] != "BPE" or model.get("unk_token") is not None:
        return spec
    before = [*steps(spec.get("normalizer")), *steps(spec.get("pre_tokenizer"))]
    letters: set[str] = set()
    if model.get("byte_fallback"):
        letters = {f"<0x{byte:02X}>" for byte in range(256)}
    elif any(step.get("type") == "ByteLevel" for step in before):
        letters = {*byte_alphabet().values()}
    affixed = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    if letters and letters <= model["vocab"].keys() and not affixed:
        return spec
    ids = ids_of(spec)
    ids[LOST] = max(ids.values(), default=-1) + 1
    return {**spec, "model": {**model, "vocab": ids, "unk_token": LOST, "fuse_unk": False}}


def places_around(spec: Spec, source: str, pair: bool) -> list[Place]:
    """The tokens that the post-processor puts around a text or a pair."""
    import tokenizers

    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    tiny = json.dumps(make_spec(words, post_processor=spec.get("post_processor")))
    badly = f"{source} says badly what stands around a text"
    with library_errors(lambda error: UserError(f"{badly} ({reason(error)}); restore it.")):
        encoding = tokenizers.Tokenizer.from_str(tiny).encode("a", "a" if pair else None)
    return list(zip(encoding.sequence_ids, encoding.ids, encoding.type_ids, strict=True))


# ------------------------------------------------------------------------------------ encoding


def encodings(
    library: tokenizers.Tokenizer, texts: Sequence[str], method: str = "encode_batch"
) -> list[tokenizers.Encoding]:
    """The library's answers, within a budget; UserError where it panics or finds no id.

    By a batch even for one text: else the library keeps Python's lock.
    """

    def work() -> list[tokenizers.Encoding]:
        answers: list[tokenizers.Encoding] = getattr(library, method)(
            texts, add_special_tokens=False
        )
        return answers

    with library_errors(lambda error: refusal(texts, library, error)):
        answers = within_budget(work, count_characters(texts)) if texts else []
    lost = library.token_to_id(LOST)
    if lost is not None and any(lost in answer.ids for answer in answers):
        raise refusal(texts, library, LookupError("it has no token for what it does not know"))
    return answers


def count_characters(texts: Sequence[Any]) -> int:
    """Characters of all texts; what is not a text is refused later."""
    return sum(len(text) for text in texts if isinstance(text, str))


def refusal(texts: Sequence[Any], library: tokenizers.Tokenizer, error: BaseException) -> UserError:
    """Why the library could not encode these texts: the first one that is none or unknown."""
    for text in texts:
        if not isinstance(text, str):
            return UserError(
                f"A tokenizer encodes texts, and this is a {type(text).__name__}; give a str."
            )
        # a token that is read whole is none of its letters; "(?!)" matches nothing
        names = "|".join(
            re.escape(token.content)
            for token in library.get_added_tokens_decoder().values()
            if not (token.special and library.encode_special_tokens)
        )
        letters = re.sub(names or "(?!)", lambda name: BLANK * len(name[0]), text)
        for letter in dict.fromkeys(letters.replace(BLANK, "")):
            at = letters.index(letter)
            if 0xD800 <= ord(letter) < 0xE000:
                return UserError(
                    f"Character {at} of the text is half of a surrogate pair; remove it."
                )
            if not _knows(letter, library):
                return UserError(
                    "The tokenizer does not know the character "
                    f"{json.dumps(letter, ensure_ascii=False)} (number {at} "
                    f"of the text); remove it or train a tokenizer on text that has it."
                )
    return UserError(
        f"The tokenizer cannot encode this text ({reason(error)}); use another tokenizer."
    )


def _knows(letter: str, library: tokenizers.Tokenizer) -> bool:
    try:
        return library.token_to_id(LOST) not in library.encode(letter, add_special_tokens=False).ids
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return not isinstance(error, Exception)  # a panic is the library's fault, not the letter's


def within_budget(work: Callable[[], T], characters: int) -> T:
    """Do ``work`` on a text of so many characters; UserError when its budget is spent.

    The budget is of processor time, so that a busy machine ends nothing. The work itself cannot be
    ended: it goes on in a thread that does not keep the process alive.
    """
    if characters < UNWATCHED:
        return work()
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # the library's own panics are not Exceptions
            future.set_exception(error)

    abandoned: threading.Event = getattr(worker, "abandoned", threading.Event())
    threading.Thread(target=run, daemon=True).start()
    wall, processor = time.monotonic(), time.process_time()
    budget = SECONDS + characters / RATE
    while not future.done():
        with contextlib.suppress(TimeoutError):
            return future.result(TICK)
        spent = min(time.monotonic() - wall, time.process_time() - processor)
        if spent > budget or abandoned.is_set():
            raise UserError(
                f"This tokenizer needs over {budget:.0f} seconds for {characters:,} characters; "
                "give shorter texts, or another tokenizer."
            )
    return future.result()
