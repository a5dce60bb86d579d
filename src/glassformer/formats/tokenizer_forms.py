"""Every form of a tokenizer.json as the one that the core reads; what could harm is refused.

A published file may leave out what kind its model is, write merges as texts, give added tokens ids
that the library would not, or call a closing token ordinary.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from ..core import files
from ..core.errors import UserError
from ..core.tokenizer.tokenizer import EXTRA, Tokenizer, reason
from ..core.tokenizer.tokenizer_json import (
    USUAL,
    ByRank,
    Roles,
    Spec,
    ids_of,
    roles_of,
    steps,
)

DAMAGE = (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError)
MOST_GROWTH = 256  # characters made of one; the longest published replacement has 18
# a part that is named, but by a token that is missing, is an error for these alone
NEEDED = ("bos", "eos")


def from_json(
    text: str | bytes, roles: Roles | None = None, source: str = "The tokenizer"
) -> Tokenizer:
    """The tokenizer in a tokenizer.json's text; ``roles`` says who plays bos, eos, mask and so on,
    where known."""
    spec = files.json_object(text, source, "restore it or choose another file")
    if not isinstance(spec.get("model"), dict):
        raise UserError(
            f'{source} has no "model", so it is not a tokenizer.json; restore it or choose '
            "another file."
        )
    stored = spec.pop(EXTRA, None)
    return tokenizer_of(spec, roles or (stored if isinstance(stored, dict) else None), source)


def tokenizer_of(
    spec: Spec, roles: Roles | None = None, source: str = "The tokenizer"
) -> Tokenizer:
    """The tokenizer of a specification of any form; UserError for what is not one."""
    try:
        check_growth(spec)
        roles = roles_of(spec, roles or {})
        return Tokenizer(canonical(spec, roles), roles, source)
    except UserError:
        raise
    except DAMAGE as error:
        raise UserError(
            f"{source} lacks what a tokenizer.json must hold ({reason(error)}); restore the file."
        ) from None


def check_growth(spec: Spec) -> None:
    """ValueError for replacements that blow a text up, or a table of them that is cut short."""
    for component in ("normalizer", "decoder"):
        growth = 1.0
        for step in steps(spec.get(component)):
            if step.get("type") == "Precompiled":
                table = base64.b64decode(step["precompiled_charsmap"], validate=True)
                size = int.from_bytes(table[:4], "little")  # of the trie before the texts
                if not 0 < size <= len(table) - 4:
                    raise ValueError("its table of character replacements is cut short")
                growth *= max(1, *map(len, table[4 + size :].decode().split("\0")))
            elif step.get("type") == "Replace":
                old, size = step["pattern"].get("String"), len(step["content"])
                # a regular expression may match between any two characters
                growth *= 1 + size if old is None else max(1, size / max(1, len(old)))
        if growth > MOST_GROWTH:
            raise ValueError(
                f"the replacements of its {component} make over {MOST_GROWTH} characters of one"
            )


def canonical(spec: Spec, roles: Roles) -> Spec:
    """The specification with no truncation or padding, merges as pairs, and every role's token
    marked special."""
    model = {"type": _model_type(spec["model"]), **spec["model"]}
    listed = [token for token in spec.get("added_tokens") or [] if token["content"]]
    if model["type"] == "BPE":
        model["dropout"] = None  # a text has one way to be written
        _normalise_merges(model, '{"String": " "}' in json.dumps(spec.get("normalizer")))
    added = {token["content"]: dict(token) for token in listed}
    _fix_added_ids({name: int(token["id"]) for name, token in added.items()}, model)
    ids = ids_of({"added_tokens": listed, "model": model})
    for role, name in list(roles.items()):
        if name is not None and name not in ids:
            if role in NEEDED:
                raise UserError(
                    f'The vocabulary lacks "{name}", which is named as {role}; fix '
                    "tokenizer_config.json."
                )
            roles[role] = None
        elif name is not None:
            added.setdefault(name, added_token(ids[name], name))["special"] = True
    for name, token in added.items():
        # Phi-3 calls "</s>" ordinary: a text must not be able to write it
        token["special"] |= any(name in names for names in USUAL.values())
        # found as it is written, whatever the normalizer puts around a text
        token["normalized"] &= not token["special"]
    tokens = sorted(added.values(), key=lambda token: int(token["id"]))
    return {**spec, "truncation": None, "padding": None, "added_tokens": tokens, "model": model}


def _model_type(model: Spec) -> str:
    """BPE, Unigram, WordPiece or WordLevel; old files do not say and are told by their parts."""
    if "merges" in model or isinstance(model.get("vocab"), list):
        return "BPE" if "merges" in model else "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def _normalise_merges(model: Spec, replaces_spaces: bool) -> None:
    """Write merges as pairs, and give no-break spaces back to a vocabulary in which a tool made
    them plain spaces.

    The normalizer replaces every plain space, so an entry that holds one can mean nothing else.
    """
    vocabulary: dict[str, int] = model["vocab"]
    if isinstance(model["merges"], ByRank):
        return
    model["merges"] = [
        pair if type(pair) is list else _pair(pair, vocabulary) for pair in model["merges"]
    ]
    broken = {name: name.replace(" ", "\u00a0") for name in vocabulary if " " in name}
    if replaces_spaces and broken and vocabulary.keys().isdisjoint(broken.values()):
        model["vocab"] = {broken.get(name, name): id for name, id in vocabulary.items()}
        model["merges"] = [[broken.get(half, half) for half in pair] for pair in model["merges"]]


def _pair(merge: Any, vocabulary: dict[str, int]) -> list[str]:
    """Both halves of a merge; in the old one-text form a half may itself hold spaces."""
    if not isinstance(merge, str):
        return list(merge)
    halves = merge.split(" ")
    if len(halves) == 2:
        return halves
    cuts = ([merge[:at], merge[at + 1 :]] for at, letter in enumerate(merge) if letter == " ")
    return next((cut for cut in cuts if {*cut, "".join(cut)} <= vocabulary.keys()), halves)


def _fix_added_ids(stated: dict[str, int], model: Spec) -> None:
    """Give added tokens the ids that the file gives them: the library would count on from the
    model's entries.

    UserError where it cannot be done: among scored pieces, or for a token that the model knows by
    another id.
    """
    ids = ids_of({"model": model})
    new = {name: id for name, id in stated.items() if name not in ids}
    taken = {*ids.values()}.intersection(new.values())
    wrong = [
        name for name, id in stated.items() if ids.get(name, id) != id or id in taken or id < 0
    ]
    gaps = sorted(new.values()) != list(range(len(ids), len(ids) + len(new)))
    if gaps and isinstance(model["vocab"], list):
        wrong += new
    if wrong:
        raise UserError(
            f"The added token {ascii(wrong[0])[:100]} has an id that it cannot have in this "
            "vocabulary; fix its file."
        )
    if gaps:
        model["vocab"] = {**ids, **new}


# ---------------------------------------------------------------------------------------- parts


def added_token(id: int, content: str, special: bool = True) -> Spec:
    rules = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": content, **rules, "special": special}


def around(opens: int, closes: int, name: Callable[[int], str]) -> Spec:
    """BERT's post-processor: ``opens`` text ``closes``, and a second text is of segment 1."""
    spec = {"cls": [name(opens), opens], "sep": [name(closes), closes]}
    return {"type": "BertProcessing", **spec}
