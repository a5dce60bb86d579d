"""A router with top-k

A mixture of experts has many feed-forward networks and asks only a few of them for each token. A
small matrix, the router, scores the experts; the k best are asked, and their answers are summed by
weights that sum to 1:

    probability = softmax(x W_router^T)             (N, experts)
    the k largest, divided by their sum             (N, k)
    out = sum over the chosen of weight * expert(x)

Each expert should see only the tokens that chose it: that is what makes it cheap.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 10.1
HINTS = (
    "Softmax over the experts makes shares of a token's scores; topk gives the k largest and "
    "which they are.",
    "(x @ w_router.T).softmax(-1).topk(k, dim=-1) gives both; divide the values by their sum.",
    "For each expert: (chosen == e).nonzero() tells the tokens and at which of their k places it "
    "was chosen.",
    "out[tokens] += weights[tokens, places][:, None] * experts[e](x[tokens])",
)

# %% yours
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def route(x: Tensor, w_router: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """x (N, C), w_router (E, C) -> weights (N, k), each row summing to 1, and the chosen experts
    (N, k), best first."""
    # TODO: probabilities, the k largest, divided by their sum
    weights, chosen = (x @ w_router.T).softmax(-1).topk(k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), chosen
    # END


def mixture(
    x: Tensor, weights: Tensor, chosen: Tensor, experts: Sequence[Callable[[Tensor], Tensor]]
) -> Tensor:
    """x (N, C), weights and chosen (N, k), experts: functions (n, C) -> (n, C) -> the weighed sum
    (N, C)."""
    # TODO: ask each expert for the tokens that chose it, and for no others; sum by the weights
    out = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        tokens, places = (chosen == number).nonzero(as_tuple=True)
        if len(tokens):
            out[tokens] += weights[tokens, places][:, None] * expert(x[tokens])
    return out
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    N, C, E, k = 7, 6, 5, 3
    x, w_router = report.randn(N, C), report.randn(E, C)
    weights, chosen = route(x, w_router, k)
    scores = x @ w_router.T
    chance = scores.softmax(-1)
    result = learner.route(x, w_router, k)
    report.pair(result, "route gives back two things: the weights and the chosen.")
    slips: Any = {
        "the number: the k best of each token": chance.topk(1).indices,
        "the order: the largest first": chosen.flip(1),
    }
    look = "the softmax goes over the experts, the last dimension; then the k largest of each token"
    report.equal("the chosen experts", result[1], chosen, slips=slips, look=look)
    slips = {
        "the sum: the k weights of a token are divided by their sum, so that they sum to 1": chance.topk(
            k
        ).values,
        "the softmax: probabilities first; these are the bare scores": scores.topk(k).values,
    }
    look = "softmax over the experts first, then the k largest, then divided by their sum"
    report.equal("the weights", result[0], weights, slips=slips, look=look)
    matrices, row_counts = report.randn(E, C, C), [0] * E

    def expert(number: int) -> Any:
        def answer(rows: Tensor) -> Tensor:
            row_counts[number] += len(rows)
            return torch.tanh(rows @ matrices[number])

        return answer

    answers = torch.stack(
        [torch.tanh(row @ matrices[at]) for row, at in zip(x, chosen, strict=True)]
    )
    weighed = answers * weights[..., None]
    slips = {
        "the weights: each answer is multiplied by its own": answers.sum(1),
        "the sum: over all k chosen experts, not the best one alone": weighed[:, 0],
        "overwriting: add to what other experts have given (+=), do not put in its place": weighed[
            torch.arange(N), chosen.argmax(1)
        ],
    }
    report.equal(
        "mixture(x, weights, chosen, experts)",
        learner.mixture(x, weights, chosen, [expert(e) for e in range(E)]),
        weighed.sum(1),
        slips=slips,
        look="each chosen expert's answer times its weight, added to what the others gave (+=, "
        "not =)",
    )
    look = "x[tokens] of those that chose the expert, not all of x"
    report.true(
        sum(row_counts) <= N * k,
        f"Your experts computed {sum(row_counts)} rows; {N * k} were chosen.",
        look,
    )
    report.say(f"{N} tokens chose {k} of {E} experts each, which computed theirs alone")

    from glassformer import config as c
    from glassformer.core.nn.experts import MoE

    model = real_model.decoder(c.MoE(4, 2, c.GatedMLP(32)))
    tokens = report.randint(0, 50, (2, 9))

    def routed(module: MoE) -> Any:
        def forward(x: Tensor, flow: Any) -> Tensor:
            flat = x.flatten(0, 1)
            weights, chosen = learner.route(flat, module.router.weight.detach(), 2)
            experts = [lambda rows, e=e: module.expert_output(e, rows) for e in range(4)]
            return learner.mixture(flat, weights, chosen, experts).view_as(x)

        return forward

    name = "the logits of a Mixtral of 4 experts with your router"
    with report.same(name, lambda: real_model.logits(model, tokens)):
        for module in model.modules():
            if isinstance(module, MoE):
                module.forward = routed(module)
    report.say("in a small Mixtral (2 blocks, 2 of 4 experts): the same logits")
