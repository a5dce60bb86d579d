"""Pipeline parallel: each process of a group holds some blocks of a decoder, and the residual
stream travels.

    first stage   embed, blocks 0 1 --x--> blocks 2 3 --x--> blocks 4 5, last norm, head, loss   last stage
                                   <--dx--           <--dx--

Micro-batches follow one another; once all stages have work each does one forward and one
backward pass in turn (1F1B: Narayanan et al. 2019, 2021). Weights of other stages stay here without
numbers. A tied table belongs to the first stage: the last one borrows it for a step and sends its
gradient home.

B batch, T tokens, C model dim, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..core import config
from ..core.errors import need
from ..core.nn import Model
from ..core.nn.cache import Cache
from ..core.nn.flow import Flow
from ..core.nn.model import Stack
from .layout import stage_blocks, stage_of
from .mesh import Mesh
from .place import Cut


def check(cfg: config.Model, stages: int) -> None:
    """UserError unless the blocks of this model can be shared out to so many stages."""
    fix = "leave parallel.pipeline out"
    plain = cfg.is_decoder and bool(cfg.stacks)
    need(plain, f"Only a decoder made of blocks can be cut in stages; {fix}.")
    stack: Any = cfg.decoder  # type: ignore[union-attr]
    blocks = f"{stack.depth} block{'s' * (stack.depth > 1)} of the decoder"
    too_many = f"parallel.pipeline {stages} is more stages than the {blocks}"
    need(stages <= stack.depth, f"{too_many}; give {stack.depth} at most.")
    only_head = cfg.head is not None and cfg.pool is None and cfg.token_head is None
    need(
        only_head,
        "A pipeline ends in a head over tokens, and this model has none or another "
        f"beside it; {fix}.",
    )
    one_table = not isinstance(stack.position, config.RelativeBias)
    need(
        one_table,
        f"Relative biases are one table that the blocks of all stages would train; {fix}.",
    )


class Stage:
    """This process's place in the pipeline: which ``blocks`` it computes, and what it tells the
    other stages."""

    def __init__(self, model: Any, mesh: Mesh, dtype: torch.dtype) -> None:
        self.mesh, self.dtype = mesh, dtype
        self.index, self.count = mesh.index("pipeline"), mesh.extent("pipeline")
        self.is_first = self.index == 0
        self.is_last = self.index == self.count - 1
        self.ranks = mesh.neighbours("pipeline")
        # NCCL does what one group is told in order: what goes back must not wait for what goes on
        self.on = mesh.group("pipeline")
        self.back = mesh.group("pipeline", again=True)
        self.blocks = stage_blocks(model.config.decoder.depth, self.count)[self.index]
        self.tied = model.head.proj.weight is None
        self.table: Tensor | None = None  # (V, C) the tied one, where it is borrowed
        self.sent: deque[tuple[Any, Tensor]] = deque()

    def send(self, x: Tensor, stage: int) -> None:
        """Begin to send ``x``, which is kept until it has arrived."""
        x = x.detach().contiguous()
        with self.mesh.watched():
            work = dist.isend(x, self.ranks[stage], self.on if stage > self.index else self.back)
            self.sent.append((work, x))
            # never more in 1F1B; a validation only goes forward
            while len(self.sent) > 2 * self.count:
                self.sent.popleft()[0].wait()

    def receive(self, shape: Any, stage: int, dtype: torch.dtype | None = None) -> Tensor:
        """The next tensor of this shape that another stage sends."""
        buffer = torch.empty(shape, dtype=dtype or self.dtype, device=self.mesh.device)
        with self.mesh.watched():
            dist.recv(buffer, self.ranks[stage], self.on if stage < self.index else self.back)
        return buffer

    def tell(self, logits: Tensor) -> Tensor:
        """The last stage's logits, on every stage: all choose the same token."""
        logits = logits.contiguous()
        with self.mesh.watched():
            dist.broadcast(logits, self.ranks[-1], self.on)
        return logits

    def lend_table(self, model: Any) -> None:
        """Lend the last stage the table that its head is tied to; before a step, a validation or a
        sample."""
        weight = model.embed.token.weight
        if self.tied and self.is_first:
            self.send(weight.full_tensor(), self.count - 1)
        if self.tied and self.is_last:
            shape = model.config.embed.vocab, model.config.dim
            self.table = self.receive(shape, 0, weight.dtype)
            self.table.requires_grad_(weight.requires_grad)

    def settle(self, model: Any) -> None:
        """Bring the gradient of a lent table home, after a step's last backward pass."""
        weight = model.embed.token.weight
        if self.tied and self.is_last and self.table is not None and self.table.grad is not None:
            self.send(self.table.grad, 0)
        if self.tied and self.is_first and weight.requires_grad:
            grad = weight.grad.to_local()
            grad.add_(self.receive(grad.shape, self.count - 1, grad.dtype))
        while self.sent:
            self.sent.popleft()[0].wait()


class StagedStack(Stack):
    """The blocks of one stage: the residual stream comes from the stage before and goes to the
    next."""

    stage: Stage

    def forward(self, x: Tensor, flow: Flow, cache: Cache | None = None) -> Tensor:
        stage = self.stage
        if stage.is_first:
            x = self.project_input(x, flow)
        else:
            shape = *x.shape[:2], self.dim
            x = _Receive.apply(x.new_zeros((), dtype=stage.dtype).requires_grad_(), stage, shape)  # type: ignore[no-untyped-call]
        for index in stage.blocks:
            x = self.blocks[index](
                x, flow, self.position, cache.layers[index] if cache is not None else None
            )
        if stage.is_last:
            return flow.look(self, "out", self.last_norm(x))
        out: Tensor = _Send.apply(x, stage)  # type: ignore[no-untyped-call]
        return out


class _Send(torch.autograd.Function):
    """To the next stage, whose gradient comes back; what is made of it here counts for nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stage: Stage) -> Tensor:
        ctx.stage, ctx.shape = stage, x.shape
        stage.send(x, stage.index + 1)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.stage.receive(ctx.shape, ctx.stage.index + 1), None


class _Receive(torch.autograd.Function):
    """From the stage before, to which the gradient goes; the first argument only asks for one."""

    @staticmethod
    def forward(ctx: Any, asks: Tensor, stage: Stage, shape: tuple[int, ...]) -> Tensor:
        ctx.stage = stage
        return stage.receive(shape, stage.index - 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        ctx.stage.send(grad, ctx.stage.index - 1)
        return None, None, None


def split_model(model: Model, mesh: Mesh, dtype: torch.dtype) -> dict[str, Cut]:
    """Leave this process its stage, in place, with a residual stream of ``dtype``; where each
    weight lies.

    Every stage calls the model on the same tokens: it gives the same logits on all, a loss (of
    ``token_loss``) on the last alone. Raises UserError: see ``check``.
    """
    check(model.config, mesh.extent("pipeline"))
    staged: Any = model  # of classes that its parts are given here
    stage = staged.stage = staged.decoder.stage = Stage(model, mesh, dtype)
    staged.decoder.__class__, staged.decoder.dim = StagedStack, model.config.dim
    if not stage.is_first:
        staged.embed.forward = lambda tokens, *args: tokens
    if stage.is_last:
        staged.head.register_forward_hook(lambda head, args, logits: stage.tell(logits))
        if stage.tied:
            staged.head.table = lambda embed: stage.table.to(dtype)  # type: ignore[union-attr]
    else:
        vocab = model.config.embed.vocab
        staged.head.prepare, staged.head.table = (lambda hidden: hidden), (lambda embed: None)
        staged.head.cross_entropy = lambda hidden, *args: hidden[:0].float().sum()
        staged.head.forward = lambda hidden, embed: stage.tell(
            hidden.new_empty(*hidden.shape[:-1], vocab)
        )
    cuts: dict[str, Cut] = {}
    for name, weight in [*model.named_parameters()]:
        size, is_local = (
            len(weight),
            stage_of(name, staged.config.decoder.depth, stage.count) == stage.index,
        )
        cuts[name] = Cut("pipeline", 0, 0, size if is_local else 0, size)
        if not is_local:
            home, _, leaf = name.rpartition(".")
            empty = nn.Parameter(cuts[name].of(weight.detach()).clone(), weight.requires_grad)
            setattr(model.get_submodule(home), leaf, empty)
    return cuts
