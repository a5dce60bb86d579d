"""The parts of a tokenizer.json: special tokens, ids that plain text must not reach, and the bytes
that a token's name stands for, by its "decoder"."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UserError, library_errors
from .detokenizer import ByteDecoder, byte_level

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


class ByRank(dict[str, int]):
    """Tiktoken's entries and ranks in place of merges, which follow from them (``with_merges``)."""


# ------------------------------------------------------------------------------------ written


def make_spec(model: Spec, **components: Any) -> Spec:
    """A tokenizer.json of this model and these components; it has no others."""
    none = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    empty: Spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        **none,
    }
    return {**empty, **components, "model": model}


# --------------------------------------------------------------------------------------- read


def steps(component: Any) -> Iterator[Spec]:
    """The steps of a normalizer, pre-tokenizer or decoder, in order."""
    if isinstance(component, dict):
        names = ("normalizers", "pretokenizers", "decoders")
        inner = next((component[name] for name in names if name in component), None)
        if inner is None:
            yield component
        for step in inner or ():
            yield from steps(step)


def ids_of(spec: Spec) -> dict[str, int]:
    vocabulary = spec["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {piece: id for id, (piece, _) in enumerate(vocabulary)}
    added = spec.get("added_tokens") or []
    return dict(vocabulary) | {token["content"]: token["id"] for token in added}


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


def with_merges(spec: Spec) -> Spec:
    ranks = spec["model"].get("merges")
    if not isinstance(ranks, ByRank):
        return spec
    pairs = [list(pair) for pair in merges_by_rank(ranks)]
    return {**spec, "model": {**spec["model"], "merges": pairs}}


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


def without_specials(spec: Spec) -> Spec:
    """A copy whose model can make no special token out of plain text, ids unchanged.

    The library takes special tokens out of its own search when told, but a Unigram model, say,
    would still find "</s>" among its pieces. So these pieces get names that no text matches.
    """
    model = dict(spec["model"])
    vocabulary = model["vocab"]
    special = {token["content"] for token in spec["added_tokens"] if token["special"]}
    names = {name: f"\0 {name}" for name in special & ids_of({"model": model}).keys()}
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


# --------------------------------------------------------------------------------- decoded

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
KINDS = {"Replace", "ByteFallback", "ByteLevel", "Fuse", "Strip", "Metaspace", "WordPiece"}
AHEAD = "\0"  # stands before a token that is not the first of a text


def byte_decoder(spec: Spec, library: Callable[[], tokenizers.decoders.Decoder]) -> ByteDecoder:
    """The rule by which token names become bytes.

    The library decodes each token alone, so that a stream and a whole text agree; what is no
    character by itself is read here. ``library`` opens its decoder, which a byte-level vocabulary
    does not need. Raises UserError for a decoder of another kind.
    """
    chain = list(steps(spec.get("decoder")))
    kinds = {step["type"] for step in chain}
    for kind in kinds - KINDS:
        raise UserError(
            f'The tokenizer decodes by "{kind}", which is not supported; use another tokenizer.'
        )
    # found whole in a text, and written so, where nothing puts spaces between tokens
    added = set[str]()
    if chain and kinds != {"WordPiece"}:
        added = {token["content"] for token in spec["added_tokens"]}
    if kinds == {"ByteLevel"}:
        return partial(byte_level, added=frozenset(added))
    if not chain:
        return lambda name, first: (name if first else " " + name).encode()
    decoder = library()
    replaced = [
        (step["pattern"]["String"].encode(), step["content"].encode())
        for step in chain
        if "String" in step.get("pattern", ())
    ]

    def decode_texts(*names: str) -> str:
        cannot = f"The tokenizer cannot decode {ascii(names[-1])[:50]}"
        with library_errors(lambda error: UserError(f"{cannot} ({error}); use another tokenizer.")):
            return decoder.decode([*names])

    def decode(name: str, first: bool) -> bytes:
        if name in added:
            return name.encode()
        text = (
            decode_texts(name) if first else decode_texts(AHEAD, name)[len(decode_texts(AHEAD)) :]
        )
        byte = BYTE_TOKEN.fullmatch(name)
        if "\ufffd" in text and "ByteFallback" in kinds and byte:
            return bytes([int(byte[1], 16)])
        if "\ufffd" in text and "ByteLevel" in kinds:
            raw = byte_level(name, first)
            for old, new in replaced:
                raw = raw.replace(old, new)
            return raw
        return text.encode()

    return decode
