"""The loop of generation: prompt -> model(cache) -> logits[-1] -> sampler -> token -> yield -> back
in.

B rows that still grow, V vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from ..errors import UserError, need
from ..nn import EncoderDecoder, Model
from ..nn.editing import ModelEdit, Reading, tape_of
from ..nn.finite import must_be_finite
from .continuation import Continuation
from .prompt import Prompt, Start, end_tokens, starts_and_sources
from .sample import (
    Sampling,
    choose,
    likeliest,
    log_probability,
    random_generator,
    token_mask,
)
from .session import PREPACK_AFTER, Reader, Session

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer

# the likeliest tokens in one place, each with its log-probability
Likely: TypeAlias = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Step:
    """One more token of one row.

    ``text`` is what may be shown now: empty while a character is incomplete or a stop string may
    have begun. ``logprob`` is the natural logarithm of the model's own probability of the token,
    before penalty, temperature and cuts; ``likely`` are the likeliest tokens in its place with
    theirs, as many as were asked for. ``row`` counts prompts, each with its samples; ``index``
    counts tokens in the row, from 0; ``finish`` is set on a row's last step.
    """

    token: int
    text: str
    logprob: float
    index: int
    row: int
    finish: str | None = None
    likely: Likely = ()


class Row(Continuation):
    """One continuation of a batch, the ``number``-th of its rows.

    ``prompt`` is what the user gave and ``start`` what the decoder begins with: the same, but for
    an encoder-decoder. ``logprobs`` and ``likely`` belong to its ``tokens``.
    """

    def __init__(self, number: int, prompt: list[int], start: list[int], **settings: Any) -> None:
        super().__init__(start, **settings)
        self.number, self.prompt, self.text = number, prompt, ""
        self.logprobs: list[float] = []
        self.likely: list[Likely] = []
        self.window_start = 0  # tokens from the beginning that a sliding context has left behind

    def window(self, context: int) -> list[int]:
        """Tokens of the row that the model reads: all of it, or from its last half context on once
        that is full."""
        ids = [*self.start, *self.tokens]
        if self.full(context):
            self.window_start = len(ids) - max(1, context // 2)
        return ids[self.window_start :]

    def full(self, context: int) -> bool:
        """True where one more token would not fit the context."""
        return len(self.start) + len(self.tokens) - self.window_start > context

    def add(self, token: int, logprob: float, likely: Likely = ()) -> Step:
        """Take one more token; the row's ``finish`` is set when it was the last."""
        text = self.append(token)
        self.logprobs.append(logprob)
        if likely:
            self.likely.append(likely)
        self.text += text
        index = len(self.tokens) - 1
        return Step(token, text, logprob, index, self.number, self.finish, likely)


class Generation:
    """A generation under way: iterate over it for its steps as they come, or ``run()`` it to the
    end.

    ``rows`` hold what there is so far, a prompt's samples side by side; ``texts``, ``tokens``,
    ``logprobs`` and ``finishes`` are theirs, ``text`` is the first one's. ``seed`` repeats it.
    """

    def __init__(self, rows: list[Row], steps: Iterator[Step], seed: int) -> None:
        self.rows, self.seed = rows, seed
        self._steps = steps

    def __iter__(self) -> Iterator[Step]:
        return self._steps

    def run(self) -> Generation:
        """Itself, finished."""
        for _ in self._steps:
            pass
        return self

    @property
    def text(self) -> str:
        """The first row's text."""
        return self.rows[0].text

    @property
    def texts(self) -> list[str]:
        """Each row's text, without the prompt."""
        return [row.text for row in self.rows]

    @property
    def tokens(self) -> list[list[int]]:
        """Each row's tokens, without the prompt's."""
        return [row.tokens for row in self.rows]

    @property
    def logprobs(self) -> list[list[float]]:
        """The log-probability of each of the rows' tokens."""
        return [row.logprobs for row in self.rows]

    @property
    def finishes(self) -> list[str | None]:
        """Why each row ended; None while it grows."""
        return [row.finish for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON holds it."""
        names = ("prompt", "text", "tokens", "logprobs", "finish")
        return {
            "seed": self.seed,
            "rows": [{name: getattr(row, name) for name in names} for row in self.rows],
        }


def generate(
    model: Model,
    tokenizer: Tokenizer | None,
    prompt: Prompt,
    *,
    max_new: int | None = 256,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | Sequence[str] = (),
    samples: int = 1,
    seed: int | None = None,
    eos: int | Collection[int] | None = None,
    bos: bool | None = None,
    start: Start = None,
    source_tokenizer: Tokenizer | None = None,
    slide: bool = False,
    likely: int = 0,
    edits: Sequence[ModelEdit | str] = (),
    reader: Reader | None = None,
) -> Generation:
    """Continuations of each prompt, token by token; by default drawn from the model's own
    distribution.

    ``prompt`` is a text, token ids, or a list of either (one batch, lengths as they come), None the
    beginning of a text; ``tokenizer`` may be None for ids. Each prompt gets ``samples``
    continuations of at most ``max_new`` tokens (None: to the end of the context), which end at a
    token of ``eos`` (None: the tokenizer's; () never), at a ``stop`` string or at the context. With
    ``slide`` a row whose context is full goes on, and a prompt may be longer: the last half context
    is read again as if the text began there, so what follows is exactly what the model says after
    that piece alone, and what lies before it is forgotten; each such reading costs as much as a
    prompt of that length. ``temperature`` 0 is greedy; Sampling describes the others. With each
    token come the ``likely`` likeliest ones in its place. The same ``seed`` gives the same tokens,
    and a prompt gets the same ones alone as in a batch (equal prompts count as samples of one);
    None draws a seed from torch's generator. ``bos`` as in ``prompt.encode``. An encoder-decoder's
    encoder reads the prompt, by ``source_tokenizer`` where it has its own, and its decoder begins
    with ``start`` (an id or several; None: the tokenizer's bos, or its pad). ``edits``
    (inspection.edits) change what the model computes at every token; their positions count prompt
    and continuation together. A ``reader`` reads the prompts (``parallel.prefill``: on several
    processes). Raises UserError for what cannot be continued, for settings that mean nothing and
    for an edit of what is not there.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    check_settings(sampling, max_new, samples, stops)
    need(not stops or tokenizer is not None, "Stop strings need a tokenizer; give one.")
    if slide and (max_new is None or isinstance(model, EncoderDecoder)):
        missing = (
            "a decoder"
            if isinstance(model, EncoderDecoder)
            else "max_new, for it never ends by itself"
        )
        raise UserError(f"A sliding context needs {missing}; give one, or leave out slide.")
    starts, sources = starts_and_sources(
        prompt, tokenizer, source_tokenizer, model.config, bos, start, slide
    )
    need(
        not (slide and edits),
        "A sliding context forgets its positions, and edits count them; leave out one.",
    )
    reading = Reading.for_generation(model, starts, sources, tokenizer)
    need(
        reader is None or not (edits or slide or sources),
        "Several processes read plain prompts of decoders alone.",
    )
    session = Session(model, tape_of(edits, reading), reader)
    eos_ids = end_tokens(eos, tokenizer)
    if seed is None:
        seed = int(torch.randint(2**31, ()))
    rows = list[Row]()
    for prompt_ids, start_ids in zip(sources or starts, reading.rows or (), strict=True):
        # the last token is never read back, so it may lie just outside the context
        room = model.config.context - len(start_ids) + 1
        by_length = max_new is not None and (slide or max_new <= room)
        for _ in range(samples):
            row = Row(
                len(rows),
                prompt_ids,
                start_ids,
                eos=eos_ids,
                max_tokens=max_new if by_length else room,
                limit="length" if by_length else "context",
                tokenizer=tokenizer,
                stops=stops,
            )
            rows.append(row)
    vocab_size = None if tokenizer is None else tokenizer.size
    return Generation(
        rows,
        _steps(session, reading.sources, rows, samples, sampling, seed, slide, vocab_size, likely),
        seed,
    )


def check_settings(
    sampling: Sampling, max_new: int | None, samples: int, stops: Sequence[str]
) -> None:
    """UserError for settings of ``generate`` that mean nothing, whatever the model."""
    need(max_new is None or max_new >= 1, f"max_new is {max_new}; give 1 or more.")
    need(samples >= 1, f"samples is {samples}; give 1 or more.")
    hint = f"temperature is 0, so all {samples} samples would be the same; raise it or ask for one."
    need(samples == 1 or not sampling.greedy, hint)
    need("" not in stops, "A stop string is empty; give at least one character.")


def _steps(
    session: Session,
    sources: Sequence[Sequence[int]] | None,
    rows: list[Row],
    samples: int,
    sampling: Sampling,
    seed: int,
    slide: bool,
    vocab_size: int | None,
    likely: int,
) -> Iterator[Step]:
    """One prefill for all prompts, then one token per row at a time; a row that has ended leaves
    the batch."""
    model, context = session.model, session.model.config.context
    logits = session.prefill([row.window(context) for row in rows][::samples], sources, samples)
    longest = max(row.max_tokens for row in rows)
    uniform = None if sampling.greedy else _uniform(rows, seed, longest).to(logits.device)
    mask = None
    if sampling.repetition_penalty != 1:
        mask = token_mask([row.start for row in rows], logits)
    for index in range(longest):
        random_numbers = None if uniform is None else uniform[:, index]
        tokens = choose(logits, random_numbers, mask, sampling, vocab_size)
        # one transfer to the host; ids are whole in fp32 up to 16 million
        chosen = torch.stack((tokens.float(), log_probability(logits, tokens)), 1).tolist()
        if any(math.isnan(logprob) for _, logprob in chosen):
            must_be_finite(model, logits)
        best = likeliest(logits, vocab_size, likely) if likely else [()] * len(rows)
        for place in sorted(range(len(rows)), key=lambda place: rows[place].number):
            token, logprob = chosen[place]
            yield rows[place].add(int(token), logprob, best[place])
        stay = _closing_ranks([row.finish is None for row in rows])
        if not stay:
            return
        if mask is not None:
            mask.scatter_(1, tokens[:, None], True)
        if len(stay) < len(rows):
            rows, keep = [rows[place] for place in stay], torch.tensor(stay, device=tokens.device)
            session.select(stay)
            tokens = tokens[keep]
            uniform = uniform[keep] if uniform is not None else None
            mask = mask[keep] if mask is not None else None
        # not before: the first token is waited for
        if index == 0 and longest * len(rows) >= PREPACK_AFTER:
            session.prepare(steps=longest - 1)
        if slide and any(row.full(context) for row in rows):
            session = Session(model)
            logits = session.prefill([row.window(context) for row in rows], None, 1)
        else:
            logits = session.decode(tokens)


def _closing_ranks(alive: Sequence[bool]) -> list[int]:
    """The places that are alive, the last ones moved into the gaps: few rows of a cache change
    places."""
    last = [place for place in range(len(alive)) if alive[place]]
    return [place if alive[place] else last.pop() for place in range(len(last))]


def _uniform(rows: Sequence[Row], seed: int, length: int) -> Tensor:
    """Each row's luck for its whole length, (B, length): made from the seed, its prompt and its
    number among equals."""
    equals: Counter[tuple[int, ...]] = Counter()
    uniform = []
    for row in rows:
        ids = tuple(row.prompt)
        uniform.append(torch.rand(length, generator=random_generator(seed, equals[ids], ids)))
        equals[ids] += 1
    return torch.stack(uniform)
