"""One face for every tokenizer: text <-> ids, spans, vocabulary, special tokens, streaming."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files
from ..errors import UserError
from .stream import Stream, reader

if TYPE_CHECKING:
    import tokenizers

Spec = dict[str, Any]  # what a tokenizer.json holds
Roles = dict[str, str | None]  # "bos", "eos", "pad", "unk" -> the special token that plays the part

# Who plays which part when nothing says so: the names that published tokenizers use, likeliest first.
USUAL = {
    "bos": ("<s>", "<|begin_of_text|>", "<bos>", "[CLS]", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "<|end_of_text|>", "<eos>", "[SEP]", "<|endoftext|>"),
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
}
EXTRA = "glassformer"  # the one key that to_json may add to a tokenizer.json: parts played by unusual names


class Tokenizer:
    """Text <-> ids, by the `tokenizers` library.

    ids are 0..size-1; ``specials`` maps special tokens to ids; ``bos``, ``eos``, ``pad``, ``unk`` are ids or None.
    Special tokens in a text stay plain text unless ``special=True``. Raises UserError for what is no tokenizer.
    """

    def __init__(self, spec: Spec, roles: Roles | None = None, source: str = "The tokenizer") -> None:
        try:
            self.roles = _roles(spec, roles or {})
            self._spec = _canonical(spec, self.roles)
            self._read = reader(self._spec.get("decoder"))
            added = [token["content"] for token in self._spec["added_tokens"]]
            special = [token["content"] for token in self._spec["added_tokens"] if token["special"]]
            hidden = _without_specials(self._spec, special)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise UserError(
                f"{source} lacks what a tokenizer.json must hold ({_reason(error)}); restore the file."
            ) from None
        self._source = source
        self._library = _load(self._spec, source)
        self._library.encode_special_tokens = True
        self._plain = self._library if hidden is None else _load(hidden, source)
        self._plain.encode_special_tokens = True
        self._ids: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        self.size: int = max(self._ids.values(), default=-1) + 1
        if not self.size:
            raise UserError(f"{source} has no vocabulary; restore the file.")
        self._names: list[str] = [""] * self.size
        for name, id in self._ids.items():
            self._names[id] = name
        self._later: list[bytes | None] = [None] * self.size  # what each id stands for after the first place
        self._literal = {self._ids[name] for name in added}  # these stand for their own name
        self.specials = {name: self._ids[name] for name in special}
        self._hidden = frozenset(self.specials.values())
        self.bos, self.eos, self.pad, self.unk = (
            None if name is None else self._ids[name] for name in (self.roles[part] for part in USUAL)
        )

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
        self, texts: Sequence[str], *, bos: bool = False, eos: bool = False, special: bool = False
    ) -> list[list[int]]:
        """``encode`` of each text, in parallel."""
        before = [self._part("bos")] if bos else []
        after = [self._part("eos")] if eos else []
        library = self._special if special else self._plain
        texts = list(texts)
        try:
            encodings = library.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:
            raise self._cannot_encode(texts, library, error) from None
        if before or after:
            return [[*before, *encoding.ids, *after] for encoding in encodings]
        return [encoding.ids for encoding in encodings]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The span (start, end) in characters that each token of ``encode(text)`` stands for.

        Tokens that share a character, such as the bytes of an emoji, each have that character's span.
        """
        try:
            spans: list[tuple[int, int]] = self._plain.encode(text, add_special_tokens=False).offsets
        except Exception as error:
            raise self._cannot_encode([text], self._plain, error) from None
        return spans

    @functools.cached_property
    def _special(self) -> tokenizers.Tokenizer:
        """The library's tokenizer that reads special tokens out of the text."""
        return _load(self._spec, self._source)

    def _part(self, part: str) -> int:
        name = self.roles[part]
        if name is None:
            long = {"bos": "beginning", "eos": "end"}[part]
            raise UserError(f"This tokenizer has no {long}-of-text token; encode without {part}=True.")
        return self._ids[name]

    def _cannot_encode(self, texts: Sequence[Any], library: tokenizers.Tokenizer, error: Exception) -> UserError:
        for text in texts:
            if not isinstance(text, str):
                return UserError(f"A tokenizer encodes texts, and this is a {type(text).__name__}; give a str.")
            for at, letter in enumerate(text):
                if 0xD800 <= ord(letter) < 0xE000:
                    return UserError(f"Character {at} of the text is half of a surrogate pair; remove it.")
                try:
                    library.encode(letter, add_special_tokens=False)
                except Exception:
                    return UserError(
                        f"The tokenizer does not know the character {json.dumps(letter, ensure_ascii=False)} "
                        f"(number {at} of the text); remove it or train a tokenizer on text that has it."
                    )
        return UserError(f"The tokenizer cannot encode this text ({error}); use another tokenizer.")

    # ------------------------------------------------------------------------------ ids -> text

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of ids; special tokens show only with ``special=True``; a broken character is U+FFFD.

        Raises UserError for an id that is out of range.
        """
        shown = [id for id in ids if special or not self.hides(id)]
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
        piece = self._later[id] if 0 <= id < self.size else None
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
        whole = json.dumps([self._spec, self.roles], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(whole.encode()).hexdigest()

    def to_json(self) -> str:
        """The text of a tokenizer.json, with one more key where bos, eos, pad or unk have unusual names."""
        usual = _roles(self._spec, {}) == self.roles
        return json.dumps(self._spec if usual else {**self._spec, EXTRA: self.roles}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, roles: Roles | None = None, source: str = "The tokenizer") -> Tokenizer:
        """The tokenizer in a tokenizer.json's text; ``roles`` names bos, eos, pad and unk where known."""
        try:
            spec = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{source} is not valid JSON ({error}); restore or mend it.") from None
        if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
            raise UserError(f'{source} has no "model" and so is no tokenizer.json; restore it or choose another file.')
        stored = spec.pop(EXTRA, None)
        return cls(spec, roles or (stored if isinstance(stored, dict) else None), source)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json into a folder, as `transformers` opens them."""
        folder = Path(folder)
        parts = {f"{part}_token": name for part, name in self.roles.items()}
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **parts}
        files.write(folder / "tokenizer.json", json.dumps(self._spec, ensure_ascii=False))
        files.write(folder / "tokenizer_config.json", json.dumps(settings, indent=1, ensure_ascii=False) + "\n")


# ------------------------------------------------------------------------------- specifications


def added_token(id: int, content: str, special: bool = True) -> dict[str, Any]:
    """An entry of a tokenizer.json's "added_tokens"."""
    rules = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id, "content": content, **rules, "special": special}


def model_type(model: dict[str, Any]) -> str:
    """BPE, Unigram, WordPiece or WordLevel; old files do not say and are told by their parts."""
    if "type" in model:
        return str(model["type"])
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def ids_of(spec: Spec) -> dict[str, int]:
    """Every name in a tokenizer.json and its id."""
    vocabulary = spec["model"]["vocab"]
    pairs = ((piece, id) for id, (piece, _) in enumerate(vocabulary)) if isinstance(vocabulary, list) else vocabulary
    return dict(pairs) | {token["content"]: token["id"] for token in spec.get("added_tokens") or []}


def _roles(spec: Spec, told: Roles) -> Roles:
    """Who plays bos, eos, pad and unk: as told, else by the usual names among the special tokens."""
    special = {token["content"] for token in spec.get("added_tokens") or [] if token.get("special")}
    model = spec["model"]
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:
        unknown = model["vocab"][model["unk_id"]][0]
    if unknown is not None and unknown in ids_of(spec):
        special |= {unknown}
    roles: Roles = {part: next((name for name in names if name in special), None) for part, names in USUAL.items()}
    roles["unk"] = unknown if unknown in special else roles["unk"]
    return roles | {part: name for part, name in told.items() if part in USUAL}


def _canonical(spec: Spec, roles: Roles) -> Spec:
    """The specification with no truncation or padding, merges as pairs, and every role's token marked special."""
    model = {"type": model_type(spec["model"]), **spec["model"]}
    if model["type"] == "BPE":
        model["merges"] = [_pair(merge, model["vocab"]) for merge in model["merges"]]
        if '{"String": " "}' in json.dumps(spec.get("normalizer")):
            _mend_spaces(model)
    ids = ids_of(spec)
    added = {token["content"]: dict(token) for token in spec.get("added_tokens") or []}
    for name in added.keys() & {name for names in USUAL.values() for name in names}:
        added[name]["special"] = True  # Phi-3 calls "</s>" ordinary: a text must not be able to write it
    for part, name in list(roles.items()):
        if name is None:
            continue
        if name not in ids and part in ("pad", "unk"):
            roles[part] = None  # nothing needs them
            continue
        if name not in ids:
            raise UserError(f'The vocabulary lacks "{name}", which is named as {part}; mend tokenizer_config.json.')
        added.setdefault(name, added_token(ids[name], name))["special"] = True
    tokens = sorted(added.values(), key=lambda token: int(token["id"]))
    return {**spec, "truncation": None, "padding": None, "added_tokens": tokens, "model": model}


def _pair(merge: Any, vocabulary: dict[str, int]) -> list[str]:
    """Both halves of a merge; in the old one-text form a half may itself hold spaces."""
    if not isinstance(merge, str):
        return list(merge)
    halves = merge.split(" ")
    if len(halves) != 2:
        for cut in range(1, len(merge) - 1):
            left, right = merge[:cut], merge[cut + 1 :]
            if merge[cut] == " " and left in vocabulary and right in vocabulary and left + right in vocabulary:
                return [left, right]
    return halves


def _mend_spaces(model: dict[str, Any]) -> None:
    """Give no-break spaces back to a copy of a vocabulary in which a tool made them plain spaces.

    The normalizer replaces every plain space, so an entry that holds one can mean nothing else.
    """
    vocabulary: dict[str, int] = model["vocab"]
    broken = {name: name.replace(" ", "\u00a0") for name in vocabulary if " " in name}
    if broken and not set(broken.values()) & vocabulary.keys():
        model["vocab"] = {broken.get(name, name): id for name, id in vocabulary.items()}
        model["merges"] = [[broken.get(half, half) for half in pair] for pair in model["merges"]]


def _without_specials(spec: Spec, special: Iterable[str]) -> Spec | None:
    """A copy whose model can make no special token out of plain text, ids unchanged; None when it never could.

    The library takes special tokens out of its own search when told, but a Unigram model, say, would
    still find "</s>" among its pieces. So these pieces get names that no text matches.
    """
    model = spec["model"]
    kind, vocabulary = model["type"], model["vocab"]
    names = {name: f"\0 {name}" for name in special}
    if kind == "BPE":
        made = {left + right for left, right in model["merges"]}
        if not any(
            len(name) == 1 or name in made or (model.get("ignore_merges") and name in vocabulary) for name in names
        ):
            return None
        merges = [pair for pair in model["merges"] if not {pair[0], pair[1], pair[0] + pair[1]} & names.keys()]
        model = {**model, "merges": merges}
    if kind == "Unigram":
        inside = {piece for piece, _ in vocabulary}
        changed = [[names.get(piece, piece), score] for piece, score in vocabulary]
        model = {**model, "vocab": changed}
    else:
        inside = set(vocabulary)
        model = {**model, "vocab": {names.get(name, name): id for name, id in vocabulary.items()}}
        model["unk_token"] = names.get(str(model.get("unk_token")), model.get("unk_token"))
    if not inside & names.keys():
        return None
    added = [t for t in spec["added_tokens"] if t["content"] not in names or t["content"] not in inside]
    return {**spec, "added_tokens": added, "model": model, "post_processor": None}


def _load(spec: Spec, source: str) -> tokenizers.Tokenizer:
    """The library's tokenizer; it adds nothing around a text and trims no spans."""
    import tokenizers

    try:
        library = tokenizers.Tokenizer.from_str(json.dumps({**spec, "post_processor": None}, ensure_ascii=False))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library's own panics are no Exceptions
        raise UserError(f"{source} holds no tokenizer that can be used ({_reason(error)}); restore it.") from None
    return library


def _reason(error: BaseException) -> str:
    first = (str(error) or type(error).__name__).splitlines()[0]
    return first if len(first) <= 200 else first[:200] + "..."
