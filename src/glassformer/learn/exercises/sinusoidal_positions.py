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

from glassformer.learn import models
from glassformer.learn.report import CheckReport

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


def table(
    length: int,
    dim: int,
    step: float = 2.0,
    first: int = 0,
    halves: bool = False,
    swap: bool = False,
) -> Tensor:
    angle = (torch.arange(length).double() + first)[:, None] / 10000 ** (
        torch.arange(dim // 2).double() * step / dim
    )
    pair = (angle.cos(), angle.sin()) if swap else (angle.sin(), angle.cos())
    return (torch.cat(pair, -1) if halves else torch.stack(pair, -1).flatten(1)).float()


def check(learner: Any, report: CheckReport) -> None:
    length, dim = int(report.randint(7, 40, (1,))), 2 * int(report.randint(3, 9, (1,)))
    slips: Any = {
        "the columns: sine and cosine take turns; yours has all sines first": lambda: table(
            length, dim, halves=True
        ),
        "the order: sine in the even columns, cosine in the odd ones": lambda: table(
            length, dim, swap=True
        ),
        "the exponent: 2i / C for the pair i; the 2 is missing": lambda: table(length, dim, 1.0),
        "the exponent: it grows by 2 / C a pair; yours counts twice": lambda: table(
            length, dim, 4.0
        ),
        "the first place: it is 0, not 1": lambda: table(length, dim, first=1),
    }
    actual = learner.positions(length, dim)
    report.equal(
        f"positions({length}, {dim})", actual, table(length, dim), tolerance=1e-3, slips=slips
    )
    angle = 3 / 10000 ** (torch.arange(dim // 2) * 2 / dim)
    shift = torch.block_diag(
        *(torch.tensor([[a.cos(), a.sin()], [-a.sin(), a.cos()]]) for a in angle)
    )
    report.equal(
        "three places on, by one matrix", actual[:-3] @ shift.T, actual[3:], tolerance=1e-3
    )
    report.say("every number is right; to go on by three places is one matrix, whatever the place")

    model = models.translator()
    source, target = report.randint(0, 50, (2, 9)), report.randint(0, 50, (2, 6))
    before = models.logits(model, source, target)
    for stack in (model.encoder, model.decoder):
        stack.position.embed = lambda x, flow: x + learner.positions(x.shape[1], x.shape[2])
    report.equal(
        "the logits of the 2017 encoder-decoder with your positions",
        models.logits(model, source, target),
        before,
    )
    swapped = models.logits(model, source.flip(1), target)
    report.true(
        float((swapped - before).abs().max()) > 1e-3,
        "The model does not feel the order of the source.",
    )
    report.say(
        "in the encoder-decoder of 2017 (2 + 2 blocks): the same logits, and other ones when the "
        "source is turned round"
    )
