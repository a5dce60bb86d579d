"""Ring attention: each process of a group holds some columns of every row, and keys and values
travel round.

    process 0 of 2   columns 0 1 . . . . 6 7      zig-zag: one piece from the front, one from the back of the row, so
    process 1        . . 2 3 4 5 . .              that under a causal mask all have as many pairs to compute

    forward    for each shard of k, v that comes by: out and lse over its keys, merged (Liu et al. 2023)
    backward   k, v go round again, with their gradients; P = exp(S - lse) by the lse over all keys

Positions tell the truth, so packed documents, windows, strides, prefixes, padding and
cross-attention need no code of their own: there is one Mask for each neighbour's keys, and
``block_sparse`` computes the blocks that it leaves.

B batch, T columns here, S keys here, H heads, K key-value heads, D head dim; the other letters as
in block_mask.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import reduce
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import P2POp, ProcessGroup, Work

from ..core import config
from ..core.config.mask import ring_pieces
from ..core.errors import UserError, need
from ..core.nn import Model
from ..core.nn.attention import AttentionEngine, AttentionInputs
from ..core.nn.experts import MoE
from ..core.nn.flow import Flow
from ..core.nn.layers import Embed, previous_tokens
from ..core.nn.mask import Mask
from ..fast.block_mask import MASKED, BlockMask, block_masks
from ..fast.block_sparse import BlockSparseCall, merge_attention, row_delta
from .collectives import every, total

B = TypeVar("B")
Moving: TypeAlias = tuple[Tensor, list[Work]]
# of columns that fill a row up; -1 for the others
FILL = {"tokens": 0, "segments": 0, "source": 0, "prefix": 0}


def check(cfg: config.Model, training: bool = True) -> None:
    """UserError unless rows of this model may lie on several processes."""
    fix = "train it with parallel.context = 1"
    for name in cfg.recurrent:
        raise UserError(
            f"The {name} is recurrent: it reads a row from one end to the other on "
            f"one process; {fix}."
        )
    need(
        not (training and cfg.pool),
        f"A pool makes one vector of a whole row, which lies on several processes; {fix}.",
    )
    for block in (block for stack in cfg.stacks.values() for block in stack.pattern):
        need(
            isinstance(block.attention, config.Attention)
            and getattr(block.attention, "has_pages", True),
            f"{type(block.attention).__name__} reads a row from one end to the other on one "
            f"process; {fix}.",
        )
        capped = (
            training
            and isinstance(block.feedforward, config.MoE)
            and block.feedforward.capacity_factor
        )
        need(
            not capped,
            "An expert's capacity counts the tokens of a whole row; leave "
            f"capacity_factor out, or {fix}.",
        )


class Ring:
    """The processes of ``group``, which hold the columns of each row; ``attach`` makes a model
    compute with them."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.rank = group.rank()
        self.size = group.size()
        self.engine = AttentionEngine("ring", self.attend, lambda inputs: True, lambda inputs: True)
        around = ((self.rank + step) % self.size for step in (1, -1))
        self.next, self.previous = (dist.get_global_rank(group, rank) for rank in around)
        self._masks: WeakKeyDictionary[Mask, list[list[BlockMask]]] = WeakKeyDictionary()

    def __deepcopy__(self, memo: Any) -> Ring:
        """Itself: a model's copy stands in the same ring."""
        return self

    def attach(self, model: Model, training: bool = True) -> Callable[[], None]:
        """Compute every attention of ``model`` round the ring, and what else looks beyond a shard
        over all of it.

        What is given back undoes it. Raises UserError for a model that reads rows from end to end
        (recurrent parts, pools, an expert's capacity).
        """
        check(model.config, training)
        mixtures = [
            (module, module.sum_over_ranks) for module in model.modules() if isinstance(module, MoE)
        ]
        embeddings = [
            module for module in model.modules() if isinstance(module, Embed) and len(module.lag)
        ]
        before, model.engine = model.engine, self.engine
        for mixture, _ in mixtures:
            # a function: it is not copied with the model
            mixture.sum_over_ranks = lambda x: total(x, self.group)
        hooks = [module.register_forward_pre_hook(self._halo) for module in embeddings]

        def detach() -> None:
            model.engine = before
            for mixture, total_fn in mixtures:
                mixture.sum_over_ranks = total_fn
            for hook in hooks:
                hook.remove()

        return detach

    # ------------------------------------------------------------------------------------------------
    # columns

    def columns(self, length: int) -> Tensor:
        """Which columns of rows of ``length``, a multiple of 2 * size, lie here: pieces ``rank``
        and, from the back."""
        return torch.tensor(
            [column for piece in ring_pieces(length, self.size)[self.rank] for column in piece]
        )

    def cut(self, x: Tensor, fill: int = -1) -> Tensor:
        """The columns of x (B, T, ..) that lie here, after filling rows up to a multiple of 2 *
        size."""
        missing = -x.shape[1] % (2 * self.size)
        if missing:
            x = torch.cat((x, x.new_full((len(x), missing, *x.shape[2:]), fill)), 1)
        return x[:, self.columns(x.shape[1]).to(x.device)]

    def join(self, x: Tensor) -> Tensor:
        """The whole rows (B, T, ..) of which each process has some columns; no gradient."""
        pieces = [piece for shard in every(x, self.group) for piece in shard.chunk(2, 1)]
        order = [piece for rank in range(self.size) for piece in (rank, 2 * self.size - 1 - rank)]
        return torch.cat(
            [
                piece
                for _, piece in sorted(zip(order, pieces, strict=True), key=lambda pair: pair[0])
            ],
            1,
        )

    def shard(self, batch: B) -> B:
        """The columns of a training batch that lie here; UserError for labels, which belong to
        whole documents."""
        fields: dict[str, Any] = vars(batch)
        need(
            fields.get("labels") is None,
            "Labels belong to whole documents; train them with parallel.context = 1.",
        )
        tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
        for name, pos in (("tokens", "pos"), ("source", "source_pos")):
            if name in tensors and pos not in tensors:
                tensors[pos] = torch.arange(
                    tensors[name].shape[1], device=tensors[name].device
                ).expand_as(tensors[name])
        local = {name: self.cut(tensor, FILL.get(name, -1)) for name, tensor in tensors.items()}
        if fields.get("host") is not None:  # it has whole rows
            local["host"] = None  # type: ignore[assignment]
        return dataclasses.replace(batch, **local)  # type: ignore[type-var]

    def _halo(self, embed: Embed, args: tuple[Any, ...]) -> None:
        """The tokens before each one, which may lie on another process."""
        tokens, flow = args[:2]
        full_rows = self.join(tokens)
        row = Flow(self.join(flow.pos.expand_as(tokens)))
        before = [
            previous_tokens(full_rows, row, back, nothing=-1)
            for back in range(1, len(embed.lag) + 1)
        ]
        flow.previous = self.cut(torch.stack(before, -1))

    # ----------------------------------------------------------------------------------------------
    # attention

    def attend(self, inputs: AttentionInputs) -> Tensor:
        """Attention over the keys of all processes -> (B, H, T, D), zero where a query is
        padding."""
        call = BlockSparseCall(
            inputs.scale, inputs.softcap, inputs.dropout, inputs.position, inputs.q.shape[1]
        )
        masks = self.block_masks(inputs.mask)
        out: Tensor = _Ring.apply(inputs.q, inputs.k, inputs.v, self, masks, call, *call.parameters)  # type: ignore[no-untyped-call]
        return out

    def block_masks(self, mask: Mask) -> list[list[BlockMask]]:
        """The block masks of the queries here with the keys of each process, made once for all
        layers."""
        if mask not in self._masks:
            q, k = mask.token_info()
            gathered = [[None] * self.size if x is None else every(x, self.group) for x in k]
            masks = (
                Mask(
                    q.pos,
                    pos,
                    mask.causal,
                    mask.rule,
                    None if ids is None else (q.document_ids, ids),
                    False,
                    prefix,
                )
                for pos, ids, prefix in zip(*gathered, strict=True)
            )
            self._masks[mask] = [
                [block_mask for block_mask in block_masks(mask_pair) if block_mask.blocks.any()]
                for mask_pair in masks
            ]
        return self._masks[mask]

    def shard_owner(self, step: int) -> int:
        """Rank whose keys are here after so many steps."""
        return (self.rank - step) % self.size

    def send(self, x: Tensor, tag: int) -> Moving:
        """Begin to send ``x`` to the next process, and to receive the previous one's."""
        received = torch.empty_like(x)
        operations = (
            P2POp(dist.isend, x, self.next, self.group, tag),
            P2POp(dist.irecv, received, self.previous, self.group, tag),
        )
        return received, dist.batch_isend_irecv(list(operations))


def wait_received(moving: Moving) -> Tensor:
    """Waits for a tensor sent here and returns it."""
    received, works = moving
    for work in works:
        work.wait()
    return received


class _Ring(torch.autograd.Function):
    """Keeps q, k, v, out and the log-sum-exp over all keys: nothing that grows with the pairs, nor
    with the ring."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        ring: Ring,
        masks: list[list[BlockMask]],
        call: BlockSparseCall,
        *scheme: Tensor,
    ) -> Tensor:
        shape, rows = (
            q.shape,
            max(
                (len(block_mask.blocks) for shard_masks in masks for block_mask in shard_masks),
                default=1,
            ),
        )
        q, kv = (
            q.reshape(rows, -1, *q.shape[2:]),
            torch.stack((k, v)).view(2, rows, -1, *k.shape[2:]),
        )
        local_kv = kv
        wide = torch.promote_types(q.dtype, torch.float32)
        merged_out = (
            torch.zeros_like(q, dtype=wide),
            q.new_full((*q.shape[:-1], 1), MASKED, dtype=wide),
        )
        for step in range(ring.size):
            ahead = ring.send(kv, 0) if step < ring.size - 1 else None
            merged_out = reduce(
                merge_attention,
                (
                    call.forward(block_mask, q, kv[0], kv[1], True)
                    for block_mask in masks[ring.shard_owner(step)]
                ),
                merged_out,
            )
            kv = kv if ahead is None else wait_received(ahead)
        out = merged_out[0].to(q.dtype)
        ctx.save_for_backward(q, local_kv, out, merged_out[1])
        ctx.ring = ring
        ctx.masks = masks
        ctx.call = call
        ctx.shapes = (shape, k.shape)
        return out.view(shape)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        (q, kv, out, lse), ring, call = ctx.saved_tensors, ctx.ring, ctx.call
        dout = dout.reshape(q.shape)
        delta = row_delta(dout, out)
        keep = iter(call.keep)
        back = None
        dq = torch.zeros_like(q, dtype=delta.dtype)
        for step in range(ring.size):
            ahead = ring.send(kv, 0) if step < ring.size - 1 else None
            dkv = torch.zeros_like(kv, dtype=delta.dtype)
            for block_mask in ctx.masks[ring.shard_owner(step)]:
                grads_here = call.backward(block_mask, (q, kv[0], kv[1]), dout, delta, lse, keep)
                for grad_sum, grad in zip((dq, *dkv), grads_here, strict=True):
                    grad_sum.add_(grad)
            if back is not None:
                dkv.add_(wait_received(back))
            back = ring.send(dkv, 1)  # at the end each has gone all the way round
            kv = kv if ahead is None else wait_received(ahead)
        assert back is not None
        dk, dv = wait_received(back)
        shape, kv_shape = ctx.shapes
        grads = (
            dq.mul_(call.scale).view(shape),
            dk.mul(call.scale).view(kv_shape),
            dv.view(kv_shape),
        )
        scheme = call.dposition or [None] * len(call.parameters)
        return *(x.to(q.dtype) for x in grads), None, None, None, *scheme
