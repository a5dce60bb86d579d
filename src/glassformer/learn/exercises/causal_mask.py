"""The causal mask

A model that learns to say the next word must not see it. So a token sees itself and what stands
before it, and nothing that comes after: in `LLM #s are cool .` the word "are" sees the first three.
The mask is a table of booleans: a row for each query, a column for each key, True where the query
may look.

A model that goes on writing keeps the keys of earlier tokens (a KV cache, page 9), so that the new
tokens are few and the keys are many: the T queries are then the *last* T of the S places. So query
i stands at place S - T + i.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 4.2
HINTS = (
    "Compare two rows of numbers: the places of the queries as a column, those of the keys as a "
    "row.",
    "torch.arange(keys)[None, :] <= places[:, None], where places are those of the queries.",
    "The first query stands at keys - queries: places = torch.arange(keys - queries, keys).",
)

# %% yours
import torch
from torch import Tensor


def causal_mask(queries: int, keys: int) -> Tensor:
    """Booleans (queries, keys): True where the query may see the key; the queries are the last of
    the keys."""
    # TODO: a key may be seen if its place is not after the query's
    places = torch.arange(keys - queries, keys)
    return torch.arange(keys)[None, :] <= places[:, None]
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    for queries, keys in ((5, 5), (1, 7), (3, int(report.randint(4, 12, (1,))))):
        behind = torch.arange(keys)[None] - torch.arange(keys - queries, keys)[:, None]
        slips = {
            "one off: a token sees itself too, so the comparison is <=, not <": behind < 0,
            "one off the other way: a token must not see the one after it": behind <= 1,
            "the places of the queries: they are the last ones, keys - queries and on, not 0 and on": torch.arange(
                keys
            )[None]
            <= torch.arange(queries)[:, None],
            "the direction: this shows what comes after, and hides what came before": behind >= 0,
            "the meaning: True is for what may be seen (PyTorch's attn_mask of a module has it "
            "the other way)": behind > 0,
        }
        report.equal(
            f"causal_mask({queries}, {keys})",
            learner.causal_mask(queries, keys),
            behind <= 0,
            slips=slips,
        )
    report.say(
        "the third word sees three, the first sees one; one query after a cache of 6 sees all 7"
    )

    model, tokenizer = real_model.real()

    def attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        mask = learner.causal_mask(q.shape[1], k.shape[1])
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    name = "the text that our model writes with your mask"
    with report.same(name, lambda: real_model.greedy(model, tokenizer)):
        real_model.attend_with(model, attend)
    report.say("in the real model the same text")
