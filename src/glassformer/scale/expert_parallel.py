"""Expert parallel: each process of a group holds some experts of every mixture, whole, and tokens
travel to them.

    router (whole, own tokens) -> rows sorted by expert --exchange--> their experts think
    --exchange--> back

Each process works on rows of its own, so what the router counts (balance, capacity) is counted as
alone. The gradients of experts are then sums over the group's tokens; those of everything else are
of the own tokens.

E experts, e experts here, P choices made here, Q choices that arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ..core import config
from ..core.errors import need
from ..core.nn import Model
from ..core.nn.attention import Look, unwatched
from ..core.nn.experts import HIDDEN_NAMES, Dispatch, MoE
from ..core.nn.flow import Flow
from .collectives import exchange
from .place import Cut

TABLES = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")


def check(cfg: config.Model, size: int) -> None:
    """UserError unless the model has mixtures, and their experts can be shared out to so many
    processes."""
    blocks = [block for stack in cfg.stacks.values() for block in stack.pattern]
    mixtures = [block.feedforward for block in blocks if isinstance(block.feedforward, config.MoE)]
    need(
        len(mixtures) > 0,
        f"parallel.expert is {size} and the model has no mixture of experts; leave it out.",
    )
    for mixture in mixtures:
        fits = mixture.experts % size == 0
        need(
            fits,
            f"{mixture.experts} experts cannot be shared out to parallel.expert {size}; "
            "give a divisor.",
        )


def split_model(model: Model, group: ProcessGroup) -> dict[str, Cut]:
    """Leave this process its experts of each mixture, in place; which parameters were cut.
    UserError: see ``check``."""
    check(model.config, group.size())
    cuts: dict[str, Cut] = {}
    for path, module in model.named_modules():
        if isinstance(module, MoE):
            mixture: Any = module  # it chooses and activates as its own class does
            mixture.__class__ = type(type(module).__name__, (SharedExperts, type(module)), {})
            share = module.cfg.experts // group.size()
            cut = Cut(
                "expert", 0, group.rank() * share, (group.rank() + 1) * share, module.cfg.experts
            )
            mixture.travel = lambda rows, send, receive: exchange(rows, send, receive, group)
            mixture.exchange_counts = lambda rows_per_expert: _exchange_counts(
                rows_per_expert, group
            )
            for name in TABLES:
                weight = getattr(module, name)
                if weight is not None:
                    setattr(
                        module,
                        name,
                        nn.Parameter(cut.of(weight.detach()).clone(), weight.requires_grad),
                    )
                    cuts[f"{path}.{name}"] = cut
    return cuts


def _exchange_counts(rows_per_expert: Tensor, group: ProcessGroup) -> Tensor:
    """Exchanges row counts: rows sent to each expert (processes, e) -> rows that arrive from each
    process for each expert here."""
    received = torch.empty_like(rows_per_expert)
    dist.all_to_all_single(received, rows_per_expert.contiguous(), group=group)
    return received


class SharedExperts(MoE):
    """A mixture of which this process has some experts; all processes of the group compute it
    together."""

    travel: Callable[[Tensor, list[int], list[int]], Tensor]
    exchange_counts: Callable[[Tensor], Tensor]

    def expert_forward(self, rows: Tensor, rows_per_expert: Tensor, look: Look) -> Tensor:
        leaving = rows_per_expert.view(-1, len(self.up))  # (processes, e)
        coming = self.exchange_counts(leaving)
        send, receive = leaving.sum(1).tolist(), coming.sum(1).tolist()
        expert = torch.arange(len(self.up), device=rows.device).repeat(len(coming))
        # (Q,)
        order = expert.repeat_interleave(coming.flatten(), output_size=sum(receive)).argsort(
            stable=True
        )
        came = self.travel(rows, send, receive)
        answers = super().expert_forward(came[order], coming.sum(0), unwatched)
        return self.travel(torch.empty_like(answers).index_copy(0, order, answers), receive, send)

    def grouped_forward(self, x: Tensor, choices: Dispatch, flow: Flow) -> Tensor:
        is_watched = flow.watches(self, *HIDDEN_NAMES)
        need(
            not is_watched,
            f"The experts of {self.path} lie on several processes; look into them "
            "with one process.",
        )
        return super().grouped_forward(x, choices, flow)

    def reference(self, x: Tensor, choices: Dispatch) -> Tensor:
        return self.grouped_forward(x, choices, Flow(choices.expert_index[:1]))

    def decode(self, x: Tensor, weight: Tensor, chosen: Tensor, flow: Flow) -> Tensor:
        return self.grouped_forward(x, self.dispatch(weight, chosen, flow), flow)
