"""What a tokenizer.json holds: who plays which part, old forms made new, and what plain text must
not reach."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..errors import UserError

if TYPE_CHECKING:
    import tokenizers

Text = TypeVar("Text", bytes, str)
Spec = dict[str, Any]  # what a tokenizer.json holds
# "bos", "eos", ... (the keys of USUAL) -> the special token that plays the part
Roles = dict[str, str | None]

# Who plays which part when nothing says so: the names that published tokenizers use, likeliest
# first.
USUAL = {
    "bos": ("<s>", "<|begin_of_text|>", "<bos>", "[CLS]", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "<|end_of_text|>", "<eos>", "[SEP]", "<|endoftext|>"),
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
MOST_IDS = 1 << 22  # lists are as long as the highest id says
# a part that is named, but by a token that is missing, is an error for these alone
NEEDED = ("bos", "eos")


class ByRank(dict[str, int]):
    """In place of a list of merges: tiktoken's entries and ranks, whose rule says the merges
    (``with_merges``)."""


def added_token(id: int, content: str, special: bool = True) -> dict[str, Any]:
    """An entry of a tokenizer.json's "added_tokens"."""
    rules = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id, "content": content, **rules, "special": special}


def make_spec(model: Spec, **components: Any) -> Spec:
    """A tokenizer.json of this model and these components; it has no others."""
    empty: Spec = {
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        **empty,
        **components,
        "model": model,
    }


def bpe(vocabulary: dict[str, int], merges: Any, **settings: Any) -> Spec:
    """A BPE model, with the settings that are not the usual ones."""
    none = dict.fromkeys(
        ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    )
    usual = {**none, **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)}
    return {"type": "BPE", **usual, **settings, "vocab": vocabulary, "merges": merges}


def split(pattern: str, behavior: str = "Isolated", invert: bool = False) -> Spec:
    """The step of a pre-tokenizer that cuts a text by a regular expression."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def letters_as_bytes(words: bool = False) -> Spec:
    """The step that writes bytes as GPT-2's letters; ``words``: and splits into words as GPT-2."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": words,
    }


@contextlib.contextmanager
def library_errors(refusal: Callable[[BaseException], UserError]) -> Iterator[None]:
    """Raises the library's errors, even its panics, which are not Exceptions, as this UserError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, UserError):
        raise
    except BaseException as error:
        raise refusal(error) from None


def flag(settings: dict[str, Any], key: str, usual: Any) -> Any:
    """A setting that is true or false, or else the usual one; UserError for what is neither
    ("false" is a text)."""
    value = settings.get(key)
    if value is not None and not isinstance(value, bool):
        raise UserError(f'"{key}" is {ascii(value)[:100]}; write true or false.')
    return usual if value is None else value


def model_type(model: dict[str, Any]) -> str:
    """BPE, Unigram, WordPiece or WordLevel; old files do not say and are told by their parts."""
    if "type" in model:
        return str(model["type"])
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def steps(component: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, in order."""
    if isinstance(component, dict):
        inner = [
            component[key]
            for key in ("normalizers", "pretokenizers", "decoders")
            if key in component
        ]
        if not inner:
            yield component
        for step in inner[0] if inner else ():
            yield from steps(step)


def ids_of(spec: Spec) -> dict[str, int]:
    """Every name in a tokenizer.json and its id."""
    vocabulary = spec["model"]["vocab"]
    pairs = (
        ((piece, id) for id, (piece, _) in enumerate(vocabulary))
        if isinstance(vocabulary, list)
        else vocabulary
    )
    return dict(pairs) | {token["content"]: token["id"] for token in spec.get("added_tokens") or []}


def roles_of(spec: Spec, stated_roles: Roles) -> Roles:
    """Token of each role: as stated, else by the usual names among the special tokens."""
    special = {token["content"] for token in spec.get("added_tokens") or [] if token.get("special")}
    model = spec["model"]
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:
        unknown = model["vocab"][model["unk_id"]][0]
    if unknown is not None and unknown in ids_of(spec):
        special |= {unknown}
    roles: Roles = {
        role: next((name for name in names if name in special), None)
        for role, names in USUAL.items()
    }
    roles["unk"] = unknown if unknown in special else roles["unk"]
    return roles | {role: name for role, name in stated_roles.items() if role in USUAL}


def canonical(spec: Spec, roles: Roles) -> Spec:
    """The specification with no truncation or padding, merges as pairs, and every role's token
    marked special."""
    model = {"type": model_type(spec["model"]), **spec["model"]}
    if model["type"] == "BPE":
        model["dropout"] = None  # a text has one way to be written
        if not isinstance(pairs := model["merges"], ByRank):
            model["merges"] = [
                pair if type(pair) is list else _pair(pair, model["vocab"]) for pair in pairs
            ]
        if '{"String": " "}' in json.dumps(spec.get("normalizer")):
            _restore_no_break_spaces(model)
    _fix_added_ids(spec, model)
    ids = ids_of({**spec, "model": model})
    added = {token["content"]: dict(token) for token in spec.get("added_tokens") or []}
    for name in added.keys() & {name for names in USUAL.values() for name in names}:
        # Phi-3 calls "</s>" ordinary: a text must not be able to write it
        added[name]["special"] = True
    for role, name in list(roles.items()):
        if name is None:
            continue
        if name not in ids and role not in NEEDED:
            roles[role] = None
            continue
        if name not in ids:
            raise UserError(
                f'The vocabulary lacks "{name}", which is named as {role}; fix '
                "tokenizer_config.json."
            )
        added.setdefault(name, added_token(ids[name], name))["special"] = True
    for token in added.values():
        if token["special"]:
            # found as it is written, whatever the normalizer puts around a text
            token["normalized"] = False
    tokens = sorted(added.values(), key=lambda token: int(token["id"]))
    return {**spec, "truncation": None, "padding": None, "added_tokens": tokens, "model": model}


def with_merges(spec: Spec) -> Spec:
    """The specification with its merges as a list."""
    model = spec["model"]
    ranks = model.get("merges")
    if not isinstance(ranks, ByRank):
        return spec
    return {**spec, "model": {**model, "merges": [list(pair) for pair in merges_by_rank(ranks)]}}


def merges_by_rank(ranks: Mapping[Text, int]) -> list[tuple[Text, Text]]:
    """The merges, first things first, of a BPE known only by its tokens' ranks.

    tiktoken and SentencePiece join two neighbours whenever the joined token exists, the lowest rank
    first. That is ordinary BPE with every cut of every token into two tokens as a merge: linear in
    the letters.
    """
    merges: list[tuple[Text, Text]] = []
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        cuts = []
        for cut in range(1, len(token)):
            prefix_rank = ranks.get(token[:cut])
            if prefix_rank is not None and (right := ranks.get(token[cut:])) is not None:
                cuts.append((prefix_rank, right, cut))
        if len(cuts) > 1:
            cuts.sort()
        merges += [(token[:cut], token[cut:]) for _, _, cut in cuts]
    return merges


def _fix_added_ids(spec: Spec, model: dict[str, Any]) -> None:
    """Give added tokens the ids that the file gives them: the library would count on from the
    model's entries.

    UserError where it cannot be done: among scored pieces, or for a token that the model knows by
    another id.
    """
    vocabulary = model["vocab"]
    listed = isinstance(vocabulary, list)
    known_ids = {piece: id for id, (piece, _) in enumerate(vocabulary)} if listed else vocabulary
    stated_ids = {
        token["content"]: int(token["id"])
        for token in spec.get("added_tokens") or []
        if token["content"]
    }
    new = {name: id for name, id in stated_ids.items() if name not in known_ids}
    taken = {*known_ids.values()} & {*new.values()} if new else set()
    wrong = next(
        (
            name
            for name, id in stated_ids.items()
            if known_ids.get(name, id) != id or id in taken or id < 0
        ),
        None,
    )
    gaps = sorted(new.values()) != list(range(len(known_ids), len(known_ids) + len(new)))
    if wrong is not None or (gaps and listed):
        name = ascii(wrong if wrong is not None else next(iter(new)))[:100]
        raise UserError(
            f"The added token {name} has an id that it cannot have in this "
            "vocabulary; fix its file."
        )
    if gaps:
        model["vocab"] = {**vocabulary, **new}


def _pair(merge: Any, vocabulary: dict[str, int]) -> list[str]:
    """Both halves of a merge; in the old one-text form a half may itself hold spaces."""
    if not isinstance(merge, str):
        return list(merge)
    halves = merge.split(" ")
    if len(halves) != 2:
        for cut in range(1, len(merge) - 1):
            prefix, right = merge[:cut], merge[cut + 1 :]
            if (
                merge[cut] == " "
                and prefix in vocabulary
                and right in vocabulary
                and prefix + right in vocabulary
            ):
                return [prefix, right]
    return halves


def _restore_no_break_spaces(model: dict[str, Any]) -> None:
    """Give no-break spaces back to a copy of a vocabulary in which a tool made them plain spaces.

    The normalizer replaces every plain space, so an entry that holds one can mean nothing else.
    """
    vocabulary: dict[str, int] = model["vocab"]
    broken = {name: name.replace(" ", "\u00a0") for name in vocabulary if " " in name}
    if broken and not set(broken.values()) & vocabulary.keys():
        model["vocab"] = {broken.get(name, name): id for name, id in vocabulary.items()}
        model["merges"] = [[broken.get(half, half) for half in pair] for pair in model["merges"]]


def without_specials(spec: Spec) -> Spec:
    """A copy whose model can make no special token out of plain text, ids unchanged.

    The library takes special tokens out of its own search when told, but a Unigram model, say,
    would still find "</s>" among its pieces. So these pieces get names that no text matches.
    """
    model = dict(spec["model"])
    vocabulary = model["vocab"]
    special = {token["content"] for token in spec["added_tokens"] if token["special"]}
    names = {name: f"\0 {name}" for name in special & ids_of({"model": model}).keys() - {""}}
    if model["type"] == "BPE":
        model["merges"] = [
            pair for pair in model["merges"] if names.keys().isdisjoint((*pair, pair[0] + pair[1]))
        ]
    if isinstance(vocabulary, list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    else:
        model["vocab"] = {names.get(name, name): id for name, id in vocabulary.items()}
        model["unk_token"] = names.get(str(model.get("unk_token")), model.get("unk_token"))
    added = [token for token in spec["added_tokens"] if token["content"] not in names]
    return {**spec, "added_tokens": added, "model": model}


# which text, or None for a token of its own, its id, its segment
Place: TypeAlias = tuple[int | None, int, int]


def between(opens: int, closes: int, doubled: bool = False) -> tuple[list[Place], list[Place]]:
    """Special tokens around a text and around two: BERT's; or RoBERTa's, ``doubled`` between two
    and all of segment 0."""
    end: Place = (None, closes, 0)
    single: list[Place] = [(None, opens, 0), (0, 0, 0), end]
    return single, [*single, end, (1, 0, 0), end] if doubled else [
        *single,
        (1, 0, 1),
        (None, closes, 1),
    ]


def framed_by(
    single: Sequence[Place], double: Sequence[Place], names: Sequence[str] | dict[int, str]
) -> Spec:
    """A post-processor that puts the same around a text and around two as these places do."""
    special_tokens = {
        names[id]: {"id": names[id], "ids": [id], "tokens": [names[id]]}
        for text, id, _ in double
        if text is None
    }

    def template(places: Sequence[Place]) -> list[Spec]:
        kinds = (
            ("SpecialToken", names[id]) if text is None else ("Sequence", "AB"[text])
            for text, id, _ in places
        )
        return [
            {kind: {"id": n, "type_id": place[2]}}
            for (kind, n), place in zip(kinds, places, strict=True)
        ]

    templates = {"single": template(single), "pair": template(double)}
    return {"type": "TemplateProcessing", **templates, "special_tokens": special_tokens}


def frame(spec: Spec, source: str, pair: bool) -> list[Place]:
    """Result of the post-processor for a text or a pair: (which text, or None for a token of its
    own, id, segment)."""
    import tokenizers

    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    tiny = json.dumps(make_spec(words, post_processor=spec.get("post_processor")))
    badly = f"{source} says badly what stands around a text"
    with library_errors(lambda error: UserError(f"{badly} ({reason(error)}); restore it.")):
        encoding = tokenizers.Tokenizer.from_str(tiny).encode("a", "a" if pair else None)
    return list(zip(encoding.sequence_ids, encoding.ids, encoding.type_ids, strict=True))


def load(spec: Spec, source: str) -> tokenizers.Tokenizer:
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
