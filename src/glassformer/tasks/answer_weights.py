"""Conversations as the texts that a model learns from, with a weight for each token: 1 where the
assistant writes, its end included, else 0.

    rendered       <|im_start|>user⏎Hi<|im_end|>⏎<|im_start|>assistant⏎Hello!<|im_end|>⏎
    prompt         <|im_start|>user⏎Hi<|im_end|>⏎<|im_start|>assistant⏎
    weights        0                                                 1     1 1         0

An answer is what stands behind the text that generation would begin with: the messages before it
and what opens an answer. A template may write earlier turns anew once others follow (Qwen3 drops
their thoughts). Then one text cannot show every answer as the model would write it, and the
conversation becomes several texts, each with the answers that are still whole in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ..core.errors import UserError, need
from ..core.tokenizer.tokenizer import Tokenizer
from ..core.training.batches import Array
from ..formats.chat_template import CLOSE, OPEN, ChatTemplate, Messages, Tools
from .encoded import Encoded, Fit, Side
from .example_table import Conversation, Example, ExampleTable


@dataclass(frozen=True)
class Answer:
    """The place of an answer in a rendered text; one of ``weight`` 0 is only read."""

    start: int
    end: int
    weight: int = 1


@dataclass(frozen=True)
class Rendered:
    """A text of a conversation and its answers; ``mark`` breaks names of special tokens in it."""

    text: str
    answers: tuple[Answer, ...]
    mark: str


@dataclass(frozen=True)
class Weighted:
    """The ids of a text and their weights, up to the last one that counts."""

    ids: Array
    weights: Array

    @property
    def targets(self) -> Array:
        """The token that each token is followed by, or -1 where it does not count."""
        return np.where(self.weights[1:], self.ids[1:], -1)


DocumentsOf: TypeAlias = Callable[[list[list[Weighted]]], list[list[Weighted]]]
"""A function from the texts of each conversation of an example to documents side by side."""


def render(template: ChatTemplate, conversation: Conversation) -> list[Rendered]:
    """The texts that teach a conversation's answers. Raises UserError where the template refuses it
    or leaves a part of it out."""
    mark, messages, tools = template.broken_up(conversation.messages, conversation.tools)
    weights = [int(message.pop("weight", 1)) for message in messages]
    if template.marks_answers:
        texts = [_marked(template, messages, tools, weights, conversation.first, mark)]
    else:
        texts = _by_prefixes(template, messages, tools, weights, conversation.first, mark)
    _check(template, messages, tools, texts[-1].text)
    return [text for text in texts if any(answer.weight for answer in text.answers)]


def _marked(
    template: ChatTemplate,
    messages: Messages,
    tools: Tools,
    weights: Sequence[int],
    first: int,
    mark: str,
) -> Rendered:
    """The text of a template that marks what an assistant writes itself."""
    opening, *pieces = template.marked(messages, tools=tools).split(OPEN)
    text, answers = opening, list[Answer]()
    for piece in pieces:
        inside, _, after = piece.partition(CLOSE)
        answers.append(Answer(len(text), len(text) + len(inside)))
        text += inside + after
    places = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    if len(places) == len(answers):
        answers = [
            replace(answer, weight=weights[at] if at >= first else 0)
            for at, answer in zip(places, answers, strict=True)
        ]
    return Rendered(text, tuple(answers), mark)


def _by_prefixes(
    template: ChatTemplate,
    messages: Messages,
    tools: Tools,
    weights: Sequence[int],
    first: int,
    mark: str,
) -> list[Rendered]:
    """The texts of a template without marks: each answer behind the prompt that asks for it."""
    texts = list[Rendered]()
    for at in range(first, len(messages)):
        if messages[at]["role"] != "assistant":
            continue
        prompt = template.render(messages[:at], tools=tools)
        text = template.render(messages[: at + 1], answering=False, tools=tools)
        end = len(text.rstrip())
        end = end if template.closes(text[:end]) else len(text)
        answer = Answer(_common(prompt, text), end, weights[at])
        need(
            "tool_calls" in messages[at] or not template.is_closing(text[answer.start : end]),
            f"The chat template leaves out all of message {at + 1}, an answer; leave it out of the "
            "file, or give another template.",
        )
        earlier = _still_whole(template, texts[-1], text) if texts else ()
        if earlier:
            texts.pop()
        texts.append(Rendered(text, (*earlier, answer), mark))
    return texts


def _common(first: str, second: str) -> int:
    """The number of characters that two texts begin with alike."""
    if second.startswith(first):
        return len(first)
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, pair in pairs if pair[0] != pair[1]), min(len(first), len(second)))


def _still_whole(template: ChatTemplate, before: Rendered, text: str) -> tuple[Answer, ...]:
    """The answers of the text before as they stand in a longer text; none where it writes them
    anew, or closes them by no special token, behind which tokens would be others.

    What closes a whole conversation (Phi-3's end of text) may be missing there.
    """
    *earlier, last = before.answers
    common = text[: _common(before.text, text)].rstrip()
    closed = len(common) > last.start and template.closes(common)
    if not closed or not template.is_closing(before.text[len(common) :]):
        return ()
    return (*earlier, replace(last, end=min(last.end, len(common))))


def _check(template: ChatTemplate, messages: Messages, tools: Tools, text: str) -> None:
    """UserError for a message or a tool that the template leaves out of the text."""
    for at, message in enumerate(messages):
        content = message["content"].strip()
        if content and content not in text:
            probe = [{**m, "content": "\uf8ff"} if m is message else m for m in messages]
            appears = "\uf8ff" in template.render(probe, answering=False, tools=tools)
            need(
                appears,
                f'The chat template leaves out message {at + 1}, of the role "{message["role"]}"; '
                "leave it out of the file, or give another template.",
            )
        for call in message.get("tool_calls", ()):
            name = call.get("function", call).get("name", "")
            need(
                name in text,
                f"The chat template leaves out the call of the tool {name}; give another template.",
            )
    for tool in tools or ():
        name = tool.get("function", tool).get("name", "")
        need(name in text, f"The chat template leaves out the tool {name}; give another template.")


def weigh(template: ChatTemplate, rendered: Rendered) -> Weighted:
    """The tokens of a text and their weights: a token belongs to the answer in which it ends."""
    ids = np.array(template.encode(rendered.text, rendered.mark), np.int32)
    stops = np.array(template.token_ends(rendered.text, rendered.mark))
    weights = np.zeros(len(ids), np.int8)
    for answer in rendered.answers:
        if answer.weight:
            weights[(stops > answer.start) & (stops <= answer.end)] = 1
    counted = np.flatnonzero(weights)
    length = int(counted[-1]) + 1 if len(counted) else 0
    return Weighted(ids[:length], weights[:length])


def weighted(template: ChatTemplate, name: str, example: Example) -> list[list[Weighted]]:
    """The texts of each conversation of an example. Raises UserError with the line."""
    sides = []
    for conversation in example.conversations:
        try:
            texts = [weigh(template, rendered) for rendered in render(template, conversation)]
        except UserError as error:
            raise UserError(f"{name} line {example.line}: {error}") from None
        need(
            any(len(text.ids) for text in texts),
            f"{name} line {example.line} has no token that is learned from; fix or remove it.",
        )
        sides.append(texts)
    return sides


def encode(
    table: ExampleTable, template: ChatTemplate, documents_of: DocumentsOf, fit: Fit
) -> Encoded:
    """The conversations as rows hold them, with notes of what was cut or came in several texts."""
    items = list[dict[str, Array]]()
    cut = 0
    lost = 0
    several = 0
    for example in table:
        sides = weighted(template, table.name, example)
        several += len(sides[0]) > 1
        for documents in documents_of(sides):
            complete = [document.targets for document in documents]
            tokens, targets = (
                fit(example, columns, 0, "conversation")
                for columns in ([text.ids[:-1] for text in documents], complete)
            )
            if any((column < 0).all() for column in targets):
                lost += 1
                continue
            item = {
                "tokens": np.concatenate(tokens),
                "targets": np.concatenate(targets),
                "pos": np.concatenate([np.arange(len(ids)) for ids in tokens]),
            }
            cut += int((item["targets"] >= 0).sum() < (np.concatenate(complete) >= 0).sum())
            items.append(item)
    need(bool(items), f"{table.name}: no answer fits in {fit.context} tokens; raise train.context.")
    side = Side.of(**{name: [item[name] for item in items] for name in items[0]})
    reasons = {
        f"answers cut at {fit.context} tokens": cut,
        f"left out, for no answer is within {fit.context} tokens": lost,
        "conversations in several texts, since the chat template writes earlier turns anew": several,
    }
    notes = [f"{table.name}: {text}: {count:,}" for text, count in reasons.items() if count]
    return Encoded(table.name, (side,), notes=tuple(notes))


def template_of(tokenizer: Tokenizer, date: str | None = None) -> ChatTemplate:
    """The tokenizer's chat template; UserError where it has none."""
    source = tokenizer.chat_template
    if source is None:
        raise UserError(
            "This tokenizer has no chat template; name one: train.objective.template = FILE, or "
            '"chatml".'
        )
    return ChatTemplate(source, tokenizer, date, math.inf)  # a person waits and may stop it
