"""From logits (B, V) to one token a row: penalise, warm, cut the tail, draw. Pure functions.

    logits -> repetition penalty -> temperature -> top-k -> top-p -> min-p -> draw

B rows, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from ..errors import need

DRAWN_AT_ONCE = 1 << 15  # chances; the sums of more leave the cache for fresh pages of memory
Likely: TypeAlias = Sequence[tuple[int, float]]  # tokens, each with its log-probability


@dataclass(frozen=True)
class Sampling:
    """Settings of the choice of the next token.

    ``temperature`` divides the logits: 1 draws from the model's own distribution, 0 takes the
    likeliest token (greedy). ``top_k`` keeps the k likeliest tokens, ``top_p`` the fewest likeliest
    whose mass reaches p, ``min_p`` those at least p times as likely as the likeliest.
    ``repetition_penalty`` above 1 makes tokens that are already in the row less likely. Raises
    UserError for a value that means nothing.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        penalty = self.repetition_penalty
        need(
            0 <= self.temperature < math.inf,
            f"temperature is {self.temperature}; give 0 (greedy) or more.",
        )
        need(
            self.top_k is None or self.top_k >= 1,
            f"top_k is {self.top_k}; give 1 or more, or leave it out.",
        )
        need(
            self.top_p is None or 0 < self.top_p <= 1,
            f"top_p is {self.top_p}; give a share above 0, at most 1.",
        )
        need(
            self.min_p is None or 0 <= self.min_p <= 1,
            f"min_p is {self.min_p}; give a share from 0 to 1.",
        )
        need(
            1e-9 <= penalty < math.inf,
            f"repetition_penalty is {penalty}; give 1e-9 or more (1 changes nothing).",
        )

    @property
    def greedy(self) -> bool:
        """True when the likeliest token is taken, whatever the rest says."""
        return self.temperature < 1e-9  # logits divided by less can be infinite


def choose(
    logits: Tensor,
    uniform: Tensor | None,
    mask: Tensor | None,
    sampling: Sampling,
    vocab_size: int | None = None,
) -> Tensor:
    """The next token of each row, (B,).

    ``uniform`` (B,) in [0, 1) is each row's random number (unused when greedy); ``mask`` (B, V)
    marks the tokens that are already in the row (needed for the repetition penalty alone). Only the
    first ``vocab_size`` ids are drawn: a vocabulary rounded up has rows that no tokenizer can write.
    """
    logits = logits if vocab_size == logits.shape[-1] else logits[:, :vocab_size]
    if mask is not None:
        logits = penalise(logits, mask[:, :vocab_size], sampling.repetition_penalty)
    if sampling.greedy or uniform is None:
        return logits.argmax(-1)
    return draw(cut(logits / sampling.temperature, sampling), uniform)


def random_generator(seed: int, number: int, prompt: Sequence[int]) -> torch.Generator:
    """Generator of a continuation's random numbers, from the seed, the prompt and its ``number``
    among the prompt's continuations: other requests change nothing."""
    name = f"{seed} {number} {tuple(prompt)}".encode()
    # 63 bits
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name).digest()[:8]) >> 1)


def token_mask(rows: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
    """Booleans (B, V): the tokens that each row has."""
    mask = torch.zeros_like(logits, dtype=torch.bool)
    for place, ids in enumerate(rows):
        mask[place, ids] = True
    return mask


def cut(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits with minus infinity for what top-k, top-p and min-p leave out, one after another."""
    if sampling.top_k is not None:
        logits = top_k(logits, sampling.top_k)
    if sampling.top_p is not None and sampling.top_p < 1:
        logits = top_p(logits, sampling.top_p)
    if sampling.min_p:
        logits = min_p(logits, sampling.min_p)
    return logits


def penalise(logits: Tensor, mask: Tensor, penalty: float) -> Tensor:
    """Seen tokens less likely: logits above 0 over the penalty, others times it (Keskar 2019)."""
    return torch.where(mask, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def top_k(logits: Tensor, k: int) -> Tensor:
    """The k likeliest tokens, and those as likely as the last of them (Fan et al. 2018)."""
    last = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < last, -math.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """The nucleus: tokens whose likelier ones weigh less than p together (Holtzman et al. 2020)."""
    chance, vocab = logits.softmax(-1), logits.shape[-1]
    # All tokens below (1 - p) / V together weigh less than 1 - p: none is in the nucleus, so none
    # needs sorting. An accelerator sorts them sooner than it could tell us how many they are.
    most = int((chance * vocab >= 1 - p).sum(-1).max()) if logits.is_cpu else vocab
    likeliest = chance.topk(most).values
    # a p that fp32 rounds to 0 keeps the likeliest too
    count = (likeliest.cumsum(-1) - likeliest < p).sum(-1, keepdim=True).clamp(min=1)
    return logits.masked_fill(~greatest(chance, likeliest.gather(-1, count - 1), count), -math.inf)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Tokens at least p times as likely as the likeliest (Nguyen et al. 2024)."""
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), -math.inf)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """The token of each row in whose share of the distribution its ``uniform`` falls, (B,).

    One number decides a row, so its luck can be fixed beforehand and depends on no other row. The
    sums are in double precision (where the device has it): their rounding must not reach the tail.
    """
    count, vocab = logits.shape
    rows = max(1, DRAWN_AT_ONCE // vocab)
    if count > rows and logits.is_cpu:
        return torch.cat([*map(draw, torch.split(logits, rows), torch.split(uniform, rows))])
    mass = logits.softmax(1).cumsum(1, dtype=torch.float32 if logits.is_mps else torch.float64)
    # u * total < total for every u < 1 of the same precision, so only NaN leads past the end
    if count == 1 and logits.is_cpu:  # numpy's search takes less than one of torch's operators
        (sums,) = mass.numpy()
        return torch.from_numpy(sums[:-1].searchsorted(sums[-1:] * uniform.numpy(), "right"))
    aim = uniform.to(mass) * mass[:, -1]
    return torch.searchsorted(mass, aim[:, None], right=True)[:, 0].clamp(max=vocab - 1)


def greatest(values: Tensor, least: Tensor, count: Tensor) -> Tensor:
    """Booleans (B, V): the ``count`` (B, 1) greatest of each row, down to ``least`` (B, 1).

    Of equal ones the first: which they are does not depend on how many others are asked for, as
    with ``topk``.
    """
    above, equal = values > least, values == least
    missing = count - above.sum(-1, keepdim=True)
    if values.is_cpu and (equal.sum(-1, keepdim=True) == missing).all():
        return above | equal  # nothing is equal to the last, as nearly always
    return above | (equal & (equal.cumsum(-1) <= missing))


def log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """The model's own log-probability of ``tokens`` (B,), before penalty, temperature and cuts."""
    # the same bits as in ``likeliest``, and half the time of a difference from ``logsumexp``
    return logits.float().log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)


def likeliest(logits: Tensor, vocab_size: int | None, count: int) -> list[list[tuple[int, float]]]:
    """The ``count`` likeliest of the first ``vocab_size`` ids a row, with log-probabilities."""
    best = logits.float().log_softmax(-1)[:, :vocab_size]
    count = min(count, best.shape[-1])
    values, ids = best.topk(min(count + 1, best.shape[-1]))
    last = values[:, count - 1 : count]
    if (last == values[:, count:]).any():  # topk may have taken any of the equal ones
        top = greatest(best, last, torch.tensor(count, device=best.device))
        ids = top.nonzero()[:, 1].view(len(best), count)
    ids = ids[:, :count].sort(-1).values  # of equal ones the first comes first
    values, order = best.gather(-1, ids).sort(stable=True, dim=-1, descending=True)
    ids = ids.gather(-1, order)
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return [list(zip(row_ids, row_values, strict=True)) for row_ids, row_values in pairs]
