"""Calls of tools in the format of a model's chat template: the grammar that a call is held to, and what
was written, read piece by piece as thoughts, text and calls.

    text -> AnswerReader -> {"reasoning_content": ..} {"content": ..} {"tool_calls": [..]}
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.files import JsonObject
from ..core.tokenizer import Tokenizer
from . import grammars

THOUGHTS = ("<think>", "</think>")
TEXT = r"/(.|\n)*/"


@dataclass(frozen=True)
class CallFormat:
    """A family's form of calls: the marks around one or several, and the name of the arguments."""

    opening: str
    closing: str
    arguments: str = "arguments"
    is_list: bool = False  # one opening for all

    def rules(self, calls: Sequence[str], several: bool, mark: str) -> str:
        """Rules of a grammar: ``calls``, and ``mixed``, which may be text alone. ``mark`` is the
        opening in the grammar."""
        call = f"({' | '.join(calls)})"
        if not self.opening:  # the whole answer
            return f"calls: {call}\nmixed: calls | /([^{{\\s](.|\\n)*)?/\n"
        call_end = rf'"\n" {call} "\n{self.closing}"'
        repeated = rf'("\n" {mark} REST)*'
        if self.is_list:
            call_end = f'"[" {call} {f"""(", " {call})*""" if several else ""} "]"'
            repeated = ""
        repeated = repeated.replace("REST", call_end) if several else ""
        # the lazy suffix ends a text at the opening
        is_text = mark.startswith('"')
        before = f"before[suffix={mark}]: TEXT\n" if is_text else f"before: TEXT {mark}\n"
        times = "*" if several and not self.is_list else "?"
        mixed = f"mixed: (before {call_end}){times} TEXT\n"
        return f"calls: {mark} {call_end} {repeated}\n{mixed}{before}TEXT: {TEXT}\n"


FORMATS = {
    "<tool_call>": CallFormat("<tool_call>", "</tool_call>"),
    "[TOOL_CALLS]": CallFormat("[TOOL_CALLS]", "]", is_list=True),
    '"parameters":': CallFormat("", "", "parameters"),
}
"""Formats by what their templates say: Hermes and Qwen, Mistral, Llama 3."""
UNREAD = ("<function=", "<arg_key>", "[ARGS]")
"""Signs of formats that would be taken for one of these: Qwen3-Coder, GLM-4.5, later Mistral."""


def call_format(template: str) -> CallFormat | None:
    """The format in which a chat template writes calls; None for one that is not read here."""
    forms = (FORMATS[sign] for sign in FORMATS if sign in template)
    if any(sign in template for sign in UNREAD):
        return None
    return next(forms, None)


def grammar(
    form: CallFormat,
    tools: Mapping[str, Any],
    forced: bool,
    several: bool,
    thoughts: str | None,
    tokenizer: Tokenizer,
    answer_schema: Any = None,
) -> str:
    """The grammar of an answer: calls whose arguments keep the schemas in ``tools``, by name, or a
    text, which keeps ``answer_schema`` where there is one. ``thoughts`` is "open" where the prompt
    begins them, "" where they may come, else None."""
    rules = list[str]()
    for number, (name, schema) in enumerate(tools.items()):
        head = json.dumps(f'{{"name": {json.dumps(name)}, "{form.arguments}": ')
        rules.append(f'call_{number}: {head} {_json_rule(schema)} "}}"\n')
    calls = [f"call_{number}" for number in range(len(rules))]
    special = tokenizer.specials.get(form.opening)
    mark = json.dumps(form.opening) if special is None else f"<[{special}]>"
    first = {None: "", "open": "thought ", "": '("<think>" thought)? '}[thoughts]
    thought = (
        "" if thoughts is None else f'thought[suffix="</think>"]: {TEXT}\nSPACE: /\\s{{0,4}}/\n'
    )
    # llguidance lets a space before a special token be the end
    space = "SPACE " if first and special is None else ""
    answer = "calls" if forced else "mixed"
    if answer_schema is not None and not forced:
        answer = f"(calls | {_json_rule(answer_schema)})"
    start = f"start: {first}{space}{answer}\n"
    return start + form.rules(calls, several, mark) + thought + "".join(rules)


def _json_rule(schema: Any) -> str:
    """The rule of a JSON value. Raises HttpError for a schema that is not enforced in full."""
    grammars.check_schema(schema)
    schema = schema if isinstance(schema, Mapping) else {"allOf": [schema]}
    return f"%json {json.dumps({**schema, 'x-guidance': grammars.SPACES})}"


class AnswerReader:
    """Splits an answer into deltas of a message. A call's name comes first, then its arguments, as they
    are written. A call that is cut off before them, or is none, stays text. A text of a form
    (``is_form``) holds no marks."""

    def __init__(
        self, form: CallFormat | None, thinks: bool, is_open: bool, is_form: bool = False
    ) -> None:
        self.is_form = is_form
        self.form = form or CallFormat("", "")
        self.head = re.compile(rf'[\s\[,]*\{{"name": "([\w-]+)", "{self.form.arguments}": ')
        self.only_call = form is not None and not form.opening
        self.field = "reasoning_content" if is_open else "content"
        self.next = {  # by field: the marks that end it, and the field behind each
            "content": {self.form.opening: "tool_calls"},
            "reasoning_content": {THOUGHTS[1]: "content"},
            "tool_calls": {self.form.closing: "content"},
        }
        if thinks:
            self.next["content"][THOUGHTS[0]] = "reasoning_content"
        self.pending = ""
        self.is_new = True  # no word of this field yet
        self.calls = 0
        self.depth = 0  # of braces and brackets in arguments
        self.quoted = ""  # in arguments: the quote of an open text, or a backslash in it

    def read(self, text: str, is_last: bool) -> list[JsonObject]:
        """The deltas that more text completes."""
        self.pending += text
        deltas = list[JsonObject]()
        while True:
            if self.field == "arguments":
                end = self._find_end()
                if piece := self.pending[:end]:
                    deltas.append(self._call_delta({"arguments": piece}))
                self.pending = "" if end is None else self.pending[end + 1 :]
                if end is None:
                    return deltas
                self.field, self.is_new = "tool_calls", False
                self.calls += 1
            is_object = self.is_new and self.pending.lstrip().startswith("{")
            if self.only_call and is_object and self.field == "content":
                self.field = "tool_calls"
            if self.field == "tool_calls" and (call := self.head.match(self.pending)):
                # nine letters and digits: Mistral's templates take no other
                entry = {"id": uuid.uuid4().hex[:9], "type": "function"}
                deltas.append(self._call_delta({"name": call[1], "arguments": ""}, **entry))
                self.pending = self.pending[call.end() :]
                self.field = "arguments"
                continue
            marks = self.next[self.field]
            head = self.pending.lstrip()
            begins = (head.startswith(mark) or mark.startswith(head) for mark in marks if mark)
            if self.is_form and self.field == "content" and not (self.is_new and any(begins)):
                marks = {}
            places = [(self.pending.find(mark), mark) for mark in marks if mark]
            at, mark = min((place for place in places if place[0] >= 0), default=(0, ""))
            if not mark:
                break
            deltas += self._emit(self.pending[:at])
            self.pending = self.pending[at + len(mark) :]
            self.field, self.is_new = marks[mark], True
        size = len(self.pending)
        if not is_last:  # a mark may have begun, or a call
            cuts = (
                n for mark in marks for n in range(len(mark)) if self.pending.endswith(mark[:n])
            )
            size -= size if self.field == "tool_calls" else max(cuts, default=0)
        ready = self.pending[:size]
        self.pending = self.pending[size:]
        return deltas + self._emit(ready)

    def _emit(self, piece: str) -> list[JsonObject]:
        if self.field == "tool_calls":
            opening = self.form.opening if self.is_new else ""
            return [{"content": opening + piece}] if piece.strip() else []
        piece = piece.lstrip() if self.is_new else piece
        self.is_new = self.is_new and not piece
        return [{self.field: piece}] if piece else []

    def _find_end(self) -> int | None:
        """The pending text holds the arguments up to this index, where a brace closes the call."""
        for at, char in enumerate(self.pending):
            if self.quoted == "\\":
                self.quoted = '"'
            elif self.quoted:
                self.quoted = {"\\": char, '"': ""}.get(char, '"')
            elif char == '"':
                self.quoted = char
            elif char in "}]" and not self.depth:
                return at
            else:
                self.depth += (char in "{[") - (char in "}]")
        return None

    def _call_delta(self, function: JsonObject, **entry: str) -> JsonObject:
        return {"tool_calls": [{"index": self.calls, **entry, "function": function}]}
