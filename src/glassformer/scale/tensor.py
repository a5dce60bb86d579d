"""Tensor parallel: each process of a group holds a part of each matrix (Shoeybi et al. 2019,
Megatron-LM).

    x --enter--> q k v, gate up (columns: some heads, some of the hidden) --> out, down (rows)
    --leave--> sum

One table says how a config's type is cut; what is not in it is whole on every process, and computed
by each. ``nn`` is left as it is: layers change their class in place, so that parameters keep their
names.

T parts, V vocabulary here, N rows, C model dim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from ..core import config
from ..core.errors import need
from ..core.nn import Model
from ..core.nn.build import kind_of
from ..core.nn.experts import Dispatch, MoE
from ..core.nn.flow import Flow
from ..core.nn.layers import Projection
from ..fast.quantized import QuantizedWeight
from .adapted import LAYERS, Collective
from .collectives import enter, leave, summed
from .place import Cut


@dataclass(frozen=True)
class SplitRule:
    """Rule that splits a module: layers by ``columns`` (outputs) and ``rows`` (inputs), parameters
    by a dimension.

    ``uncut`` are submodules whose parameters are whole but work on what is cut; ``check`` refuses
    (config, size) that do not divide; ``change`` is called with (module, size, rank, group).
    """

    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    parameters: Mapping[str, int] = field(default_factory=dict)
    uncut: tuple[str, ...] = ()
    check: Callable[[Any, int], None] = lambda cfg, size: None
    change: Callable[[Any, int, int, ProcessGroup], None] = lambda module, size, rank, group: None


def _heads(cfg: config.Attention, size: int) -> None:
    kv = cfg.kv_heads or cfg.heads
    need(
        not cfg.qk_norm_whole,
        "A norm of all heads at once takes parallel.tensor = 1; leave it out.",
    )
    fits = cfg.heads % size == 0 and kv % size == 0
    heads = f"{cfg.heads} heads over {kv} of keys and values"
    need(
        fits,
        f"An attention of {heads} cannot be cut in parallel.tensor {size}; give a divisor of both.",
    )


def _hidden(cfg: config.MLP | config.GatedMLP, size: int) -> None:
    need(
        cfg.hidden >= size,
        f"{type(cfg).__name__}.hidden {cfg.hidden} is below parallel.tensor {size}; lower that.",
    )


class HeadShard(NamedTuple):
    """The heads from ``first`` on, of ``total_heads``: each process draws for all."""

    first: int
    total_heads: int

    def draw_shard(self, x: Tensor, draw: Callable[[Tensor], Tensor]) -> Tensor:
        """The numbers of the heads in x (B, H, ..), where ``draw`` draws those of all heads."""
        full = draw(x.new_empty(()).expand(x.shape[0], self.total_heads, *x.shape[2:]))
        return full.narrow(1, self.first, x.shape[1])

    def attend(self, inputs: Any, dense: Tensor | None) -> Tensor:
        """PyTorch's attention with dropout on a CPU, written out (B, H, T, D): its kernel takes no
        shard of the random numbers. ``dense``: a mask of booleans, or what is added to scores."""
        k, v = (x.repeat_interleave(inputs.group_size, 1) for x in (inputs.k, inputs.v))
        scores = inputs.q @ k.mT * inputs.scale
        if dense is None and inputs.mask.fast_path == "causal":
            dense = inputs.mask.dense()
        if dense is not None and dense.dtype == torch.bool:
            scores = scores.masked_fill(~dense, float("-inf"))
        elif dense is not None:
            scores = scores + dense
        keep = self.draw_shard(
            scores, lambda full: torch.empty_like(full).bernoulli_(1 - inputs.dropout)
        )
        result: Tensor = (scores.softmax(-1) * keep / (1 - inputs.dropout)) @ v
        return result


def _cut_heads(module: Any, size: int, rank: int, group: ProcessGroup) -> None:
    module.head_shard = HeadShard(rank * module.heads // size, module.heads)
    module.heads, module.kv_heads = module.heads // size, module.kv_heads // size


def _cut_slopes(module: Any, size: int, rank: int, group: ProcessGroup) -> None:
    module.slopes = module.slopes[slice(*bounds(len(module.slopes), size, rank))]


def _cut_table(module: Any, size: int, rank: int, group: ProcessGroup) -> None:
    module.token.__class__ = CutTable
    module.token.first = bounds(module.token.num_embeddings, size, rank)[0]
    module.token.leave = lambda x: leave(x, group)


def _cut_head(module: Any, size: int, rank: int, group: ProcessGroup) -> None:
    vocab = module.proj.vocab
    low, high = bounds(vocab, size, rank)
    need(
        type(module.proj) is Projection,
        "An adapter beside the head takes parallel.tensor = 1; leave it out.",
    )
    module.proj.__class__ = CutProjection
    module.proj.beside = low, vocab - high
    module.proj.enter, module.proj.leave = (lambda x: enter(x, group)), (lambda x: leave(x, group))
    module.cross_entropy = lambda *args, **named: cross_entropy(group, *args, **named)


def _cut_experts(module: Any, size: int, rank: int, group: ProcessGroup) -> None:
    module.__class__ = CutExperts
    module.enter, module.leave = (lambda x: enter(x, group)), (lambda x: leave(x, group))
    if module.down_bias is not None:  # added once: by the first
        module.shown = {"down_bias": lambda bias: enter(bias, group) * (rank == 0)}
        _show(module)


TABLE: dict[type, SplitRule] = {
    config.Attention: SplitRule(
        ("q", "k", "v"), ("out",), uncut=("q_norm", "k_norm"), check=_heads, change=_cut_heads
    ),
    config.MLP: SplitRule(("up",), ("down",), check=_hidden),
    config.GatedMLP: SplitRule(("gate", "up"), ("down",), check=_hidden),
    config.MoE: SplitRule(
        parameters={"gate": 1, "up": 1, "down": 2, "gate_bias": 1, "up_bias": 1},
        check=lambda cfg, size: _hidden(cfg.expert, size),
        change=_cut_experts,
    ),
    config.RelativeBias: SplitRule(parameters={"weight": 1}),
    config.Alibi: SplitRule(change=_cut_slopes),
    config.Embed: SplitRule(parameters={"token.weight": 0}, change=_cut_table),
    config.Head: SplitRule(parameters={"proj.weight": 0, "proj.bias": 0}, change=_cut_head),
}
"""The cut of each config type. A part of a user's own says ``columns``, ``rows`` and
``parameters`` in its class."""


def bounds(size: int, shards: int, rank: int) -> tuple[int, int]:
    """The first of a process's share of ``size``, and the one after its last; shares differ by one
    at most."""
    return size * rank // shards, size * (rank + 1) // shards


def check(cfg: config.Model, size: int) -> None:
    """UserError unless the model can be cut in so many parts."""
    alone = "set parallel.tensor = 1"
    looped = any(hasattr(stack, "passes") for stack in cfg.stacks.values())
    need(not looped, f"A block that is passed again is not cut; {alone}.")
    apart = type(cfg.embed) in TABLE or cfg.head is None or not cfg.head.tied
    need(
        apart,
        f"A tied head is not cut where its table is in a {type(cfg.embed).__name__}; {alone}.",
    )
    configs: list[Any] = [cfg.embed, cfg.head]
    for block in (block for stack in cfg.stacks.values() for block in stack.pattern):
        configs += [
            block.attention,
            block.cross,
            block.feedforward,
            getattr(block.feedforward, "shared", None),
        ]
    for part_config in configs:
        if type(part_config) in TABLE:
            TABLE[type(part_config)].check(part_config, size)
    need(
        cfg.embed.vocab >= size,
        f"The vocabulary of {cfg.embed.vocab} is below parallel.tensor {size}; lower that.",
    )


def split_model(model: Model, group: ProcessGroup) -> dict[str, Cut]:
    """Leave this process its part of each matrix, in place; which parameters were cut, and how.

    Gradients of the others are whole, and the same on all processes. Raises UserError for what does
    not divide, and for layers of few bits.
    """
    check(model.config, group.size())
    cuts: dict[str, Cut] = {}
    for path, module in [*model.named_modules()]:
        split = _split_of(module)
        if split is None:
            continue
        for name in (*split.columns, *split.rows):
            layer = getattr(module, name)
            kind = LAYERS.get((type(layer), name in split.columns))
            plain = kind is not None and not isinstance(layer.weight, QuantizedWeight)
            need(
                plain,
                f"{path}.{name} is no plain layer; quantized weights take parallel.tensor = 1.",
            )
            layer.__class__ = kind
            layer.enter, layer.leave = (lambda x: enter(x, group)), (lambda x: leave(x, group))
            layer.low, layer.many = (
                bounds(layer.in_features, group.size(), group.rank())[0],
                layer.in_features,
            )
        named = {f"{name}.weight": 0 for name in split.columns} | {
            f"{name}.bias": 0 for name in split.columns
        }
        named |= {f"{name}.weight": 1 for name in split.rows} | dict(split.parameters)
        # LoRA's
        named |= {f"{name}.up": 0 for name in split.columns} | {
            f"{name}.down": 1 for name in split.rows
        }
        for name, dim in named.items():
            *inside, last = name.split(".")
            owner = module.get_submodule(".".join(inside))
            weight = getattr(owner, last, None)
            if weight is None:
                continue
            cut = Cut(
                "tensor",
                dim,
                *bounds(weight.shape[dim], group.size(), group.rank()),
                weight.shape[dim],
            )
            local = cut.of(weight.detach()).clone(memory_format=torch.contiguous_format)
            setattr(owner, last, nn.Parameter(local, weight.requires_grad))
            cuts[f"{path}.{name}" if path else name] = cut
        for child in (getattr(module, name) for name in split.uncut):
            if child is not None:
                child.shown = {
                    name: lambda weight: enter(weight, group)
                    for name, _ in child.named_parameters()
                }
                _show(child)
        split.change(module, group.size(), group.rank(), group)
    return cuts


def _split_of(module: nn.Module) -> SplitRule | None:
    kind = kind_of(module)
    if kind in TABLE:
        return TABLE[kind]
    columns, rows = (getattr(type(module), name, ()) for name in ("columns", "rows"))
    return SplitRule(columns, rows) if columns or rows else None


def _show(module: nn.Module) -> None:
    """While it computes, let a module see its parameters through the functions that it has in
    ``shown``."""

    def install(module: Any, args: Any) -> None:
        module.__dict__.update(
            {name: see(module._parameters[name]) for name, see in module.shown.items()}
        )

    def end(module: Any, args: Any, output: Any) -> None:
        for name in module.shown:
            module.__dict__.pop(name, None)

    module.register_forward_pre_hook(install)
    module.register_forward_hook(end, always_call=True)


# --------------------------------------------------------------------------------------- layers,
# class by class


class CutTable(nn.Embedding):
    """An embedding of which each process has some tokens, from ``first`` on."""

    first: int
    leave: Collective

    def forward(self, tokens: Tensor) -> Tensor:
        place = tokens - self.first
        is_local = (place >= 0) & (place < len(self.weight))
        return self.leave(F.embedding(place.where(is_local, 0), self.weight) * is_local[..., None])


class CutProjection(Projection):
    """Hidden states times some tokens' rows of the table on each process, put side by side."""

    enter: Collective
    leave: Collective
    beside: tuple[int, int]  # tokens before and after

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return self.leave(F.pad(F.linear(self.enter(x), table, self.bias), self.beside))


class CutExperts(MoE):
    """Experts of which each process has a part of the hidden; the router is whole, and chooses the
    same on all."""

    enter: Collective
    leave: Collective

    def grouped_forward(self, x: Tensor, choices: Dispatch, flow: Flow) -> Tensor:
        return self.leave(super().grouped_forward(self.enter(x), self.weighed(choices), flow))

    def reference(self, x: Tensor, choices: Dispatch) -> Tensor:
        return self.leave(super().reference(self.enter(x), self.weighed(choices)))

    def decode(self, x: Tensor, weight: Tensor, chosen: Tensor, flow: Flow) -> Tensor:
        return self.leave(super().decode(x, weight, chosen, flow))

    def weighed(self, choices: Dispatch) -> Dispatch:
        return dataclasses.replace(choices, weight=self.enter(choices.weight))


# ---------------------------------------------------------------------------------- the loss of a
# cut vocabulary


def cross_entropy(
    group: ProcessGroup,
    hidden: Tensor,
    targets: Tensor,
    table: Tensor,
    bias: Tensor | None = None,
    softcap: float | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """``training.loss.cross_entropy`` where each process has some rows of ``table`` (V, C): no
    process has all logits.

    hidden (N, C) and targets (N,), -1 not counted, are the same on all; so is the sum that comes
    out.
    """
    args = (enter(hidden, group), table, bias, targets, softcap, smoothing, group)
    loss: Tensor = _CutLoss.apply(*args)  # type: ignore[no-untyped-call]
    return loss


AT_ONCE = 1 << 26
"""Logits here up to this many are held at once."""


class _CutLoss(torch.autograd.Function):
    """Fused head and loss of a split vocabulary: logits turn into their gradient in place; maximum,
    sum and target logit are all-reduced."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        softcap: float | None,
        smoothing: float,
        group: ProcessGroup,
    ) -> Tensor:
        sizes = summed(F.one_hot(torch.tensor(group.rank()), group.size()) * len(table), group)
        first = int(sizes[: group.rank()].sum())
        vocab = int(sizes.sum())
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = hidden.new_zeros((), dtype=wide)
        rows = max(1, AT_ONCE // len(table))
        to_hidden, to_table = torch.empty_like(hidden), torch.zeros_like(table, dtype=wide)
        to_bias = None if bias is None else torch.zeros_like(bias, dtype=wide)
        for start in range(0, len(hidden), rows):
            chunk, chunk_targets = hidden[start : start + rows], targets[start : start + rows]
            scores = F.linear(chunk, table, bias).to(wide)
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            peak = scores.amax(-1)
            dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
            place = chunk_targets - first
            is_local = (place >= 0) & (place < len(table)) & (chunk_targets >= 0)
            place = place.where(is_local, 0)[:, None]
            grad = (scores - peak[:, None]).exp()
            at_target = scores.gather(1, place)[:, 0] * is_local
            denominator, at_target, mean = summed(
                torch.stack((grad.sum(-1), at_target, scores.sum(-1) / vocab)), group
            )
            loss = denominator.log() + peak - (1 - smoothing) * at_target - smoothing * mean
            total += loss.masked_fill(chunk_targets < 0, 0.0).sum()
            grad = grad / denominator[:, None] - smoothing / vocab
            grad.scatter_add_(1, place, -(1 - smoothing) * is_local[:, None].to(wide))
            if softcap is not None:
                grad *= 1 - (scores / softcap).square()
            grad = grad.masked_fill_((chunk_targets < 0)[:, None], 0.0)
            if to_bias is not None:
                to_bias += grad.sum(0)
            grad = grad.to(hidden.dtype)
            torch.mm(grad, table, out=to_hidden[start : start + rows])
            to_table += grad.mT @ chunk
        ctx.save_for_backward(
            to_hidden,
            to_table.to(table.dtype),
            None if to_bias is None else to_bias.to(table.dtype),
        )
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        grads = (
            None if grad is None else grad * scale.to(grad.dtype) for grad in ctx.saved_tensors
        )
        return *grads, None, None, None, None
