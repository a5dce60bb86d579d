"""Tokens for the page: generation a token at a time, one text under several tokenizers,
vocabularies as bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import cost
from ..errors import UserError, need
from ..tokenizer import labels
from .models import Check, Loaded, Missing, Models
from .runs import MOST_TEXT, edit_lines, one_edit, one_text, read

SETTINGS = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
}
TOP = 10
MOST_NEW = 4096
MOST_BEAMS = 8


def generate(
    models: Models, asked: dict[str, Any], check: Check
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(event, data) for the page: ``start``, a ``token`` each, ``end``; the model is let go between
    tokens."""
    from ..inspection import answers

    reading = Reading.of(models, asked, check, 64)
    settings = _settings(asked.get("settings") or {})
    seed = asked.get("seed")
    need(
        seed is None or (type(seed) is int and 0 <= seed < 2**63),
        "seed is a whole number from 0 on.",
    )
    loaded = reading.loaded
    from ..generation import generate as begin

    with loaded.held(check):
        ids = reading.ids
        made = begin(
            loaded.model, loaded.tokenizer, ids, seed=seed, likely=TOP, **reading.how, **settings
        )
    yield "start", {"ids": ids, "seed": made.seed, "model": reading.name}
    steps, kept = iter(made), cost.cost(loaded.model.config).cache_per_token("fp32")
    row = made.rows[0]
    while True:
        with loaded.held(check):
            begun = time.perf_counter()
            step = next(steps, None)
            spent = 1000 * (time.perf_counter() - begun)
        if step is None:
            break
        (token,) = answers.tokens(loaded.tokenizer, [step.token], {0: (1, 1)})
        yield (
            "token",
            {
                "id": step.token,
                "bytes": token["bytes"],
                "special": token["special"],
                "text": step.text,
                "logprob": step.logprob,
                "top": [{"id": id, "logprob": logprob} for id, logprob in step.likely],
                "ms": spent,
                "kv_bytes": kept * (len(row.start) + len(row.tokens) - 1),
            },
        )
    yield "end", {"finish": row.finish, "text": row.text}


def beams(models: Models, asked: dict[str, Any], check: Check) -> dict[str, Any]:
    """{beams, ...as for generate} -> the best continuations that a beam search finds, the best
    first."""
    from ..generation import beam
    from ..inspection import answers

    count = asked.get("beams", 4)
    need(type(count) is int and 1 <= count <= MOST_BEAMS, f"beams is from 1 to {MOST_BEAMS}.")
    reading = Reading.of(models, asked, check, 32)
    loaded = reading.loaded
    with loaded.held(check):
        (found,) = beam(
            loaded.model,
            loaded.tokenizer,
            [reading.ids],
            beams=count,
            best=count,
            check=check,
            **reading.how,
        )
    told = []
    for one in found:
        pieces = answers.tokens(
            loaded.tokenizer, one.tokens, dict.fromkeys(range(len(one.tokens)), (1, 1))
        )
        tokens = [
            {**piece, "logprob": logprob}
            for piece, logprob in zip(pieces, one.logprobs, strict=True)
        ]
        told.append({"tokens": tokens, "score": one.score, "finish": one.finish, "text": one.text})
    return {"beams": told}


@dataclass(frozen=True)
class Reading:
    """What a continuation reads: the model, the ids of its prompt or source, and what else
    generating is told."""

    name: str
    loaded: Loaded
    ids: list[int]
    how: dict[str, Any]

    @classmethod
    def of(cls, models: Models, asked: dict[str, Any], check: Check, most: int) -> Reading:
        """From {model, text or ids, source?, start?, max_new?, edits?}; ``most`` new tokens where
        that is not said.

        ``start`` are the ids that an encoder-decoder's target begins with. Raises UserError for
        what cannot be read.
        """
        entry = models[one_text(asked, "model", 200) or ""]
        card = entry.card()["abilities"]
        alone = (
            "This model does not continue a text: an encoder reads all of it at once; mask a "
            "word instead."
        )
        need(card["generate"], alone)
        new, start = asked.get("max_new", most), asked.get("start")
        need(type(new) is int and 1 <= new <= MOST_NEW, f"max_new is from 1 to {MOST_NEW}.")
        good = (
            isinstance(start, list)
            and 0 < len(start) <= MOST_NEW
            and all(type(one) is int for one in start)
        )
        need(
            start is None or (good and card["source"]),
            "start is a list of ids, for an encoder-decoder.",
        )
        loaded, pair = entry.open(check), card["source"]
        text = asked.get("ids", one_text(asked, "source" if pair else "text"))
        with loaded.held(check):
            ids = read(loaded, text, pair, False)[0][0].tolist()
            edits = [one_edit(line) for line in edit_lines(asked)]
        return cls(entry.id, loaded, ids, {"max_new": new, "edits": edits, "start": start})


def _settings(given: Any) -> dict[str, Any]:
    """The settings of sampling that are known; None leaves one out."""
    need(isinstance(given, dict), "settings are a table of names and numbers.")
    odd = next((name for name in given if name not in SETTINGS), None)
    need(odd is None, f'There is no setting "{str(odd)[:40]}"; there are: {", ".join(SETTINGS)}.')
    made = {}
    for name, value in given.items():
        if value is None:
            continue
        need(isinstance(value, int | float) and not isinstance(value, bool), f"{name} is a number.")
        need(SETTINGS[name] is float or value == int(value), f"{name} is a whole number.")
        made[name] = SETTINGS[name](value)
    return made


class Tokenizers:
    """Those of the models, and those with a name that lie on this machine."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self._open: dict[str, Any] = {}
        self._tracers: dict[int, Any] = {}  # by the tokenizer that each follows

    def listing(self) -> list[dict[str, Any]]:
        """What there is, and of what there is not the command that gets it; nothing is opened for
        that.

        "vocab" is None of a model's own until it is opened.
        """
        from ..tokenizer import pretrained

        told: list[dict[str, Any]] = []
        for id, entry in self.models.entries.items():
            if entry.has_tokenizer():
                one = self._open.get(f"{id} {entry.stamp}")
                told.append(
                    {"name": id, "title": entry.title, "vocab": one and one.size, "available": True}
                )
        for name, known in pretrained.KNOWN.items():
            if name in self.models.entries:  # a model of that name goes before it
                continue
            here = name in self._open or pretrained.place(name) is not None
            row = {"name": name, "title": known.what, "vocab": known.size, "available": here}
            told.append(
                row
                if here
                else {**row, "command": f"glassformer tokens --with {name} --text Hello"}
            )
        return told

    def __getitem__(self, name: str) -> Any:
        found = self._of(name)
        if found is None:
            raise Missing(
                f'There is no tokenizer "{name[:80]}" here; api/tokenizers lists what there is.'
            )
        return found

    def _of(self, name: str) -> Any:
        from ..tokenizer import pretrained

        # a training's checkpoint is found too
        if name in self.models.entries or name not in pretrained.KNOWN:
            try:
                entry = self.models[name]
            except Missing:
                return None
            key = f"{name} {entry.stamp}"
            if key not in self._open:
                self._open[key] = entry.tokenizer()
            return self._open[key]
        if name not in self._open:
            self._open[name] = pretrained.at_hand(name)
        return self._open[name]

    def compare(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """{text, tokenizers} -> for each what it makes of the text, or why it makes nothing of
        it."""
        text = one_text(asked, "text", MOST_TEXT)
        need(text is not None, "There is no text; give one.")
        names = asked.get("tokenizers")
        good = (
            isinstance(names, list)
            and 0 < len(names) <= 12
            and all(isinstance(name, str) for name in names)
        )
        need(good, "tokenizers are a list of names, 12 at most.")
        return [self._one(name, text or "") for name in names or []]

    def _one(self, name: str, text: str) -> dict[str, Any]:
        from ..inspection import answers
        from ..inspection.tokens import compare

        one = self[name]
        told: dict[str, Any] = {
            "name": name,
            "vocab": one.size,
            "algorithm": compare.algorithm(one),
            "tokens": [],
        }
        try:
            ids = one.encode(text)
            told["tokens"] = answers.tokens(one, ids, dict(enumerate(one.offsets(text))))
            told["round_trip"] = one.decode(ids) == text
        except UserError as error:
            told["refused"] = str(error)
        return told

    def steps(self, asked: dict[str, Any]) -> dict[str, Any]:
        """{tokenizer, text, at} -> how the word that token ``at`` stands in came to its pieces,
        step by step.

        "first" is the word's first token, "shown" says each piece as text. Raises UserError for an
        added token.
        """
        from ..inspection.tokens.segmentation import Tracer

        text, at = one_text(asked, "text", MOST_TEXT) or "", asked.get("at")
        one = self[one_text(asked, "tokenizer", 200) or ""]
        ids, seen = one.encode(text), 0
        if type(at) is not int or not 0 <= at < len(ids):
            raise UserError(f"at is the place of a token, from 0 to {len(ids) - 1}.")
        tracer = self._tracers.setdefault(id(one), Tracer(one, 2))
        for word in tracer.words(text):
            made = tracer(word)
            if list(made.ids) != ids[seen : seen + len(made.ids)]:
                break
            seen += len(made.ids)
            if at < seen:
                told = made.to_dict()
                pieces = {
                    *made.start,
                    *made.pieces,
                    *(piece for step in told["steps"] for piece in _pieces(step)),
                }
                shown = {piece: _shown(one, piece) for piece in pieces}
                return {**told, "first": seen - len(made.ids), "shown": shown}
        raise UserError(
            "This token, or one before it, was added to the vocabulary and is found whole: it "
            "has no steps."
        )

    def vocabulary(self, name: str) -> bytes:
        """Every entry of a tokenizer's."""
        from ..inspection import answers

        return answers.vocabulary(self[name])


def _pieces(step: dict[str, Any]) -> list[str]:
    """The pieces that a step names."""
    some = [*step.get("pieces", ()), step.get("left"), step.get("right"), step.get("piece")]
    return [piece for piece in some if piece is not None]


def _shown(tokenizer: Any, piece: str) -> str:
    """A piece as text; one that is no entry of the vocabulary as it is written."""
    found = tokenizer.id(piece)
    return piece if found is None else labels.text(tokenizer, found)
