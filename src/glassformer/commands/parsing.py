"""How the command line's words are read, and what is said to a slip."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..core.errors import UserError, nearest, need


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
