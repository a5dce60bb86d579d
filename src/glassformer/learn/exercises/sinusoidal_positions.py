"""Sinusoidal positions

Attention by itself does not know the order of the words: shuffle them, and each gets the same
answer. The paper of 2017 adds to each embedding a vector that says where it stands, made of waves
of different length:

    position[p, 2i]     = sin(p / 10000^(2i / C))         even columns
    position[p, 2i + 1] = cos(p / 10000^(2i / C))         odd columns, the same angle

The first pair repeats every 6.28 places, the last one of a wide model after tens of thousands.
Nothing is learned. To go on by some places is a product with one matrix, whatever the place: each
pair (sin, cos) turns.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 3.1
HINTS = (
    "The angles are a table (length, C / 2): places as a column times one speed a pair as a row.",
    "speeds = 10000 ** (-torch.arange(0, dim, 2) / dim)",
    "out[:, 0::2] are the even columns, out[:, 1::2] the odd ones.",
)

# %% yours
import torch
from torch import Tensor


def positions(length: int, dim: int) -> Tensor:
    """The table (length, dim) that is added to the embeddings of places 0, 1, ...; dim is even."""
    # TODO: the angles; their sines in the even columns, their cosines in the odd ones
    speeds = 10000 ** (-torch.arange(0, dim, 2) / dim)
    angle = torch.arange(length)[:, None] * speeds
    out = torch.zeros(length, dim)
    out[:, 0::2] = angle.sin()
    out[:, 1::2] = angle.cos()
    return out
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    length, dim = int(report.randint(7, 40, (1,))), 2 * int(report.randint(3, 9, (1,)))
    right = positions(length, dim)
    pairs = right.unflatten(1, (-1, 2))
    angle = torch.arange(length)[:, None] * 10000 ** (-torch.arange(0, dim, 2) * 2 / dim)
    slips = {
        "the columns: sine and cosine take turns; yours has all sines first": pairs.mT.flatten(1),
        "the order: sine in the even columns, cosine in the odd ones": pairs.flip(2).flatten(1),
        "the exponent: 2i / C for the pair i; the 2 is missing": positions(length, 2 * dim)[
            :, :dim
        ],
        "the exponent: it grows by 2 / C a pair; yours counts twice": torch.stack(
            (angle.sin(), angle.cos()), -1
        ).flatten(1),
        "the first place: it is 0, not 1": positions(length + 1, dim)[1:],
    }
    name = f"positions({length}, {dim})"
    report.equal(name, learner.positions(length, dim), right, tolerance=1e-3, slips=slips)
    report.say("every number is right")

    model = real_model.translator()
    source, target = report.randint(0, 50, (2, 9)), report.randint(0, 50, (2, 6))
    name = "the logits of the 2017 encoder-decoder with your positions"
    with report.same(name, lambda: real_model.logits(model, source, target)):
        for stack in (model.encoder, model.decoder):
            stack.position.embed = lambda x, flow: x + learner.positions(x.shape[1], x.shape[2])
    report.say("in the encoder-decoder of 2017 (2 + 2 blocks): the same logits")
