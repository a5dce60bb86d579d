"""Conversations in a file's records, whatever library wrote them.

messages (tools)              [{"role": "user", "content": ..}, ..]; OpenAI's
conversations (system)        [{"from": "human", "value": ..}, ..]; ShareGPT's
prompt completion             texts, or lists of messages
instruction (input) output    Alpaca's
chosen rejected (prompt)      two ways to go on: texts, or lists of messages
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..core.errors import UserError, need
from .example_table import Conversation, Example

Record: TypeAlias = dict[str, Any]
ROLES = {
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "observation": "tool",
    "tool_response": "tool",
}
"""Names of roles in other people's files, and the field's."""
LAYOUTS: tuple[tuple[str, ...], ...] = (
    ("messages",),
    ("conversations",),
    ("prompt", "completion"),
    ("instruction", "output"),
)
"""Fields by which a conversation is known; the first that a record has."""


@dataclass(frozen=True)
class ConversationRecord:
    """One record of a file, as conversations. All raise UserError with ``location``, the file and
    the line."""

    location: str
    record: Record
    line: int

    def conversation(self) -> Example:
        """An example of one conversation."""
        layout = next((names for names in LAYOUTS if self.record.keys() >= {*names}), None)
        if layout is None:
            layouts = ", ".join(" and ".join(names) for names in LAYOUTS)
            fields = ", ".join(sorted(self.record)) or "nothing"
            raise self._error(f"holds no conversation ({fields}); give {layouts}")
        first = self.record[layout[0]]
        if layout[1:]:
            prompt = self._messages(first, "user")
            more = self.record.get("input") if layout[0] == "instruction" else None
            if isinstance(more, str) and more.strip():
                prompt[-1]["content"] += f"\n\n{more}"
            messages = self._system() + prompt + self._messages(self.record[layout[1]], "assistant")
        else:
            messages = self._messages(first, "user")
            if not messages or messages[0]["role"] != "system":
                messages = self._system() + messages
        return self._example(self._checked(messages))

    def pair(self) -> Example:
        """An example of two conversations that begin alike, the better one first."""
        for name in ("chosen", "rejected"):
            need(name in self.record, f'{self.location} has no "{name}"; give both answers.')
        prompt = self._messages(self.record.get("prompt") or [], "user")
        chosen, rejected = (
            self._messages(self.record[name], "assistant") for name in ("chosen", "rejected")
        )
        if not prompt:
            sides = zip(chosen, rejected, strict=False)
            pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], sides)
            prompt = [message for message, _ in pairs]
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        if chosen == rejected:
            raise self._error("has the same text as chosen and as rejected")
        need(bool(prompt), f'{self.location} has no "prompt" that both answers follow; add it.')
        prompt = prompt if prompt[0]["role"] == "system" else self._system() + prompt
        answers = (self._checked(prompt + side, len(prompt)) for side in (chosen, rejected))
        return self._example(*answers)

    def prompt(self) -> Example:
        """An example of what is to be answered: a prompt, or messages of which the last is the
        user's, and the record for a reward."""
        value = self.record.get("messages") or self.record.get("prompt")
        need(bool(value), f'{self.location} has no "prompt"; add it or remove that line.')
        messages = self._messages(value, "user")
        if messages[0]["role"] != "system":
            messages = self._system() + messages
        if messages[-1]["role"] == "assistant" or not messages[-1]["content"].strip():
            raise self._error("has nothing to answer: its last message is empty or an assistant's")
        conversation = Conversation(tuple(messages), record=self.record)
        answer = self.record.get("answer")
        second = None if answer is None else str(answer)
        return Example(conversation.text, second, line=self.line, conversations=(conversation,))

    def _example(self, *conversations: Conversation) -> Example:
        """An example with the texts of its conversations, which a tokenizer may learn from."""
        first, *second = (conversation.text for conversation in conversations)
        return Example(first, next(iter(second), None), line=self.line, conversations=conversations)

    def _system(self) -> list[Record]:
        """The text beside the messages that is the system's, as a message."""
        text = self.record.get("system") or self.record.get("system_prompt")
        return [{"role": "system", "content": text}] if isinstance(text, str) else []

    def _checked(self, messages: list[Record], first: int = 0) -> Conversation:
        """A conversation with an answer at ``first`` or behind it."""
        answers = [m for m in messages[max(first, 1) :] if m["role"] == "assistant"]
        if not answers:
            raise self._error("has no message of the assistant that answers another message")
        for message in answers:
            if not any(
                message.get(name) for name in ("content", "tool_calls", "reasoning_content")
            ):
                raise self._error("has an empty answer")
        while messages[-1]["role"] != "assistant":
            messages = messages[:-1]  # nobody answers it
        tools = self._parsed(self.record.get("tools")) or None
        need(
            tools is None or isinstance(tools, list),
            f"{self.location} has tools that are no list; fix or remove that line.",
        )
        return Conversation(tuple(messages), tools, max(first, 1))

    def _messages(self, value: Any, role: str) -> list[Record]:
        """Messages of a list, or the one of a text."""
        value = self._parsed(value)
        if isinstance(value, str):
            return [{"role": role, "content": value}]
        if isinstance(value, Mapping):
            value = [value]
        if not isinstance(value, list) or not all(isinstance(m, Mapping) for m in value):
            raise self._error("holds something else where messages belong")
        return [self._message(message) for message in value]

    def _message(self, fields: Mapping[str, Any]) -> Record:
        """A message with its role and its content as a text; fields that are null are left out."""
        message = _without_nulls(fields)
        role = message.pop("from", message.get("role"))
        if not isinstance(role, str) or not role:
            raise self._error("has a message without a role")
        content = message.pop("value", message.get("content", ""))
        if isinstance(content, list):
            content = "".join(
                part.get("text", "") if isinstance(part, Mapping) else str(part) for part in content
            )
        if not isinstance(content, str):
            raise self._error("has a message whose content is no text")
        for call in message.get("tool_calls", ()):
            function = call.get("function", call)
            function["arguments"] = self._parsed(function.get("arguments", {}))
        return {**message, "role": ROLES.get(role, role), "content": content}

    def _parsed(self, value: Any) -> Any:
        """A list or object that is written as a JSON text; anything else as it is."""
        if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            try:
                return json.loads(value)
            except ValueError:
                return value
        return value

    def _error(self, complaint: str) -> UserError:
        return UserError(f"{self.location} {complaint}; fix or remove that line.")


def _without_nulls(value: Any) -> Any:
    """The same without fields that are null, which Parquet gives to every message."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def read(
    name: str,
    rows: Iterator[tuple[int, Record]],
    columns: Mapping[str, str],
    example: Callable[[ConversationRecord], Example],
) -> Iterator[Example]:
    """The example of each record of a file; ``columns`` are the file's names of our fields."""
    for line, record in rows:
        location = f"{name} line {line}"
        missing = [column for column in columns.values() if column not in record]
        need(not missing, f'{location} has no field "{", ".join(missing)}"; name another.')
        renamed = {field: record[column] for field, column in columns.items()}
        yield example(ConversationRecord(location, {**record, **renamed}, line))
