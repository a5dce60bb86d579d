"""How the command line's words are read, and what is said to a slip."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from .errors import UserError, nearest


class Parser(argparse.ArgumentParser):
    """argparse, with one sentence for a mistake instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            raise UserError(f'There is no command "{value}".{nearest(value, action.choices)}')
        super()._check_value(action, value)

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        try:
            return super()._get_value(action, text)
        except argparse.ArgumentError:
            kind = "a whole number" if action.type is int else "a number"
            raise UserError(f"{action.option_strings[0]} is {text!r}; give {kind}.") from None


def settings(rest: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """``RUN.toml --steps 500 --decoder.depth=8`` as the run file, if there is one, and the changes to it."""
    file, changes, words = None, {}, list(rest)
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name:
            if not equals and not words:
                raise UserError(f"--{name} needs a value; give it as --{name} VALUE.")
            changes[name.replace("-", "_")] = value if equals else words.pop(0)
        elif file is None and not word.startswith("-"):
            file = word
        else:
            raise UserError(f"{word} is not understood; give one run file, and settings as --NAME VALUE.")
    return file, changes
