"""Rotary positions

Turn each query and key by an angle that grows with its place: then the score of two tokens depends
on how far apart they are, not on where they stand. The d numbers of a head are d / 2 pairs: number
i goes with number i + d / 2 (the halves, as Llama's code has it; the paper pairs neighbours). Pair
i turns by

    angle = place * theta^(-2 i / d)                 i = 0 ... d / 2 - 1
    (a, b)  ->  (a cos - b sin,  b cos + a sin)

The first pair turns by one radian a place, the last ones hardly at all.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 3.2
HINTS = (
    "A number of the first half and its partner in the second are one hand of a clock: turn it "
    "by place times speed.",
    "theta ** (-torch.arange(0, d, 2) / d) are the d / 2 speeds; places times speeds is a table "
    "(T, d / 2).",
    "a, b = x.chunk(2, dim=-1) are the two halves.",
    "torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1), with cos and sin (T, d / 2).",
)

# %% yours
import torch
from torch import Tensor


def rotate(x: Tensor, places: Tensor, theta: float) -> Tensor:
    """x (H, T, d) queries or keys, places (T,) integers -> (H, T, d), each pair (i, i + d / 2)
    turned."""
    # TODO: the angle of each place and pair, (T, d / 2); then turn the two halves of x
    d = x.shape[-1]
    speeds = theta ** (-torch.arange(0, d, 2) / d)
    angle = places[:, None] * speeds
    cos, sin = angle.cos(), angle.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    H, T, d, theta = 2, 6, 8, 10000.0
    x, places = report.randn(H, T, d), report.randint(0, 60, (T,)).sort().values + 1
    order = torch.arange(d).view(-1, 2).T.flatten()  # neighbours first to halves
    back = order.argsort()
    slips: Any = {
        "the pairs: number i goes with number i + d / 2 here; yours pairs neighbours (2i, 2i + 1)": rotate(
            x[..., order], places, theta
        )[..., back],
        "the direction: a cos - b sin and b cos + a sin; yours turns the other way": rotate(
            x, -places, theta
        ),
        "the speeds: theta^(-2 i / d); the 2 is missing": rotate(x, places, theta**0.5),
        "the places: use those that are given; they need not be 0, 1, 2": rotate(
            x, torch.arange(T), theta
        ),
        "theta: it is an argument, and need not be 10,000": rotate(x, places, 10000.0),
    }
    for value in (theta, float(report.randint(100, 900, (1,)))):
        name = f"rotate(x, places, {value:g})"
        report.call(learner.rotate, rotate, x, places, value, name=name, slips=slips)
    report.say("every pair is turned by its own angle, so a score depends on the distance alone")

    model, tokenizer = real_model.real()
    position = model.decoder.position
    name = "the text that our model writes with your rotation"
    with report.same(name, lambda: real_model.greedy(model, tokenizer)) as text:
        position.rotate = lambda x, flow: learner.rotate(x[0], flow.pos[0], position.theta)[None]
    report.say(
        f"in the real model, queries and keys of 4 blocks turned by you, the same text: {text!r}"
    )
