"""Results of a request to an engine: events as they come, or all at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor

from ...core.generation.sample import Likely
from .recording import RecordedValues

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]


def as_exception(error: BaseException) -> Exception:
    """The error; another for StopIteration, which no future holds, and for what is no ``Exception``
    and would end an event loop: SystemExit, a panic of Rust."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    other = RuntimeError(f"{type(error).__name__}: {error}")
    other.__cause__ = error
    return other


class Usage(NamedTuple):
    """Tokens read and written; ``cached`` of the prompt were read before and not again."""

    prompt: int
    cached: int
    generated: int


class TokenLogprob(NamedTuple):
    """A token of the prompt, the natural logarithm of its probability (None: the first), and the
    likeliest there."""

    token: int
    logprob: float | None
    top: Likely = ()


@dataclass(slots=True)
class Event:
    """One more token of one continuation, or its end.

    ``index`` counts the continuations of the request, 0 to n - 1. ``text`` is what may be shown
    now: empty while a character is incomplete or a stop string may have begun. ``logprob`` is of
    the model's own distribution, before penalties, temperature and cuts (None where it was not
    asked for); ``top`` are the likeliest in the token's place. ``records`` are the wanted values of
    the tokens that were read for this one: of the prompt, then each time of the token before.
    ``finish_reason`` is set on a continuation's last event, with the ``stopped_by`` string or token;
    ``token`` is None where it ended without one. ``usage`` is set on the last event of the request,
    and nothing comes after it. ``error`` says why it failed.
    """

    index: int
    token: int | None = None
    text: str = ""
    logprob: float | None = None
    top: Likely = ()
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None
    usage: Usage | None = None
    error: Exception | None = None
    records: RecordedValues | None = None


@dataclass
class Completion:
    """One whole continuation; ``tokens`` hold the eos or the stop string's that ended it, ``text``
    leaves those out."""

    index: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    top: list[Likely] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None


@dataclass
class Result:
    """Completions, usage and scores of a request; ``output`` is an Encode's."""

    completions: list[Completion]
    usage: Usage
    prompt_logprobs: list[TokenLogprob] | None = None
    output: Tensor | None = None

    @property
    def text(self) -> str:
        """The first continuation's text."""
        return self.completions[0].text
