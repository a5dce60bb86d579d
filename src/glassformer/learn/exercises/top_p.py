"""Top-p sampling

Draw from all tokens, and once in a while comes one that fits nothing. Top-p (nucleus sampling,
Holtzman et al. 2020) keeps the fewest likeliest tokens whose probabilities reach p together, and
draws from those. Where the model is sure these are few, where it is not they are many.

The token that brings the sum to p or above still belongs to the nucleus; so the likeliest one is
always kept, even at p = 0.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 7.1
HINTS = (
    "Sort the probabilities, the largest first, and add them up with cumsum.",
    "A token stays while the sum of those *before* it is below p: cumsum - itself < p. The first "
    "one always stays.",
    "The sorted order has to be undone: sort gives indices, scatter puts back.",
)

# %% yours
import torch
from torch import Tensor


def top_p(logits: Tensor, p: float) -> Tensor:
    """logits (V,) -> the same, minus infinity for every token outside the nucleus."""
    # TODO: probabilities, the largest first; which of them belong to the nucleus; back in the order
    # of the vocabulary
    values, order = logits.softmax(-1).sort(descending=True)
    before = values.cumsum(-1) - values
    beyond = (before >= p).index_fill(-1, torch.tensor(0), False)  # the likeliest one stays
    outside = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, beyond)
    return logits.masked_fill(outside, float("-inf"))
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    clear = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()
    last = "the token that brings the sum to p or above is the last one that is kept"
    zero = (
        "p = 0: the sum before the likeliest token is 0, and 0 < 0 is false; keep that token "
        "whatever p is"
    )
    for p, ids in ((0.4, [1]), (0.7, [1, 3]), (0.99, [0, 1, 2, 3]), (0.0, [1]), (1e-12, [1])):
        logits = learner.top_p(clear, p).tolist()
        report.equal(
            f"the tokens kept of probabilities 0.1, 0.5, 0.15, 0.25 at p = {p:g}",
            [at for at in range(4) if logits[at] > float("-inf")],
            ids,
            look=last if p > 0.1 else zero,
        )
    for _ in range(5):
        logits, p = report.randn(40) * 2, 0.2 + 0.7 * report.random.random()
        right = top_p(logits, p)
        smallest = right[right > float("-inf")].min()
        slips = {
            "the last one: the token that reaches p belongs to the nucleus too": right.masked_fill(
                right == smallest, float("-inf")
            ),
            "the order: tokens must stand at their own places in the vocabulary again": right.sort(
                descending=True
            ).values,
            "what is asked for: logits, not probabilities": right.softmax(-1),
        }
        report.equal(f"top_p(logits, {p:.3f})", learner.top_p(logits, p), right, slips=slips)
    report.say("the right tokens on clear and on drawn logits")

    from glassformer.core.generation import generate, sample

    model, tokenizer = real_model.real()
    seed = report.random.randrange(1000)

    def text() -> str:
        return (
            generate(model, tokenizer, real_model.PROMPT, max_new=20, top_p=0.9, seed=seed)
            .run()
            .text
        )

    def rows(logits: Tensor, p: float) -> Tensor:
        return torch.stack([learner.top_p(row, p) for row in logits])

    with report.same("the text that our model draws with your top_p", text) as drawn:
        sample.top_p = rows  # this process is yours alone
    report.say(f"in the real model (--top-p 0.9 --seed {seed}) the text is the same: {drawn!r}")
