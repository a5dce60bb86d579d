"""word2vec: the loss of a pair with its noise

A word is known by the company it keeps. Each word has two vectors: one as a centre, one as company.
The vector u of a centre should fit the vector v of a word that stood beside it, and not those of
some words drawn at random, n_1..n_k:

    loss = -log sigmoid(u . v)  -  sum over k of log sigmoid(-u . n_k)

where sigmoid(x) = 1 / (1 + e^-x). (Skip-gram with negative sampling, Mikolov et al. 2013.) A
batch's loss is the mean. For large negative x log(sigmoid(x)) must stay finite.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 2.1
HINTS = (
    "A dot product for each real pair and for each noise word; each is an answer of yes or no.",
    "(u * v).sum(-1) is the product of each row of u with the same row of v.",
    "The noise is (B, K, D): (noise * u[:, None]).sum(-1) is (B, K).",
    "torch.nn.functional.logsigmoid stays finite where log(sigmoid(x)) does not.",
)

# %% yours
import torch
from torch import Tensor
from torch.nn import functional as F


def loss(centre: Tensor, company: Tensor, noise: Tensor) -> Tensor:
    """centre (B, D), company (B, D), noise (B, K, D) -> one number: the mean over the B pairs."""
    # TODO: the score of the right pair, those of the K wrong ones; logsigmoid of each with its sign
    right = (centre * company).sum(-1)
    wrong = (noise * centre[:, None]).sum(-1)
    return -(F.logsigmoid(right) + F.logsigmoid(-wrong).sum(-1)).mean()
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    B, K, D = 4, 3, 6
    u, v, n = report.randn(B, D), report.randn(B, D), report.randn(B, K, D)
    right, wrong = (u * v).sum(-1), (n * u[:, None]).sum(-1)
    pair, noise = F.logsigmoid(right), F.logsigmoid(-wrong)
    slips = {
        "the sign of the noise: these pairs are wrong, so sigmoid(-u . n)": -(
            pair + F.logsigmoid(wrong).sum(-1)
        ).mean(),
        "the noise: a sum over the K words, not their mean": -(pair + noise.mean(-1)).mean(),
        "the batch: the mean of the pairs, not their sum": -(pair + noise.sum(-1)).sum(),
        "the logarithm: it is missing": -(right.sigmoid() + (-wrong).sigmoid().sum(-1)).mean(),
        "the sign: a loss falls when the pair fits better; put a minus before all of it": (
            pair + noise.sum(-1)
        ).mean(),
    }
    report.call(learner.loss, loss, u, v, n, slips=slips)
    far = torch.full((1, D), 20.0)
    look = "sigmoid(-2400) is 0 and its log minus infinity: F.logsigmoid does both at once"
    args, name = (far, -far, far[None]), "the loss of a pair that fits very badly"
    report.call(learner.loss, loss, *args, name=name, look=look)
    report.say("right on drawn vectors, and finite where a pair fits very badly")

    lines = [line.split() for line in real_model.texts()]
    words = sorted({word for line in lines for word in line})
    pairs = [
        (words.index(word), words.index(line[at + by]))
        for line in lines
        for at, word in enumerate(line)
        for by in (-2, -1, 1, 2)
        if 0 <= at + by < len(line)
    ]
    draws = report.randint(0, len(words), (40, len(pairs), 3))
    first = report.randn(2, len(words), 8) * 0.3

    def trained(loss_function: Any) -> Tensor:
        tables = first.clone().requires_grad_()
        centres, company = torch.tensor(pairs).T
        for noise in draws:
            value = loss_function(tables[0][centres], tables[1][company], tables[1][noise])
            (grad,) = torch.autograd.grad(value, tables)
            tables = (tables - 5.0 * grad).detach().requires_grad_()
        return tables.detach()

    name = "the vectors after 40 steps with your loss"
    report.equal(name, trained(learner.loss), trained(loss), tolerance=1e-3)
    report.say(f"{len(words)} words, {len(pairs)} pairs, 40 steps by your gradient: as by ours")
