"""The parser of the command line: options from signatures, one sentence for a slip; and how a
result is printed."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from ..core.errors import UserError, mute, nearest, need, note


class Parser(argparse.ArgumentParser):
    """argparse, with one sentence for a mistake instead of the whole usage, and options anywhere
    among arguments."""

    def __init__(self, **words: Any) -> None:
        shape = argparse.RawDescriptionHelpFormatter  # examples keep their lines
        super().__init__(**words, formatter_class=shape, allow_abbrev=False)
        self.verbs: dict[str, Parser] = {}
        # "-2,-1" is a value, as "-2" is
        self._negative_number_matcher = re.compile(r"-\.?\d[\d.,e_-]*$")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help.")

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        try:
            return super()._get_value(action, text)
        except argparse.ArgumentError:
            kind = "an integer" if action.type is int else "a number"
            raise UserError(f"{action.option_strings[0]} is {text!r}; give {kind}.") from None

    def add_verb(self, name: str, sentence: str) -> Parser:
        """Adds a command, or a task of a command."""
        verb = self.verbs[name] = Parser(prog=f"{self.prog} {name}", description=sentence)
        return verb

    @property
    def options(self) -> list[str]:
        """The long options."""
        return [
            name
            for action in self._actions
            for name in action.option_strings
            if name.startswith("--")
        ]

    def pending_option(self, words: Sequence[str]) -> argparse.Action | None:
        """Returns the option that waits for its value after these words, or None."""
        action = self._option_string_actions.get(words[-1]) if words else None
        return None if action is None or action.nargs == 0 else action

    def add_examples(self, examples: Sequence[str]) -> None:
        """Adds the examples to the help, and those of each task to its own."""
        sections = [textwrap.fill(self.epilog, 79)] if self.epilog else []
        lists = {
            "commands": [f"{name:10} {verb.description}" for name, verb in self.verbs.items()],
            "examples": [line for line in examples if line.startswith(self.prog + " ")],
        }
        sections += ["\n  ".join([f"{title}:", *lines]) for title, lines in lists.items() if lines]
        self.epilog = "\n\n".join(sections) or None
        if not self.get_default("run"):
            self.usage = f"{self.prog} COMMAND ..."
        for verb in self.verbs.values():
            verb.add_examples(examples)

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parses the words: ``run`` is the command's function, ``extra`` the words that only it can
        parse."""
        first = words[0] if words else ""
        if first in self.verbs:
            return self.verbs[first].parse(words[1:])
        if self.verbs and first[:1] not in ("", "-") and not self._get_positional_actions():
            hint = nearest(first, self.verbs) or f" {self.prog} --help lists them."
            raise UserError(f'There is no command "{first}".{hint}')
        if not self.get_default("run"):  # only --help and --version mean anything here
            self.parse_known_args([first or "--help"])
            raise UserError(f"{first} is not understood here; see {self.prog} --help.")
        args, extra = self.parse_known_intermixed_args(words)
        args.extra = extra
        if args.extra and not args.open:
            wrong = args.extra[0]
            hint = nearest(wrong, self.options) if wrong.startswith("-") else ""
            raise UserError(f"{wrong} is not understood.{hint} See {self.prog} --help.")
        return args


def split_settings(words_left: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """``RUN.toml --steps 500 --decoder.depth=8`` as the run file, if there is one, and the changes
    to it."""
    file, changes, words = None, {}, list(words_left)
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name:
            need(bool(equals or words), f"--{name} needs a value; give it as --{name} VALUE.")
            changes[name.replace("-", "_")] = value if equals else words.pop(0)
        elif file is None and not word.startswith("-"):
            file = word
        else:
            raise UserError(
                f"{word} is not understood; give one run file, and settings as --NAME VALUE."
            )
    return file, changes


def check_text(words: Sequence[str]) -> None:
    """Refuse words that are not UTF-8 and no file's name: Python keeps such bytes as halves of
    surrogate pairs."""
    for word in words:
        if (
            any("\ud800" <= letter <= "\udfff" for letter in word)
            and not Path(word.rpartition("=")[2]).exists()
        ):
            quoted = shlex.quote(
                word.encode(sys.getfilesystemencoding(), "surrogateescape").decode(
                    "utf-8", "replace"
                )
            )
            raise UserError(
                f"The argument {quoted} is not UTF-8 text; convert it, or set the terminal to UTF-8."
            )


EXPLAINED = re.compile(r"(\w+)(?: (\S+))?: (.+)")


@dataclass(frozen=True)
class AtLeast:
    """The least value that an option may have."""

    least: int


Count = Annotated[int, AtLeast(1)]
Whole = Annotated[int, AtLeast(0)]
Words = Sequence[str]
"""Several words by position; an option that may be repeated."""


def parameters(function: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Yields the function's parameters, each with its type."""
    owner = function.__init__ if inspect.isclass(function) else function
    hints = get_type_hints(owner, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        yield parameter, hints[parameter.name]


def split_type(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns a type without None, and its annotations: a bound, or what converts the text."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (member for member in get_args(hint) if member is not NoneType)
    marks = getattr(hint, "__metadata__", ())
    return (hint.__origin__ if marks else hint), marks


def option_name(parameter: inspect.Parameter) -> str:
    return "--" + parameter.name.rstrip("_").replace("_", "-")


def argument_settings(parameter: inspect.Parameter, hint: Any) -> dict[str, Any]:
    """Returns what argparse needs to know of a parameter, but for its help."""
    kind, marks = split_type(hint)
    settings: dict[str, Any] = {"default": argparse.SUPPRESS}
    if kind is bool:
        return {**settings, "action": "store_true"}
    origin, members = get_origin(kind), get_args(kind)
    if origin is Literal:
        settings |= {"choices": members, "type": type(members[0])}
    elif (element := members[0] if origin in (Sequence, list) else kind) in (int, float, Path):
        settings["type"] = element
    required = parameter.default is parameter.empty
    if parameter.kind is parameter.KEYWORD_ONLY:
        settings["required"] = required
        if origin is Sequence:
            settings["action"] = "append"
        elif origin is list and not marks:
            settings["nargs"] = "+"
    elif origin is Sequence:
        settings["nargs"] = "+" if required else "*"
    elif not required:
        settings["nargs"] = "?"
    return settings


def read_docstring(text: str) -> tuple[str, dict[str, tuple[str, str | None, str]]]:
    """Returns the first paragraph, and by parameter the title of its group, the name of its value
    and its help."""
    paragraph, _, remainder = inspect.cleandoc(text).partition("\n\n")
    explained, group = {}, ""
    for line in re.sub(r"\n +", " ", remainder).splitlines():
        if match := EXPLAINED.fullmatch(line):
            explained[match[1]] = (group, match[2], match[3])
        elif line:
            group = line
    return " ".join(paragraph.split()), explained


def add_arguments(parser: Parser, function: Callable[..., Any], shared: str) -> None:
    """Adds the function's parameters to the parser; ``shared`` explains those that many commands
    have."""
    explained = read_docstring(shared)[1]
    groups: dict[str, Any] = {"": parser}

    def add(function: Callable[..., Any]) -> None:
        explained.update(read_docstring(function.__doc__ or "")[1])
        for parameter, hint in parameters(function):
            if is_dataclass(hint):
                add(hint)  # type: ignore[arg-type]
                continue
            if parameter.kind is parameter.VAR_POSITIONAL:
                parser.set_defaults(open=True)
                continue
            title, metavar, help = explained[parameter.name]
            settings, default = argument_settings(parameter, hint), parameter.default
            if settings.get("action") != "store_true":
                settings["metavar"] = metavar
            if metavar and metavar[0] == "[":  # the value may be left out
                settings |= {"metavar": metavar[1:-1], "nargs": "?", "const": ""}
            if help[-1] != ")" and default and isinstance(default, int | float | str):
                help += f" ({default:,})" if isinstance(default, int) else f" ({default})"
            names = [parameter.name]
            if parameter.kind is parameter.KEYWORD_ONLY:
                names, settings["dest"] = [option_name(parameter)], parameter.name
            group = groups.setdefault(title, None) or parser.add_argument_group(title)
            groups[title] = group
            group.add_argument(*names, **settings, help=help)

    parser.set_defaults(run=function, open=False)
    add(function)
    if "CommandOutput" in str(inspect.signature(function).return_annotation):
        parser.add_argument("--json", action="store_true", help=explained["json"][2])


@dataclass(frozen=True)
class CommandOutput:
    """A command's result: the value that ``--json`` prints, else the lines for a reader.

    Either may be a function, called where it is printed. ``notes`` go to standard error before the
    lines, ``ending`` after them.
    """

    value: Any
    lines: Iterable[str] | Callable[[], Iterable[str]] = ()
    notes: Iterable[str] = ()
    ending: str = ""
    exit_code: int = 0

    def show(self, as_json: bool) -> None:
        if as_json:
            print_json(self.value() if callable(self.value) else self.value)
            return
        note_all(self.notes)
        lines = list(self.lines() if callable(self.lines) else self.lines)
        if lines:
            print("\n".join(lines))
        if self.ending:
            note(self.ending)


def note_all(lines: Iterable[str]) -> None:
    for line in lines:
        note(line)


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def execute(parser: Parser, words: Sequence[str]) -> int:
    """Runs the command that the words name, prints its results and returns the exit code."""
    # several processes read the same words: the first one says what is wrong with them
    mute(os.environ.get("RANK", "0") != "0")
    args = parser.parse(words)
    for file in getattr(args, "use", ()):
        from ..formats.extend import use

        use(file)
    command = bound(args.run, args)
    mute(False)
    result = command()
    if result is None or isinstance(result, int):
        return result or 0
    exit_code = 0
    for output in [result] if isinstance(result, CommandOutput) else result:
        output.show(args.json)
        exit_code = output.exit_code
    return exit_code


def bound(function: Callable[..., Any], args: argparse.Namespace) -> partial[Any]:
    """The function with what was typed; what was not has its default."""
    values, extra = {}, ()
    for parameter, hint in parameters(function):
        name = parameter.name
        if is_dataclass(hint):
            values[name] = bound(hint, args)()  # type: ignore[arg-type]
        elif parameter.kind is parameter.VAR_POSITIONAL:
            extra = args.extra
        elif hasattr(args, name):
            value = getattr(args, name)
            for mark in split_type(hint)[1]:
                if isinstance(mark, AtLeast):
                    need(
                        value >= mark.least,
                        f"{option_name(parameter)} is {value}; give {mark.least} or more.",
                    )
                else:
                    value = mark(value)
            values[name] = value
    return partial(function, *extra, **values)
