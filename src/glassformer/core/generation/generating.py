"""``generate``: settings checked, prompts read, a Generation begun."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import config
from ..errors import UserError, need
from ..nn import Model
from ..nn.hooks import ModelEdit, edited
from .decode_loop import Row, Step, steps
from .prompt import Prompt, Start, encode, end_tokens, first_tokens
from .sample import Sampling
from .session import Reader, Session

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer


class Generation:
    """A generation under way: iterate over it for its steps as they come, or ``run()`` it.

    ``rows`` hold what there is so far, a prompt's samples side by side; ``texts``, ``tokens``,
    ``logprobs`` and ``finishes`` are theirs, ``text`` is the first one's. ``seed`` repeats it.
    """

    def __init__(self, rows: list[Row], steps: Iterator[Step], seed: int) -> None:
        self.rows, self.seed = rows, seed
        self._steps = steps

    def __iter__(self) -> Iterator[Step]:
        return self._steps

    def run(self) -> Generation:
        for _ in self._steps:
            pass
        return self

    @property
    def text(self) -> str:
        return self.rows[0].text

    @property
    def texts(self) -> list[str]:
        return [row.text for row in self.rows]

    @property
    def tokens(self) -> list[list[int]]:
        return [row.tokens for row in self.rows]

    @property
    def logprobs(self) -> list[list[float]]:
        return [row.logprobs for row in self.rows]

    @property
    def finishes(self) -> list[str | None]:
        """Why each row ended; None while it grows."""
        return [row.finish for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
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
    """Continues each prompt token by token, drawn from the model's own distribution.

    Args:
        model: A decoder, or an encoder-decoder, whose encoder reads the prompt.
        tokenizer: The tokenizer that came with it; None where prompts are ids.
        prompt: A text, token ids, or a list of either; None is the beginning of a text.
        max_new: The most tokens of a continuation; None is to the end of the context.
        temperature, top_k, top_p, min_p, repetition_penalty: As in ``Sampling``; 0 is greedy.
        stop: Texts that end a continuation.
        samples: Continuations of each prompt, which gets the same ones alone as in a batch.
        seed: The same seed gives the same tokens; None draws one from torch's generator.
        eos: Tokens that end a continuation; None is the tokenizer's, () none.
        bos: Whether a text gets the token that opens it, as in ``prompt.encode``.
        start: What an encoder-decoder's decoder begins with; None is the tokenizer's bos or pad.
        source_tokenizer: The tokenizer of its encoder, where it has its own.
        slide: Go on beyond the context: its last half is read again as a text of its own.
        likely: The likeliest tokens that come with each token.
        edits: Changes to what the model computes (``sight.edits``), in all tokens.
        reader: Reads the prompts, on several processes (``scale.prefill``).
    Returns:
        The steps as they are made, each with its ``text``; ``.texts`` is all of them at the end.
    Raises:
        UserError: A prompt cannot be continued, or a setting means nothing.
    Example:
        >>> for step in glassformer.generate(model, tokenizer, "Once", max_new=20, seed=0):
        ...     print(step.text, end="")
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    check_settings(sampling, max_new, samples, stops)
    need(not stops or tokenizer is not None, "Stop strings need a tokenizer; give one.")
    if slide and (max_new is None or model.config.has_source):
        missing = "a decoder" if model.config.has_source else "max_new, for it never ends by itself"
        raise UserError(f"A sliding context needs {missing}; give one, or leave out slide.")
    starts, sources = starts_and_sources(
        prompt, tokenizer, source_tokenizer, model.config, bos, start, slide
    )
    need(
        not (slide and edits),
        "A sliding context renumbers its positions, and edits refer to positions; leave out one "
        "of them.",
    )
    need(
        reader is None or not (edits or slide or sources),
        "Several processes can only continue plain prompts of a decoder; use one process.",
    )
    tape, start_rows, source_rows = edited(edits, model, starts, sources, tokenizer)
    session = Session(model, tape, reader)
    eos_ids = end_tokens(eos, tokenizer)
    if seed is None:
        seed = int(torch.randint(2**31, ()))
    rows = list[Row]()
    for prompt_ids, start_ids in zip(sources or starts, start_rows or (), strict=True):
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
        steps(session, source_rows, rows, samples, sampling, seed, slide, vocab_size, likely),
        seed,
    )


def check_settings(
    sampling: Sampling, max_new: int | None, samples: int, stops: Sequence[str]
) -> None:
    """UserError for settings of ``generate`` that mean nothing, whatever the model."""
    need(max_new is None or max_new >= 1, f"max_new is {max_new}; give 1 or more.")
    # all of them are drawn at once
    need(1 <= samples <= 1_000_000, f"samples is {samples}; give 1 to 1,000,000.")
    need(
        samples == 1 or not sampling.greedy,
        f"temperature is 0, so all {samples} samples would be the same; raise it or ask for one.",
    )
    need("" not in stops, "A stop string is empty; give at least one character.")


def starts_and_sources(
    prompt: Prompt,
    tokenizer: Tokenizer | None,
    source_tokenizer: Tokenizer | None,
    cfg: config.Model,
    bos: bool | None,
    start: Start,
    slide: bool = False,
) -> tuple[list[list[int]], list[list[int]] | None]:
    """First tokens of the decoder and source ids of the encoder (or None), a row a prompt.

    Raises UserError for a model that cannot continue a text, and as ``encode`` and ``first_tokens``
    do.
    """
    if cfg.is_encoder:
        raise UserError(
            "An encoder cannot continue a text; give a decoder, or use fill, embed or classify."
        )
    sentence = "This model has no head over tokens and cannot continue a text; use embed or"
    need(cfg.head is not None, f"{sentence} classify, or train one with the objective Causal.")
    pair = cfg.has_source
    reads = (source_tokenizer or (tokenizer and tokenizer.for_source)) if pair else tokenizer
    rows = encode(prompt, reads, cfg, bos, slide)
    return ([first_tokens(tokenizer, start, cfg)] * len(rows), rows) if pair else (rows, None)
