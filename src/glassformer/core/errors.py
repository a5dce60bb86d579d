"""Standard error: the one kind of error that is the user's to fix, warnings, notes."""

from __future__ import annotations

import contextlib
import os
import sys

from . import registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LONGEST = 1500  # characters of a message


class UserError(ValueError):
    """A mistake the user can fix; its text is one sentence that says what to do.

    The command line prints it without a traceback and exits with 2. What a file put into it cannot
    steer a terminal: line ends, escapes and other characters without a shape are written as such,
    and a long text loses its middle.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(_shorten("".join(map(_escape, _shorten(sentence)))))


class Stuck(UserError):
    """A training cannot go on; its weights are those from before the step that it could not do."""


def _shorten(text: str) -> str:
    half = (LONGEST - 5) // 2
    return text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"


def _escape(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


def need(fact: bool, sentence: str) -> None:
    """Raise UserError with ``sentence`` unless the fact holds."""
    if not fact:
        raise UserError(sentence)


def must_be_known(ids: Iterable[int], vocab: int) -> None:
    """UserError unless each id is one of the ``vocab`` that a model knows."""
    wrong = next((id for id in ids if not 0 <= id < vocab), None)
    if wrong is not None:
        valid_ids = f"this model knows 0 to {vocab - 1}"
        raise UserError(
            f"Token id {wrong} is out of range: {valid_ids}; use the tokenizer it was trained with."
        )


@contextlib.contextmanager
def library_errors(refusal: Callable[[BaseException], UserError]) -> Iterator[None]:
    """Raises a library's errors, even its panics, which are not Exceptions, as this UserError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, UserError):
        raise
    except BaseException as error:
        raise refusal(error) from None


_MUTED = False


def mute(silent: bool = True) -> None:
    """Say nothing from now on: of several processes that train together, the first one speaks."""
    global _MUTED
    _MUTED = silent


def note(text: str) -> None:
    """A line on standard error; where that is closed, full or gone, the work goes on without."""
    if sys.stderr is not None and not _MUTED:  # None where it was closed before we began
        try:
            print(text, file=sys.stderr, flush=True)
        except (
            OSError,
            ValueError,
            RuntimeError,
        ):  # RuntimeError: a signal came in the middle of another line
            with contextlib.suppress(OSError):
                sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


def install_extra(extra: str) -> str:
    """Returns the command that adds an extra to Glassformer where it is installed."""
    return f"pip install 'glassformer[{extra}]'."


def nearest(word: str, words: Iterable[str]) -> str:
    """A closing hint for an unknown word: ' Did you mean "depth"?', or the whole short list."""
    return "".join(room.nearest(word, words) for room in registry.load("synonyms"))


def choices(name: object, classes: Iterable[str], table: bool = False) -> str:
    """The names of types to choose from, with a hint for one that is none of them: other capitals,
    or a file of the user's own; of a ``table``, which may be a checkpoint's, always.
    """
    import difflib

    names, word = ", ".join(classes), str(name).lower()
    if meant := [option for option in classes if option.lower() == word]:
        return f'{names}. Did you mean "{meant[0]}"?'
    slip = not isinstance(name, str) or (
        difflib.get_close_matches(name, classes, cutoff=0.8) and not table
    )
    strange = not slip and word.isidentifier()
    return (
        f"{names}, or name the file that defines it (--use FILE, glassformer.use)."
        if strange
        else f"{names}."
    )
