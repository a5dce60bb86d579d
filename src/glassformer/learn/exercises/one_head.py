"""One head of attention, by hand

Every word asks a question (its query q), offers a label (its key k) and carries something to hand
over (its value v). A word's answer is a weighted mean of the values, and the weights come from how
well its query fits each key; here T queries meet S keys:

    scores = q k^T / sqrt(d_head)         one number for each pair: (T, S)
    pattern = softmax(scores)             over the keys; what may not be seen gets 0
    answer = pattern v                    (T, d_head)

d_head is the width of a key of this one head. Where `allowed` is False the score becomes minus
infinity before the softmax, so that its weight is exactly 0.

Write it with products and exp, or with what PyTorch has: only the numbers count.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 4.1
HINTS = (
    "All scores at once are one matrix product: q (T, d) times k turned over, (d, S).",
    "Divide by the square root of the last dimension of q: q.shape[-1] ** 0.5.",
    "scores.masked_fill(~allowed, float('-inf')).softmax(-1) @ v",
)

# %% yours
import torch
from torch import Tensor


def softmax(x: Tensor) -> Tensor:
    """exp(x) divided by its sum, along the last dimension; x may hold large numbers and minus
    infinity."""
    # TODO: take the largest number away first: exp(1000) is infinite, exp(1000 - 1000) is 1
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)
    # END


def attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """q (T, d), k and v (S, d), allowed (T, S) booleans: True where the query may see the key ->
    (T, d)."""
    # TODO: scores, divided by the square root of d; minus infinity where it is not allowed;
    # softmax; times v
    scores = q @ k.T / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~allowed, float("-inf"))
    return softmax(scores) @ v
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    by_hand = learner.softmax(torch.tensor([2.0, 1.0, 0.0]))
    look = (
        "exp of each, divided by the sum of all of them: e^2 is 7.389, e^1 is 2.718, e^0 is "
        "1, their sum 11.107"
    )
    report.equal(
        "softmax([2, 1, 0])", by_hand, torch.tensor([0.66524, 0.24473, 0.09003]), look=look
    )
    x = report.randn(3, 5) + 1000
    look = (
        "take the largest number of the row away before exp: the result is the same, and exp "
        "stays finite"
    )
    name = "softmax of numbers near 1000"
    report.call(learner.softmax, softmax, x, name=name, look=look)
    far = torch.tensor([[1000.0, 999.0], [1.0, 0.0]])
    look = (
        "each row has a largest number of its own: amax(-1, keepdim=True), not that of the "
        "whole table"
    )
    name = "softmax([[1000, 999], [1, 0]])"
    report.call(learner.softmax, softmax, far, name=name, look=look)
    report.say("softmax([2, 1, 0]) is [0.6652, 0.2447, 0.0900], and large numbers are no trouble")

    q, k, v = report.randn(4, 8), report.randn(6, 8), report.randn(6, 8)
    allowed = report.randn(4, 6) > -0.5
    allowed[:, 0] = True
    scores = q @ k.T * 8**-0.5
    slips = {
        "the scale: these are the numbers without it; divide the scores by sqrt(d_head)": attention(
            q * 8**0.5, k, v, allowed
        ),
        "the scale: you divide by d_head, not by its square root": attention(
            q * 8**-0.5, k, v, allowed
        ),
        "the scale: you divide by the square root of the number of keys; it is that of one "
        "head's width": attention(q * (8 / 6) ** 0.5, k, v, allowed),
        "the mask: you see all keys; where allowed is False the score is minus infinity": attention(
            q, k, v, allowed | True
        ),
        "the mask: it is turned round; True means that the key may be seen": attention(
            q, k, v, ~allowed
        ),
        "the mask: minus infinity in the scores; 0 after the softmax leaves weights that do not "
        "sum to 1": (scores.softmax(-1) * allowed) @ v,
        "the softmax: it goes along the keys, the last dimension": scores.masked_fill(
            ~allowed, float("-inf")
        )
        .softmax(0)
        .nan_to_num()
        @ v,
    }
    report.call(learner.attention, attention, q, k, v, allowed, slips=slips)
    report.say("4 queries over 6 keys: every number is right")

    # Scores so low that a number which is merely small would be the largest of its row.
    low, keys = -100 * report.rand(4, 8) - 20, report.rand(6, 8) + 0.5

    filled = (low @ keys.T / 8**0.5).masked_fill(~allowed, -20.0)
    slips = {
        "the mask: a number such as -20 is larger than these scores; only minus infinity is "
        "below all": filled.softmax(-1) @ v
    }
    look = "the mask: where allowed is False the score is minus infinity"
    args, name = (low, keys, v, allowed), "attention of low scores"
    report.call(learner.attention, attention, *args, name=name, slips=slips, look=look)
    report.say(
        "a key that may not be seen has the weight 0 however low the scores of the others are"
    )

    model, tokenizer = real_model.real()

    def attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        return torch.stack(
            [learner.attention(*head, allowed) for head in zip(q, k, v, strict=True)]
        )

    name = "the text that our model writes with your attention in it"
    with report.same(name, lambda: real_model.greedy(model, tokenizer)) as text:
        real_model.attend_with(model, attend)
    report.say(f"in the real model, all 16 heads by your function, the same text: {text!r}")
