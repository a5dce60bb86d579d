"""Generation token by token, tokenizer comparison and vocabularies."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ...core.errors import UserError, need
from ...core.files import JsonObject
from ...scale import cost
from ...sight import labels
from ..asgi.replies import CancelCheck, HttpError, not_found
from .fields import (
    MAX_TEXT,
    BeamFields,
    CompareFields,
    GenerateFields,
    GrowthFields,
    PageFields,
    StepsFields,
    within,
)
from .models import Loaded, Models

TOP = 10
MOST_OPEN = 16  # tokenizers in memory; a training's checkpoints have one each


def generate(
    models: Models, fields: GenerateFields, check: CancelCheck
) -> Iterator[tuple[str, JsonObject]]:
    """Yields (event, data): ``start``, one ``token`` each, ``end``; the model is released between
    tokens."""
    from ...sight import answers

    settings = fields.settings.model_dump(exclude_unset=True)
    if fields.messages is not None:
        chat_ids, end_ids, saved = _conversation(models, fields, check)
        seed = secrets.randbits(31) if fields.seed is None else fields.seed
        fields = fields.model_copy(update={"ids": chat_ids, "seed": seed})
        settings = {"eos": end_ids} | saved | settings
    name, loaded, ids, options = _generation_input(models, fields, check)
    from ...core.generation import generate as start_generation

    with loaded.acquire(check):
        generation = start_generation(
            loaded.model,
            loaded.tokenizer,
            ids,
            seed=fields.seed,
            likely=TOP,
            **options,
            **settings,
        )
    yield "start", {"ids": ids, "seed": generation.seed, "model": name}
    steps = iter(generation)
    bytes_per_token = cost.cost(loaded.model.config).cache_per_token("fp32")
    row = generation.rows[0]
    while True:
        with loaded.acquire(check):
            start = time.perf_counter()
            step = next(steps, None)
            milliseconds = 1000 * (time.perf_counter() - start)
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
                "ms": milliseconds,
                "kv_bytes": bytes_per_token * (len(row.start) + len(row.tokens) - 1),
            },
        )
    yield "end", {"finish": row.finish, "text": row.text}


def _conversation(
    models: Models, fields: GenerateFields, check: CancelCheck
) -> tuple[list[int], list[int], dict[str, Any]]:
    """The ids that the model's chat template makes of messages, what ends an answer, and the settings
    that the model's folder names, as ``glassformer chat`` has them. UserError for a base model."""
    from ...formats.chat_template import ChatTemplate
    from ...formats.generation_config import saved_sampling

    entry = models[fields.model]
    source = entry.chat_template()
    if source is None:
        raise UserError(
            f"{entry.title} is a base model: it has no chat template, so it continues texts, as in "
            "the Playground; train it on conversations (docs/chat.md)."
        )
    tokenizer = entry.open(check).tokenizer
    template = ChatTemplate(source, tokenizer)
    saved = saved_sampling(entry.checkpoint.folder)
    ids = template.tokens([message.model_dump() for message in fields.messages or ()])
    context = entry.checkpoint.config.context
    need(
        len(ids) <= context,
        f"The chat would have {len(ids):,} tokens and the context is {context:,}; begin anew, or "
        "write a shorter message.",
    )
    end_ids = [*tokenizer.end_ids, *template.closing()]
    return ids, end_ids, {name: value for name, value in saved.items() if value is not None}


def beams(models: Models, fields: BeamFields, check: CancelCheck) -> JsonObject:
    """Beam search: hypotheses, best first."""
    from ...core.generation import beam
    from ...sight import answers

    _, loaded, ids, options = _generation_input(models, fields, check)
    options |= {"beams": fields.beams, "best": fields.beams}
    with loaded.acquire(check) as give_way:
        options["check"] = give_way
        (hypotheses,) = beam(loaded.model, loaded.tokenizer, [ids], **options)
    beam_list = []
    for hypothesis in hypotheses:
        spans = dict.fromkeys(range(len(hypothesis.tokens)), (1, 1))
        pieces = answers.tokens(loaded.tokenizer, hypothesis.tokens, spans)
        for piece, logprob in zip(pieces, hypothesis.logprobs, strict=True):
            piece["logprob"] = logprob
        beam_list.append(
            {
                "tokens": pieces,
                "score": hypothesis.score,
                "finish": hypothesis.finish,
                "text": hypothesis.text,
            }
        )
    return {"beams": beam_list}


def _generation_input(
    models: Models, fields: GrowthFields, check: CancelCheck
) -> tuple[str, Loaded, list[int], dict[str, Any]]:
    """Name, model, prompt or source ids, and options. Raises UserError for invalid input."""
    entry = models[fields.model]
    card = entry.card()["abilities"]
    message = (
        "This model does not continue a text: an encoder reads all of it at once; mask a "
        "word instead."
    )
    if not card["edits"]:
        message = "This model was opened by its own code; the page writes with our families alone."
    need(card["generate"], message)
    pair = card["source"]
    need(fields.start is None or pair, "start is a list of ids, for an encoder-decoder.")
    loaded = entry.open(check)
    text = fields.source if pair else fields.text
    with loaded.acquire(check):
        ids = loaded.encode(text if fields.ids is None else fields.ids, pair, False)
        edits = fields.parsed_edits()
    options = {"edits": edits, "start": fields.start, "max_new": fields.max_new}
    return entry.id, loaded, ids[0][0].tolist(), options


class Tokenizers:
    """Tokenizers of the models, and pretrained ones on this machine."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self._open: dict[str, Any] = {}

    def listing(self, fields: PageFields, check: CancelCheck) -> list[JsonObject]:
        """Lists tokenizers without opening them; a missing one comes with the command that
        downloads it.

        "vocab" of a model's tokenizer is None until it is opened.
        """
        from ...formats import pretrained

        rows: list[JsonObject] = []
        for id, entry in self.models.entries.items():
            if entry.has_tokenizer():
                tokenizer = self._open.get(f"{id} {entry.stamp}")
                vocab = tokenizer and tokenizer.size
                rows.append(_row(id, entry.title, vocab, True))
        for name, tokenizer_info in pretrained.KNOWN.items():
            if name in self.models.entries:  # a model of that name goes before it
                continue
            available = name in self._open or pretrained.place(name) is not None
            command = f"glassformer tokens --with {name} --text Hello"
            rows.append(
                _row(name, tokenizer_info.title, tokenizer_info.size, available)
                | ({} if available else {"command": command})
            )
        return rows

    def __getitem__(self, name: str) -> Any:
        from ...formats import pretrained

        key = name
        load: Callable[[], Any] = partial(pretrained.at_hand, name)
        message = f'There is no tokenizer "{name[:80]}" here; api/tokenizers lists what there is.'
        # a model of that name goes before it; a training's checkpoint is found too
        if name in self.models.entries or name not in pretrained.KNOWN:
            try:
                entry = self.models[name]
            except HttpError:
                raise not_found(message) from None
            key = f"{name} {entry.stamp}"
            load = entry.open_tokenizer
        tokenizer = self._open.get(key) or load()
        if tokenizer is None:
            raise not_found(message)
        for old in (key, *[*self._open][:-MOST_OPEN]):
            self._open.pop(old, None)
        self._open[key] = tokenizer
        return tokenizer

    def compare(self, fields: CompareFields, check: CancelCheck) -> list[JsonObject]:
        """Tokens of each tokenizer, or the error."""
        size = len(fields.text) * len(fields.tokenizers)
        message = (
            f"{len(fields.tokenizers)} tokenizers of {len(fields.text):,} characters are too much at "
            f"once; give {MAX_TEXT // len(fields.tokenizers):,} characters, or fewer tokenizers."
        )
        need(size <= MAX_TEXT, message)
        return [self._compare_tokenizer(name, fields.text) for name in fields.tokenizers]

    def _compare_tokenizer(self, name: str, text: str) -> JsonObject:
        from ...sight import answers
        from ...sight.tokens import comparison

        tokenizer = self[name]
        result: JsonObject = {
            "name": name,
            "vocab": tokenizer.size,
            "algorithm": comparison.algorithm(tokenizer),
            "tokens": [],
        }
        try:
            ids = tokenizer.encode(text)
            result["tokens"] = answers.tokens(
                tokenizer, ids, dict(enumerate(tokenizer.offsets(text)))
            )
            result["round_trip"] = tokenizer.decode(ids) == text
        except UserError as error:
            result["refused"] = str(error)
        return result

    def steps(self, fields: StepsFields, check: CancelCheck) -> JsonObject:
        """Segmentation steps of the word that contains token ``at``.

        "first" is the word's first token, "shown" the text of each piece. Raises UserError for an
        added token.
        """
        from ...sight.tokens.segmentation import Tracer

        tokenizer = self[fields.tokenizer]
        ids = tokenizer.encode(fields.text)
        offset = 0
        within("at", fields.at, 0, len(ids) - 1)
        tracer = Tracer(tokenizer, 2)
        for word in tokenizer.words(fields.text):
            segmentation = tracer(word)
            if list(segmentation.ids) != ids[offset : offset + len(segmentation.ids)]:
                break
            offset += len(segmentation.ids)
            if fields.at < offset:
                answer = segmentation.to_dict()
                pieces = {
                    *segmentation.start,
                    *segmentation.pieces,
                    *(piece for step in answer["steps"] for piece in _pieces(step)),
                }
                labels_by_piece = {piece: _piece_text(tokenizer, piece) for piece in pieces}
                return {**answer, "first": offset - len(segmentation.ids), "shown": labels_by_piece}
        raise UserError(
            "This token, or one before it, was added to the vocabulary and is matched as a "
            "whole, so it has no steps."
        )


def _row(name: str, title: str, vocab: int | None, available: bool) -> JsonObject:
    return {"name": name, "title": title, "vocab": vocab, "available": available}


def _pieces(step: JsonObject) -> list[str]:
    pieces = [*step.get("pieces", ()), step.get("left"), step.get("right"), step.get("piece")]
    return [piece for piece in pieces if piece is not None]


def _piece_text(tokenizer: Any, piece: str) -> str:
    """Text of a vocabulary entry; other pieces unchanged."""
    id = tokenizer.id(piece)
    return piece if id is None else labels.text(tokenizer, id)
