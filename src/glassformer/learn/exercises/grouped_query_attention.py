"""Grouped-query attention

The cache of keys and values is what a long text costs. So let several query heads share one
key-value head (Ainslie et al. 2023): Llama 3 8B has 32 query heads and 8 key-value heads, and its
cache is a quarter of what it would be. One key-value head for all is multi-query attention, as many
as query heads is plain multi-head attention: one function for the three.

Query head h reads key-value head h // (H / K): neighbours share.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 9.1
HINTS = (
    "group = H // K query heads share one key-value head.",
    "k.repeat_interleave(group, dim=0) is (H, S, d): head 0, 0, ..., 1, 1, ...",
    "The rest is attention as ever: q @ k.transpose(-1, -2) / d ** 0.5, mask, softmax, @ v.",
)

# %% yours
import torch
from torch import Tensor


def grouped(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """q (H, T, d), k and v (K, S, d) where K divides H, allowed (T, S) booleans -> (H, T, d)."""
    # TODO: give each query head its keys and values; then attention as ever
    group = len(q) // len(k)
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v
    # END


# %% check
from torch import nn


def check(learner: Any, report: CheckReport) -> None:
    T, S, d = 3, 5, 4
    allowed = torch.arange(S)[None] <= torch.arange(S - T, S)[:, None]

    for H, K in ((8, 2), (6, 3), (4, 1), (4, 4)):
        q, k, v = report.randn(H, T, d), report.randn(K, S, d), report.randn(K, S, d)
        slips = {
            "the groups: neighbours share, head h reads h // (H / K), not h % K "
            "(repeat_interleave, not repeat)": grouped(
                q, k.repeat(H // K, 1, 1), v.repeat(H // K, 1, 1), allowed
            ),
            "the scale: the square root of one head's width": grouped(q * d**0.5, k, v, allowed),
            "the mask: it hides what is not allowed": grouped(q, k, v, allowed | True),
        }
        args, name = (q, k, v, allowed), f"grouped(q of {H} heads, k and v of {K})"
        report.call(learner.grouped, grouped, *args, name=name, slips=slips)
    report.say(
        "8 heads over 2, 6 over 3, 4 over 1 (multi-query) and 4 over 4 (multi-head): all right"
    )

    model, tokenizer = real_model.real()
    # as a trained model is converted: the mean of a group's heads
    for module in real_model.attentions(model):
        d = module.head_dim
        for linear in (module.k, module.v):
            heads = linear.weight.detach().view(2, -1, d, linear.weight.shape[1])
            linear.weight = nn.Parameter(heads.mean(1).flatten(0, 1))
        module.kv_heads = 2
    with report.same(
        "the text with your attention", lambda: real_model.greedy(model, tokenizer)
    ) as text:
        real_model.attend_with(model, learner.grouped)
    report.say(
        f"in the real model, its 4 key-value heads made 2 by their means, the same text: {text!r}"
    )
