"""Mixture of experts: a router chooses and weighs the experts of each token.

    x (B, T, C) --router--> logits (+ noise) --softmax, top k--> weight, chosen (B, T, K)
      |                                                            |
      +--- a row for each choice, sorted by expert (P, C) <--------+
      |       +--- all rows by all weights in one product --> answers (P, C) --weighed, summed--> + --> write
      +--- the shared expert: every token ---------------------------------------------------> --+

N tokens (B * T), C model dim, H hidden, E experts, K chosen by each token, P choices that reach
their expert.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import config
from .attention import Look, unwatched
from .build import build, builds
from .flow import Flow, TracedModule
from .layers import ACTIVATIONS, autocast, linear

Total: TypeAlias = Callable[[Tensor], Tensor]
HIDDEN_NAMES = ("pre", "gate", "up", "hidden")  # what the tape may see between up and down


@builds(config.MoE)
class MoE(TracedModule):
    """Each token goes to its ``top_k`` experts and the ``shared`` one; only ``capacity`` drops.

    The experts' weights are stacked: up and gate (E, H, C), down (E, C, H), biases (E, H) and (E,
    C). ``flow.aux`` gets "balance" and "z" where they are weighed. While training, ``flow.metrics``
    gets of every mixture "load" (E), the share of the choices that fell on each expert, "entropy"
    of the router's shares (nats, a token's mean) and "dropped", the share of the choices that were
    over capacity. Padding goes nowhere, takes no capacity and counts nowhere.
    """

    writes = ("down",)
    biases = ("gate_bias", "up_bias", "down_bias")
    products, exact = ("gate", "up", "down"), ("router", "noise")

    def __init__(self, cfg: config.MoE, dim: int) -> None:
        super().__init__()
        experts, hidden = cfg.experts, cfg.expert.hidden
        gated, bias = isinstance(cfg.expert, config.GatedMLP), cfg.expert.bias
        self.cfg, self.act = cfg, ACTIVATIONS[cfg.expert.act]
        # of a sum over tokens: where their row lies on several processes, over all of these
        self.sum_over_ranks: Total = _identity
        self.router = linear(dim, experts, bias=False)
        self.noise = linear(dim, experts, bias=False) if cfg.noise else None
        self.gate = _table(gated, experts, hidden, dim)
        self.up = nn.Parameter(torch.empty(experts, hidden, dim))
        self.down = nn.Parameter(torch.empty(experts, dim, hidden))
        self.gate_bias = _table(gated and bias, experts, hidden)
        self.up_bias, self.down_bias = _table(bias, experts, hidden), _table(bias, experts, dim)
        self.shared = build(cfg.shared, dim) if cfg.shared is not None else None

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        x = flow.look(self, "in", x)
        logits = flow.look(self, "router", self.route(x))  # (B, T, E)
        weight, chosen = self.choose(logits)  # (B, T, K)
        weight, chosen = flow.look(self, "weight", weight), flow.look(self, "chosen", chosen)
        learning = self.training or torch.is_grad_enabled()
        alone = chosen.shape[:2] == (1, 1) and flow.contiguous and not learning
        # it asks for the experts by number: a GPU would be waited for
        if alone and x.is_cpu:
            write = self.decode(x, weight, chosen, flow)
        else:
            choices = self.dispatch(weight, chosen, flow)
            if self.training or self.cfg.balance_loss or self.cfg.z_loss:
                self.add_aux_losses(logits.flatten(0, 1), choices, flow)
            # seen in sorted rows alone
            slow = flow.engine == "eager" and not flow.watches(self, *HIDDEN_NAMES)
            write = self.reference(x, choices) if slow else self.grouped_forward(x, choices, flow)
        if self.shared is not None:
            write = write + self.shared(x, flow)
        return flow.look(self, "write", write)

    def route(self, x: Tensor) -> Tensor:
        """The logits (B, T, E), in fp32 at least, in training with noise (Shazeer et al. 2017)."""
        with torch.autocast(x.device.type, enabled=False):
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            logits = F.linear(wide, self.router.matrix().to(wide.dtype))
            if self.noise is not None and self.training:
                size = F.softplus(F.linear(wide, self.noise.matrix().to(wide.dtype)))
                logits = logits + torch.randn_like(logits) * size
        return logits

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, T, E) -> the weights and the numbers of each token's experts (B, T, K)."""
        router_probs = logits.softmax(-1)
        weight, chosen = router_probs.topk(self.cfg.top_k, dim=-1)
        return weight / weight.sum(-1, keepdim=True) if self.cfg.normalize else weight, chosen

    def dispatch(self, weight: Tensor, chosen: Tensor, flow: Flow) -> Dispatch:
        """Assigns each choice to an expert: padding to none, in training up to its capacity."""
        expert_index, is_token, experts = chosen.flatten(0, 1).mT, None, self.cfg.experts
        if not flow.contiguous:
            is_token = (flow.pos >= 0).expand(chosen.shape[:2]).flatten()
            expert_index = expert_index.where(is_token, experts)
        flat, capacity = expert_index.flatten(), None
        # asks no GPU
        expert_counts = flat.new_zeros(experts + 1).scatter_add_(0, flat, torch.ones_like(flat))[
            :experts
        ]
        if self.training and self.cfg.capacity_factor is not None:
            tokens = expert_counts.new_full((), expert_index.shape[1])
            if is_token is not None:
                tokens = is_token.sum()
            wide = torch.float32 if flat.is_mps else torch.float64  # MPS has no other
            share = self.cfg.top_k * self.cfg.capacity_factor * tokens.to(wide) / experts
            capacity = share.floor().long()
            capacity = (capacity + capacity % 2).clamp(min=4)  # even and at least 4, as in nanoMoE
        return Dispatch(expert_index, weight.flatten(0, 1).mT, expert_counts, is_token, capacity)

    def reference(self, x: Tensor, choices: Dispatch) -> Tensor:
        """The definition: a loop over experts, each with its tokens; x (B, T, C) -> (B, T, C)."""
        tokens = x.flatten(0, 1)
        write = torch.zeros_like(tokens, dtype=choices.weight.dtype)
        for expert in range(self.cfg.experts):
            # first choices, then second ones
            assignments = (choices.expert_index == expert).nonzero()
            if choices.capacity is not None:
                assignments = assignments[: int(choices.capacity)]
            slot, token = assignments.unbind(1)
            output = self.expert_output(expert, tokens[token]) * choices.weight[slot, token, None]
            write = write.index_add(0, token, output)
        return write.to(x.dtype).view_as(x)

    def decode(self, x: Tensor, weight: Tensor, chosen: Tensor, flow: Flow) -> Tensor:
        """One token x (1, 1, C) through its top-k experts only, without copying their matrices."""
        experts = chosen.flatten().tolist()

        def side(table: Tensor, bias: Tensor | None) -> Tensor:  # (1, 1, K, H)
            return torch.stack([self.product(expert, x, table, bias) for expert in experts], dim=2)

        gate = None if self.gate is None else side(self.gate, self.gate_bias)
        hidden = self.activation(side(self.up, self.up_bias), gate, partial(flow.look, self))
        write = torch.zeros_like(x, dtype=weight.dtype)
        for expert, slot in sorted(zip(experts, range(len(experts)), strict=True)):
            output = self.product(expert, hidden[:, :, slot], self.down, self.down_bias)
            write += output * weight[..., slot]
        return write.to(x.dtype)

    def expert_output(self, expert: int, x: Tensor) -> Tensor:
        gate = None if self.gate is None else self.product(expert, x, self.gate, self.gate_bias)
        hidden = self.activation(self.product(expert, x, self.up, self.up_bias), gate, unwatched)
        return self.product(expert, hidden, self.down, self.down_bias)

    def activation(self, up: Tensor, gate: Tensor | None, look: Look) -> Tensor:
        """Hidden units (..., H) from the products with ``up`` and ``gate``, recorded by name."""
        if gate is None:
            return look("hidden", self.act(look("pre", up)))
        return look("hidden", look("gate", self.act(look("pre", gate))) * look("up", up))

    def product(self, expert: int, x: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
        y = F.linear(x, table[expert])
        return y if bias is None else y + bias[expert]

    def grouped_forward(self, x: Tensor, choices: Dispatch, flow: Flow) -> Tensor:
        """Rows sorted by expert, so that each one's matrix is one product (grouped GEMM)."""
        tokens = x.flatten(0, 1)
        order, real, expert_counts = choices.rows(_step(x, self.cfg))
        token, weight = order % len(tokens), choices.weight.flatten().index_select(0, order)
        if real is not None:
            weight = weight * real

        def look(name: str, value: Tensor) -> Tensor:
            if not flow.watches(self, name):
                return value
            return self.look_at(name, value, order, real, x, flow)

        outputs = self.expert_forward(tokens.index_select(0, token), expert_counts, look)
        outputs = outputs * weight[:, None]
        return outputs.new_zeros(tokens.shape).index_add(0, token, outputs).to(x.dtype).view_as(x)

    def expert_forward(self, rows: Tensor, sizes: Tensor, look: Look) -> Tensor:
        """Output (P, C) of each expert for its rows: the first sizes[0] are expert 0's."""
        gate = None if self.gate is None else grouped(rows, self.gate, self.gate_bias, sizes)
        hidden = self.activation(grouped(rows, self.up, self.up_bias, sizes), gate, look)
        return grouped(hidden, self.down, self.down_bias, sizes)

    def look_at(
        self, name: str, rows: Tensor, order: Tensor, real: Tensor | None, x: Tensor, flow: Flow
    ) -> Tensor:
        """Sorted rows (P, H) shown as each token's own (B, T, K, H), zeros for dropped choices."""
        B, T, K = *x.shape[:2], self.cfg.top_k
        index, values = (order, rows) if real is None else (order[real], rows[real])
        by_token = rows.new_zeros(K * B * T, rows.shape[1]).index_copy(0, index, values)
        by_token = flow.look(self, name, by_token.view(K, B, T, -1).permute(1, 2, 0, 3))
        return by_token.permute(2, 0, 1, 3).flatten(0, 2).index_select(0, order)

    def add_aux_losses(self, logits: Tensor, choices: Dispatch, flow: Flow) -> None:
        """Losses and metrics: load balancing (Fedus et al. 2021), router z (Zoph et al. 2022)."""
        is_token = choices.is_token
        normal = logits.logsumexp(-1)  # (N,)
        probs = (logits - normal[:, None]).exp()
        expert_counts = self.sum_over_ranks(choices.expert_counts)
        mean = partial(_mean, is_token=is_token, total=self.sum_over_ranks)
        total = expert_counts.sum().clamp(min=1)
        load = expert_counts / total
        if self.cfg.balance_loss:
            balance = (load * mean(probs)).sum()
            flow.add_loss("balance", self.cfg.balance_loss * self.cfg.experts * balance)
        if self.cfg.z_loss:
            flow.add_loss("z", self.cfg.z_loss * mean(normal.square()))
        if self.training:
            flow.add_metric("load", load)
            flow.add_metric("entropy", mean(normal - (probs * logits).sum(-1)))
            taken = self.sum_over_ranks(choices.expert_load.sum())
            flow.add_metric("dropped", 1 - taken / total)


@dataclass
class Dispatch:
    """Assignment of tokens to experts, slot by slot: ``expert_index`` (K, N), E for none.

    ``weight`` (K, N) is the router's; ``expert_counts`` (E,) are the choices that fell on each
    expert, of which it takes the first ``capacity``; ``is_token`` (N,) is false where a token is
    padding (None: there is none).
    """

    expert_index: Tensor
    weight: Tensor
    expert_counts: Tensor
    is_token: Tensor | None
    capacity: Tensor | None

    @property
    def expert_load(self) -> Tensor:
        if self.capacity is None:
            return self.expert_counts
        return self.expert_counts.minimum(self.capacity)

    def rows(self, step: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Indices (P,) into the flat choices, by expert; which are real (P,); rows of each expert.

        An expert's rows are made up to a multiple of ``step`` by its last one again, which is not
        real (None: all are).
        """
        order = self.expert_index.flatten().argsort(stable=True)
        if step == 1 and self.is_token is None and self.capacity is None:
            return order, None, self.expert_counts
        if not order.is_cpu:
            return self._every_row(order)
        filled = (self.expert_load + step - 1) // step * step
        expert = torch.repeat_interleave(filled)  # (P,)
        rank = torch.arange(len(expert), device=order.device) - (filled.cumsum(0) - filled)[expert]
        last = self.expert_load[expert] - 1
        first = (self.expert_counts.cumsum(0) - self.expert_counts)[expert]
        return order[first + rank.minimum(last)], rank <= last, filled

    def _every_row(self, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``rows`` on a GPU, which is not asked how many there are: all, by the last expert."""
        expert = self.expert_index.flatten()[order]
        row_counts = F.pad(self.expert_counts, (0, 1))
        # those that go nowhere are sorted to the end
        row_counts[-1] = len(order) - self.expert_counts.sum()
        first = (row_counts.cumsum(0) - row_counts)[expert]
        rank = torch.arange(len(order), device=order.device) - first
        real = rank < F.pad(self.expert_load, (0, 1))[expert]
        return order, real, torch.cat((row_counts[:-2], row_counts[-2:].sum(0, keepdim=True)))


def _step(x: Tensor, cfg: config.MoE) -> int:
    """oneDNN compiles a program for each new bf16 shape: few shapes, at some more rows."""
    if not x.is_cpu or x.dtype != torch.bfloat16:
        return 1
    # a power of two, at most a sixteenth of an expert's mean share: rounding up adds 6 % of rows at
    # most, on average
    return 1 << max(0, int(math.log2(max(1, x[..., 0].numel() * cfg.top_k // cfg.experts // 16))))


def grouped(rows: Tensor, table: Tensor, bias: Tensor | None, expert_counts: Tensor) -> Tensor:
    """Rows (P, C), the first counts[0] times table[0]^T and so on: table (E, H, C) -> (P, H)."""
    rows, table, bias = autocast(rows, table, bias)
    if _kernel(rows, table):
        y = F.grouped_mm(rows, table.mT, offs=expert_counts.cumsum(0).int())
    else:
        pairs = zip(torch.split(rows, expert_counts.tolist()), table.unbind(), strict=True)
        y = torch.cat([F.linear(chunk, weight) for chunk, weight in pairs])
    return y if bias is None else y + bias.repeat_interleave(expert_counts, 0, output_size=len(y))


def _kernel(rows: Tensor, table: Tensor) -> bool:
    """True where torch has a grouped product: 16-byte rows, bf16 on CUDA, or fp32 on a CPU."""
    if hasattr(table, "quantized_data"):  # quantized: it has a product of its own
        return False
    kinds = (torch.bfloat16, torch.float32) if rows.is_cpu else (torch.bfloat16,)
    aligned = all(size * rows.element_size() % 16 == 0 for size in table.shape[1:])
    return (
        rows.dtype in kinds
        and rows.device.type in ("cpu", "cuda", "meta")
        and aligned
        and len(rows) > 0
    )


def _identity(x: Tensor) -> Tensor:
    return x


def _mean(values: Tensor, is_token: Tensor | None, total: Total) -> Tensor:
    """The mean of values (N, ..) over the tokens that are not padding."""
    if is_token is None and total is _identity:
        return values.mean(0)
    if is_token is None:
        is_token = values.new_ones(len(values), dtype=torch.bool)
    token_mask = is_token.view(-1, *[1] * (values.ndim - 1))
    return total(values.masked_fill(~token_mask, 0.0).sum(0)) / total(is_token.sum()).clamp(min=1)


def _table(enabled: bool, *shape: int) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(shape)) if enabled else None
