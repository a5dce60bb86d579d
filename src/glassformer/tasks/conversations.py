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
            more = self._text("input") if layout[0] == "instruction" else ""
            if prompt and more.strip():
                prompt[-1]["content"] += f"\n\n{more}"
            messages = self._system() + prompt + self._messages(self.record[layout[1]], "assistant")
        else:
            messages = self._with_system(self._messages(first, "user"))
        return self._example(self._checked(messages))

    def pair(self) -> Example:
        """An example of two conversations that begin alike, the better one first."""
        for name in ("chosen", "rejected"):
            need(name in self.record, f'{self.location} has no "{name}"; give both answers.')
        prompt = self._messages(self.record.get("prompt") or [], "user")
        chosen, rejected = (
            self._messages(self.record[name], "assistant") for name in ("chosen", "rejected")
        )
        sides = zip(chosen, rejected, strict=False)
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], sides)
        shared = [message for message, _ in pairs]
        if all(message in shared for message in prompt):  # both answers repeat the prompt
            prompt = shared
            chosen = chosen[len(shared) :]
            rejected = rejected[len(shared) :]
        if chosen == rejected:
            raise self._error("has the same text as chosen and as rejected")
        need(bool(prompt), f'{self.location} has no "prompt" that both answers follow; add it.')
        if "user" == prompt[-1]["role"] in [side[0]["role"] for side in (chosen, rejected) if side]:
            raise self._error("has a prompt that its answers do not begin with")
        prompt = self._with_system(prompt)
        answers = (self._checked(prompt + side, len(prompt)) for side in (chosen, rejected))
        return self._example(*answers)

    def prompt(self) -> Example:
        """An example of what is to be answered: a prompt, or messages of which the last is the
        user's, and the record for a reward."""
        value = self.record.get("messages") or self.record.get("prompt")
        need(bool(value), f'{self.location} has no "prompt"; add it or remove that line.')
        messages = self._with_system(self._messages(value, "user"))
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
        text = self._text("system") or self._text("system_prompt")
        return [{"role": "system", "content": text}] if text else []

    def _with_system(self, messages: list[Record]) -> list[Record]:
        """Messages behind the system's, unless they begin with one."""
        is_first = [message["role"] for message in messages[:1]] == ["system"]
        return messages if is_first else self._system() + messages

    def _text(self, name: str) -> str:
        """A field that is a text, "" where there is none."""
        text = self.record.get(name) or ""
        if not isinstance(text, str):
            raise self._error(f'has a field "{name}" that is no text')
        return text

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
        self._functions(tools or [], "tools")
        return Conversation(tuple(messages), tools, max(first, 1))

    def _messages(self, value: Any, role: str) -> list[Record]:
        """Messages of a list, or the one of a text; an answer in JSON stays a text."""
        parsed = self._parsed(value)
        if isinstance(value, str) and not _are_messages(parsed):
            return [{"role": role, "content": value}]
        value = parsed
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
            pieces: list[Any] = [
                part.get("text") if isinstance(part, Mapping) else part for part in content
            ]
            content = "".join(pieces) if all(isinstance(piece, str) for piece in pieces) else None
        if not isinstance(content, str):
            raise self._error("has a message whose content is no text")
        if message.get("weight", 1) not in (0, 1):
            raise self._error("has a message whose weight is neither 0 nor 1")
        for function in self._functions(message.get("tool_calls", []), "tool_calls"):
            function["arguments"] = self._parsed(function.get("arguments", {}))
        return {**message, "role": ROLES.get(role, role), "content": content}

    def _functions(self, calls: Any, field: str) -> list[Record]:
        """The functions that tools or calls of them name."""
        calls = calls if isinstance(calls, list) else [None]
        functions = [call.get("function", call) if isinstance(call, dict) else {} for call in calls]
        if not all(isinstance(f, dict) and isinstance(f.get("name"), str) for f in functions):
            raise self._error(f"has {field} that are no list of functions with names")
        return functions

    def _parsed(self, value: Any) -> Any:
        """A list or object that is written as a JSON text; anything else as it is."""
        if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            try:
                return json.loads(value)
            except (ValueError, RecursionError):
                return value
        return value

    def _error(self, complaint: str) -> UserError:
        return UserError(f"{self.location} {complaint}; fix or remove that line.")


def _are_messages(value: Any) -> bool:
    """True for a list of objects that say who speaks."""
    names = ({"role", "content"}, {"from", "value"}, {"role", "tool_calls"})
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(item, Mapping) and any(item.keys() >= pair for pair in names)
            for item in value
        )
    )


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
