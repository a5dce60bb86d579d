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

from .. import config
from ..config.parallel import ring_pieces
from ..errors import UserError, need
from ..nn import Model
from ..nn.embed_head import Embed, previous_tokens
from ..nn.engines import Engine
from ..nn.engines.block_mask import MASKED, BlockMask, block_masks
from ..nn.engines.block_sparse import Call, merge_attention, row_delta
from ..nn.engines.inputs import AttentionInputs
from ..nn.experts import MoE
from ..nn.flow import Flow
from ..nn.mask import Mask
from .collectives import every, total

B = TypeVar("B")
Moving: TypeAlias = tuple[Tensor, list[Work]]
# of columns that fill a row up; -1 for the others
FILL = {"tokens": 0, "segments": 0, "source": 0, "prefix": 0}


def check(cfg: config.Model, training: bool = True) -> None:
    """UserError unless rows of this model may lie on several processes."""
    way = "train it with parallel.context = 1"
    for name in config.recurrent(cfg):
        raise UserError(
            f"The {name} is recurrent: it reads a row from one end to the other on "
            f"one process; {way}."
        )
    need(
        not (training and cfg.pool),
        f"A pool makes one vector of a whole row, which lies on several processes; {way}.",
    )
    for block in (block for stack in config.stacks(cfg).values() for block in stack.pattern):
        capped = (
            training
            and isinstance(block.feedforward, config.MoE)
            and block.feedforward.capacity_factor
        )
        need(
            not capped,
            "An expert's capacity counts the tokens of a whole row; leave "
            f"capacity_factor out, or {way}.",
        )


class Ring:
    """The processes of ``group``, which hold the columns of each row; ``attach`` makes a model
    compute with them."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.engine = Engine("ring", self.attend, lambda inputs: True, lambda inputs: True)
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
            (part, part.sum_over_ranks) for part in model.modules() if isinstance(part, MoE)
        ]
        embeddings = [part for part in model.modules() if isinstance(part, Embed) and len(part.lag)]
        before, model.engine = model.engine, self.engine
        for mixture, _ in mixtures:
            # a function: it is not copied with the model
            mixture.sum_over_ranks = lambda x: total(x, self.group)
        hooks = [part.register_forward_pre_hook(self._halo) for part in embeddings]

        def detach() -> None:
            model.engine = before
            for mixture, own in mixtures:
                mixture.sum_over_ranks = own
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
            [piece for _, piece in sorted(zip(order, pieces, strict=True), key=lambda one: one[0])],
            1,
        )

    def shard(self, batch: B) -> B:
        """The columns of a training batch that lie here; UserError for labels, which belong to
        whole documents."""
        given: dict[str, Any] = vars(batch)
        need(
            given.get("labels") is None,
            "Labels belong to whole documents; train them with parallel.context = 1.",
        )
        parts = {name: part for name, part in given.items() if isinstance(part, Tensor)}
        for name, pos in (("tokens", "pos"), ("source", "source_pos")):
            if name in parts and pos not in parts:
                parts[pos] = torch.arange(
                    parts[name].shape[1], device=parts[name].device
                ).expand_as(parts[name])
        own = {name: self.cut(part, FILL.get(name, -1)) for name, part in parts.items()}
        if given.get("host") is not None:  # it has whole rows
            own["host"] = None  # type: ignore[assignment]
        return dataclasses.replace(batch, **own)  # type: ignore[type-var]

    def _halo(self, embed: Embed, given: tuple[Any, ...]) -> None:
        """The tokens before each one, which may lie on another process."""
        tokens, flow = given[:2]
        whole, row = self.join(tokens), Flow(self.join(flow.pos.expand_as(tokens)))
        before = [
            previous_tokens(whole, row, back, nothing=-1) for back in range(1, len(embed.lag) + 1)
        ]
        flow.previous = self.cut(torch.stack(before, -1))

    # ----------------------------------------------------------------------------------------------
    # attention

    def attend(self, inputs: AttentionInputs) -> Tensor:
        """Attention over the keys of all processes -> (B, H, T, D), zero where a query is
        padding."""
        call = Call(
            inputs.scale, inputs.softcap, inputs.dropout, inputs.position, inputs.q.shape[1]
        )
        parts = self.block_masks(inputs.mask)
        out: Tensor = _Ring.apply(inputs.q, inputs.k, inputs.v, self, parts, call, *call.parameters)  # type: ignore[no-untyped-call]
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
                [one for one in block_masks(made) if one.blocks.any()] for made in masks
            ]
        return self._masks[mask]

    def shards(self, step: int) -> int:
        """Whose keys are here after so many steps."""
        return (self.rank - step) % self.size

    def send(self, x: Tensor, tag: int) -> Moving:
        """Begin to send ``x`` to the next process, and to receive the previous one's."""
        found = torch.empty_like(x)
        told = (
            P2POp(dist.isend, x, self.next, self.group, tag),
            P2POp(dist.irecv, found, self.previous, self.group, tag),
        )
        return found, dist.batch_isend_irecv(list(told))


def arrived(moving: Moving) -> Tensor:
    """What was sent here, once it has come."""
    found, works = moving
    for work in works:
        work.wait()
    return found


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
        parts: list[list[BlockMask]],
        call: Call,
        *scheme: Tensor,
    ) -> Tensor:
        shape, rows = q.shape, max((len(one.blocks) for part in parts for one in part), default=1)
        q, kv = (
            q.reshape(rows, -1, *q.shape[2:]),
            torch.stack((k, v)).view(2, rows, -1, *k.shape[2:]),
        )
        own = kv
        wide = torch.promote_types(q.dtype, torch.float32)
        found = torch.zeros_like(q, dtype=wide), q.new_full((*q.shape[:-1], 1), MASKED, dtype=wide)
        for step in range(ring.size):
            ahead = ring.send(kv, 0) if step < ring.size - 1 else None
            found = reduce(
                merge_attention,
                (call.forward(one, q, kv[0], kv[1], True) for one in parts[ring.shards(step)]),
                found,
            )
            kv = kv if ahead is None else arrived(ahead)
        out = found[0].to(q.dtype)
        ctx.save_for_backward(q, own, out, found[1])
        ctx.ring, ctx.parts, ctx.call, ctx.shapes = ring, parts, call, (shape, k.shape)
        return out.view(shape)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        (q, kv, out, lse), ring, call = ctx.saved_tensors, ctx.ring, ctx.call
        dout = dout.reshape(q.shape)
        delta, keep, back = row_delta(dout, out), iter(call.keep), None
        dq = torch.zeros_like(q, dtype=delta.dtype)
        for step in range(ring.size):
            ahead = ring.send(kv, 0) if step < ring.size - 1 else None
            dkv = torch.zeros_like(kv, dtype=delta.dtype)
            for one in ctx.parts[ring.shards(step)]:
                found = call.backward(one, (q, kv[0], kv[1]), dout, delta, lse, keep)
                for whole, part in zip((dq, *dkv), found, strict=True):
                    whole.add_(part)
            if back is not None:
                dkv.add_(arrived(back))
            back = ring.send(dkv, 1)  # at the end each has gone all the way round
            kv = kv if ahead is None else arrived(ahead)
        assert back is not None
        dk, dv = arrived(back)
        shape, kv_shape = ctx.shapes
        grads = (
            dq.mul_(call.scale).view(shape),
            dk.mul(call.scale).view(kv_shape),
            dv.view(kv_shape),
        )
        scheme = call.dposition or [None] * len(call.parameters)
        return *(x.to(q.dtype) for x in grads), None, None, None, *scheme
