"""Attention for an RNN

Before 2015 a translator read the whole source into one vector, and long sentences did not fit.
Bahdanau, Cho and Bengio let the decoder look back: its state s scores every state h_j of the
source, by a small network of one hidden layer,

    score_j = w . tanh(W_s s + b + W_h h_j)
    weights = softmax(scores)             the share of padding is 0: its score is minus infinity
    context = sum of weights_j h_j

S words of E numbers each, a state of C, a hidden layer of A. This came before queries and keys, and
it is the same thought: W_s s is a query, W_h h_j a key, h_j the value.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 2.2
HINTS = (
    "W_s s + b is one vector (A,); keys is a table (S, A): the sum of both goes through tanh.",
    "torch.tanh(state @ w_state.T + bias + keys) @ w is (S,), a score for each word of the source.",
    "Where `is_word` is False the score becomes minus infinity before the softmax.",
)

# %% yours
import torch
from torch import Tensor


def attend(
    state: Tensor,
    source: Tensor,
    is_word: Tensor,
    w_state: Tensor,
    bias: Tensor,
    w_source: Tensor,
    w: Tensor,
) -> tuple[Tensor, Tensor]:
    """state (C,), source (S, E), is_word (S,) booleans, w_state (A, C), bias (A,), w_source (A, E), w
    (A,).

    Returns the weights (S,) and the context (E,).
    """
    # TODO: the scores; minus infinity where no word is there; softmax; the weighted sum of the
    # source's states
    scores = torch.tanh(state @ w_state.T + bias + source @ w_source.T) @ w
    weights = scores.masked_fill(~is_word, float("-inf")).softmax(-1)
    return weights, weights @ source
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    C, E, A, S = 5, 7, 4, 6
    state, source = report.randn(C), report.randn(S, E)
    w_state, bias, w_source, w = (
        report.randn(A, C),
        report.randn(A),
        report.randn(A, E),
        report.randn(A),
    )
    is_word = torch.arange(S) < 4
    sums = state @ w_state.T + bias + source @ w_source.T
    scores, linear = sums.tanh() @ w, sums @ w
    args = state, source, is_word, w_state, bias, w_source, w
    right, context = attend(*args)
    slips = {
        "the padding: where no word is there the weight is 0": scores.softmax(0),
        "the mask: minus infinity before the softmax, so that the others sum to 1": scores.softmax(
            0
        )
        * is_word,
        "the padding: a score of 0 still has e^0 = 1; it is minus infinity": scores.masked_fill(
            ~is_word, 0
        ).softmax(0),
        "tanh: the sum goes through it before the product with w": linear.masked_fill(
            ~is_word, float("-inf")
        ).softmax(0),
        "the bias: it belongs to W_s s": attend(
            state, source, is_word, w_state, 0 * bias, w_source, w
        )[0],
        "the weights: the scores have to go through softmax": scores.masked_fill(
            ~is_word, float("-inf")
        ),
    }
    result = learner.attend(*args)
    report.pair(result, "attend gives back two things: the weights and the context.")
    report.equal("the weights", result[0], right, slips=slips)
    report.equal(
        "the context",
        result[1],
        context,
        look="the sum of the source's states, each times its weight",
    )
    report.say("the weights of 4 words and 2 places of padding, and the context, are right")

    model = real_model.recurrent()
    tokens, target = report.randint(0, 50, (2, 7)), report.randint(0, 50, (2, 5))
    pos = torch.arange(7).repeat(2, 1)
    pos[1, 4:] = -1  # the second source is shorter
    cross = model.decoder.cross

    def pattern(h: Tensor, source: Any) -> Tensor:
        valid = (
            torch.ones(source.values.shape[:2], dtype=torch.bool)
            if source.valid is None
            else source.valid
        )
        weights = (cross.q.weight, cross.q.bias, cross.k.weight, cross.score.weight[0])
        rows = [
            learner.attend(h[i], source.values[i], valid[i], *weights)[0] for i in range(len(h))
        ]
        return torch.stack(rows)

    @torch.no_grad()
    def logits() -> Tensor:
        return model(target, tokens, source_pos=pos).logits

    with report.same("the logits of a GRU translator with your attention", logits):
        cross.pattern = pattern
    report.say("in a translator of GRUs, at each of its steps: the same logits, padding and all")
