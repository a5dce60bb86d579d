"""A conversation as one text: the chat template that comes with a model, in a sandbox with bounds.

A template is a program in a file that somebody published. It sees the messages and a few words,
changes nothing of them, reaches no attribute of Python's, and ends: after SECONDS of time, at
MOST_TEXT characters of any text it makes.

    {% generation %} .. {% endgeneration %}     stands around what an assistant writes, in some templates
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from ..core.errors import UserError, need
from ..core.tokenizer.tokenizer import Tokenizer
from .tokenizer_files import find_template, read_template

find = find_template  # the template in a model's folder
MOST_SOURCE = 1 << 18  # characters of a template; published ones have some thousands
MOST_TEXT = 1 << 22  # characters of any text that it makes
MOST_LIST = 100_000  # entries of any list
MOST_WORK = 1 << 24  # characters and entries of all that it makes on its way
SECONDS = 2.0
# characters that Unicode leaves to private use
MARKS = [chr(code) for code in range(0xE000, 0xF8FF)]
OPEN, CLOSE = "\U00100000", "\U00100001"  # around what a template marks as generated
CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""The template for a tokenizer that has none."""
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None
ENDLESS = "The chat template makes a text without end; use another template."


class ChatTemplate:
    """A template by its source. Raises UserError where that is none."""

    def __init__(
        self, source: str, tokenizer: Tokenizer, date: str | None = None, seconds: float = SECONDS
    ) -> None:
        try:
            import jinja2
        except ImportError:
            raise UserError("Chat templates need jinja2: pip install jinja2.") from None

        need(
            len(source) <= MOST_SOURCE,
            f"The chat template has {len(source):,} characters, more than any needs.",
        )
        self.source, self.tokenizer, self.seconds = source, tokenizer, seconds
        self._words = {f"{role}_token": name or "" for role, name in tokenizer.roles.items()}
        self._special = re.compile(
            "|".join(sorted(map(re.escape, filter(None, tokenizer.specials)), reverse=True))
            or "(?!)"  # which matches nothing
        )
        self.marks_answers = re.search(r"{%[-+]?\s*generation\b", source) is not None
        try:
            self._template = _within(SECONDS, lambda: _environment(date).from_string(source))
        except (jinja2.TemplateError, RecursionError, SyntaxError, MemoryError) as error:
            raise UserError(
                f"The chat template is broken ({error}); fix it, or give another."
            ) from None

    @classmethod
    def open(cls, path: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """The template in a file."""
        return cls(read_template(path), tokenizer)

    def render(self, messages: Messages, answering: bool = True, tools: Tools = None) -> str:
        """The conversation as text, with what opens the answer. Raises UserError for one that the
        template refuses."""
        return self.marked(messages, answering, tools).replace(OPEN, "").replace(CLOSE, "")

    def tokens(self, messages: Messages, answering: bool = True, tools: Tools = None) -> list[int]:
        """The conversation as ids. What a message holds stays text, even where it is written like a
        special token."""
        mark, safe, safe_tools = self.broken_up(messages, tools)
        return self.encode(self.render(safe, answering, safe_tools), mark)

    def encode(self, text: str, mark: str) -> list[int]:
        """The ids of a rendered text in which ``mark`` breaks names of special tokens."""
        # inside each name of a special token: neither side is one
        pieces = list(filter(None, text.split(mark)))
        return [*itertools.chain(*self.tokenizer.encode_batch(pieces, special=True))]

    def token_ends(self, text: str, mark: str) -> list[int]:
        """The place in ``text`` where each token of ``encode`` ends."""
        stops, start = list[int](), 0
        for piece in text.split(mark):
            spans = self.tokenizer.offsets(piece, special=True) if piece else []
            stops += [start + end for _, end in spans]
            start += len(piece) + len(mark)
        return stops

    def broken_up(
        self, messages: Messages, tools: Tools = None
    ) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]] | None]:
        """A mark, and messages and tools with it inside each name of a special token."""
        letters = set(json.dumps([messages, tools], ensure_ascii=False))
        mark = next((letter for letter in MARKS if letter not in letters), "")
        need(
            mark != "",
            f"The conversation holds all of the {len(MARKS):,} characters U+E000 to U+F8FE; leave one out.",
        )

        def inside(value: Any) -> Any:
            if isinstance(value, str):
                return self._special.sub(lambda match: f"{match[0][0]}{mark}{match[0][1:]}", value)
            if isinstance(value, Mapping):
                return {inside(key): inside(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [inside(item) for item in value]
            return value

        return mark, inside(messages), inside(tools)

    def closing(self) -> list[int]:
        """The special tokens that stand behind an answer."""
        messages = [{"role": "user", "content": "."}, {"role": "assistant", "content": MARKS[0]}]
        behind = self.render(messages, answering=False).rpartition(MARKS[0])[2]
        return [self.tokenizer.specials[name] for name in self._special.findall(behind)]

    def closes(self, text: str) -> bool:
        """True if the text ends in a special token."""
        return any(text.endswith(name) for name in self.tokenizer.specials if name)

    def is_closing(self, text: str) -> bool:
        """True if the text is white space and special tokens alone."""
        return not self._special.sub("", text).strip()

    def marked(self, messages: Messages, answering: bool = False, tools: Tools = None) -> str:
        """``render`` with OPEN and CLOSE around what the template marks as generated."""
        import jinja2

        context: dict[str, Any] = {
            **self._words,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": answering,
            "tools": tools,
            "documents": None,
        }
        try:
            text: str = _within(self.seconds, lambda: self._template.render(context))
        except UserError:
            raise
        except jinja2.TemplateError as error:
            raise UserError(
                f"The chat template does not take this conversation: {error.message}."
            ) from None
        except Exception as error:  # of a program in a file: anything
            raise UserError(
                f"The chat template fails on this conversation ({type(error).__name__}: {error})."
            ) from None
        return text


def _within(seconds: float, work: Callable[[], Any]) -> Any:
    """Runs ``work``; UserError at the first line of Python that it runs after so many seconds of
    the processor: a busy machine ends nothing."""
    until = time.thread_time() + seconds

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        if time.thread_time() > until:
            raise UserError(ENDLESS)
        return watch

    before, token = sys.gettrace(), _left.set([MOST_WORK])
    if seconds < math.inf:  # else as fast as it can be
        sys.settrace(watch)
    try:
        return work()
    finally:
        sys.settrace(before)
        _left.reset(token)


# ------------------------------------------------------------------------------------ the bounds

_left: ContextVar[list[int]] = ContextVar("left")
"""The room that is left for a rendering: characters and entries of all that its operators,
filters and calls give."""


def bounded(value: Any) -> Any:
    """The value, unless it is more than is left."""
    if isinstance(value, str | bytes | list | tuple | dict):
        size = len(value)
        budget = _left.get([MOST_WORK])
        budget[0] -= size
        need(
            budget[0] >= 0 and size <= (MOST_TEXT if isinstance(value, str | bytes) else MOST_LIST),
            ENDLESS,
        )
    elif isinstance(value, int):
        need(value.bit_length() <= 4096, ENDLESS)
    return value


def _joined(pieces: Iterable[Any], between: str = "") -> str:
    """A text of pieces that ends at the bound."""
    texts, size = list[str](), 0
    for piece in pieces:
        texts.append(str(piece))
        size += len(texts[-1]) + len(between)
        need(size <= MOST_TEXT, ENDLESS)
    return str(bounded(between.join(texts)))


def _replaced(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    times = text.count(old)
    need(len(text) + times * len(new) <= MOST_TEXT, ENDLESS)
    result: str = text.replace(old, new, -1 if count is None else count)
    return result


def _product(first: Any, right: Any) -> Any:
    for sequence, times in ((first, right), (right, first)):
        if isinstance(times, int) and isinstance(sequence, str | bytes | list | tuple):
            need(
                len(sequence) * max(times, 0)
                <= (MOST_TEXT if isinstance(sequence, str) else MOST_LIST),
                ENDLESS,
            )
    return bounded(first * right)


def _power(base: Any, right: Any) -> Any:
    need(abs(base) <= 1 << 64 and abs(right) <= 64, ENDLESS)
    return base**right


def _remainder(dividend: Any, right: Any) -> Any:
    need(
        not isinstance(dividend, str | bytes),
        "The chat template formats a text by %; write it with ~ or +.",
    )
    return dividend % right


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "*": _product,
    "**": _power,
    "%": _remainder,
    "+": lambda first, right: bounded(first + right),
}
METHODS = """
strip lstrip rstrip split rsplit splitlines partition rpartition startswith endswith upper lower title capitalize
replace join find rfind index count isdigit isalpha isalnum isspace islower isupper removeprefix removesuffix
items keys values get
"""
"""Methods of texts, lists and dictionaries whose results are no longer than their arguments,
or are bounded here."""
FILTERS = """
abs capitalize count d default dictsort e escape first float groupby int items last length list lower map max min
reject rejectattr reverse round safe select selectattr sort string sum title trim truncate unique upper
"""
PLAIN = (str, bytes, list, tuple, dict, int, float)


def _environment(date: str | None) -> Any:
    """Jinja's immutable sandbox with our bounds, set as templates for chats expect it; ``date``
    (ISO) stands for today's."""
    from jinja2 import TemplateError, nodes
    from jinja2.compiler import CodeGenerator, Frame
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generator(CodeGenerator):
        """a ~ b by our own function: it is no operator to Jinja, and could double a text without
        end."""

        def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
            self.write("environment.concat((")
            for child in node.nodes:
                self.visit(child, frame)
                self.write(", ")
            self.write("))")

    class GenerationTag(Extension):
        """{% generation %} .. {% endgeneration %}: OPEN and CLOSE around the body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            opening, closing = (
                nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (OPEN, CLOSE)
            )
            return nodes.Scope([opening, *body, closing], lineno=line)

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(OPERATORS)
        code_generator_class = Generator
        concat = staticmethod(_joined)

        def call_binop(self, context: Any, operator: str, first: Any, right: Any) -> Any:
            return OPERATORS[operator](first, right)

        def wrap_str_format(self, value: Any) -> None:
            if isinstance(getattr(value, "__self__", None), str) and value.__name__ in (
                "format",
                "format_map",
            ):
                raise SecurityError("a text is formatted; write it with ~ or +")

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            allowed = not isinstance(obj, PLAIN) or attr in METHODS.split()
            return allowed and super().is_safe_attribute(obj, attr, value)

        def call(self, context: Any, called: Any, *args: Any, **named: Any) -> Any:
            owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
            if isinstance(owner, str) and name in ("join", "replace"):
                called = (
                    partial(_joined, between=owner) if name == "join" else partial(_replaced, owner)
                )
            return bounded(super().call(context, called, *args, **named))

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def as_json(
        value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any
    ) -> str:
        need(indent is None or indent <= 16, ENDLESS)
        return str(bounded(json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)))

    environment = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, GenerationTag],
        autoescape=False,
    )
    environment.filters = {name: _checked(environment.filters[name]) for name in FILTERS.split()}
    environment.filters |= {"replace": _replaced, "tojson": as_json}
    environment.filters["join"] = lambda value, d="", attribute=None: _joined(
        value if attribute is None else (item[attribute] for item in value), str(d)
    )
    try:
        today = None if date is None else datetime.datetime.fromisoformat(date)
    except ValueError:
        raise UserError(f'"{date}" is no date; write it as 2024-07-26.') from None
    environment.globals = {
        "range": _range,
        "dict": dict,
        "namespace": environment.globals["namespace"],
        "raise_exception": refuse,
        "strftime_now": lambda form: (today or datetime.datetime.now()).strftime(form[:99]),
    }
    return environment


def _range(*bounds: int) -> range:
    result = range(*bounds)
    need(len(result) <= MOST_LIST, ENDLESS)
    return result


def _checked(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose answer keeps the bounds."""

    @functools.wraps(plain)
    def filtered(*args: Any, **named: Any) -> Any:
        return bounded(plain(*args, **named))

    return filtered
