"""Block-sparse attention: FlashAttention's two passes (Dao et al. 2022, algorithms 1 and 4) over
the tiles of a mask.

    forward     S = q k^T * scale      P = softmax(S)      lse = log sum exp S      out = dropout(P) v
    backward    P again from q and k   delta = rowsum(dout * out)      dv = dropout(P)^T dout
                dP = dropout(dout v^T)      dS = P * (dP - delta)      dq = dS k * scale      dk = dS^T q * scale

P is not kept, so memory does not grow with the pairs. Where a rule is split in sub-rules, or keys
lie in several places (``scale/ring.py``), each has a softmax over its own keys; its share of the
softmax over all keys is told by the log-sum-exps, as in split-KV decoding. A position scheme is
asked for the bias of one tile at a time.

B batch, T queries, S keys, H heads, K key-value heads, D head dim; the other letters as in
block_mask.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..core.nn.attention import AttentionInputs
from ..core.nn.dropout import keep_mask
from .block_mask import MASKED, BlockMask, Tile, block_masks

QKV: TypeAlias = tuple[Tensor, Tensor, Tensor]


def block_sparse_attention(inputs: AttentionInputs) -> Tensor:
    """Time and memory by the blocks that the mask leaves -> (B, H, T, D), zero where a query is
    padding; no bias."""
    call = BlockSparseCall(
        inputs.scale,
        inputs.softcap,
        inputs.dropout,
        heads=inputs.q.shape[1],
        head_shard=inputs.heads,
    )
    masks = block_masks(inputs.mask)
    out: Tensor = _BlockSparse.apply(inputs.q, inputs.k, inputs.v, masks, call)  # type: ignore[no-untyped-call]
    return out


class _BlockSparse(torch.autograd.Function):
    """Keeps q, k, v, out and, of several sub-rules, the log-sum-exp over the keys of all."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        block_masks: list[BlockMask],
        call: BlockSparseCall,
    ) -> Tensor:
        shape = q.shape
        kv_shape = k.shape
        rows = len(block_masks[0].blocks)
        q, k, v = (x.reshape(rows, -1, *x.shape[2:]) for x in (q, k, v))  # (R, M, T or S, D)
        several = len(block_masks) > 1
        outputs = (call.forward(block_mask, q, k, v, several) for block_mask in block_masks)
        out, lse = reduce(merge_attention, outputs)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse if several else None)
        ctx.call, ctx.block_masks, ctx.shape, ctx.kv_shape = call, block_masks, shape, kv_shape
        return out.view(shape)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        (q, k, v, out, lse), call = ctx.saved_tensors, ctx.call
        dout = dout.reshape(out.shape)
        delta, keep = row_delta(dout, out), iter(call.keep)
        mask_grads = [
            call.backward(block_mask, (q, k, v), dout, delta, lse, keep)
            for block_mask in ctx.block_masks
        ]
        dq, dk, dv = (reduce(Tensor.add_, tensors) for tensors in zip(*mask_grads, strict=True))
        grads = (
            dq.mul_(call.scale).view(ctx.shape),
            dk.mul_(call.scale).view(ctx.kv_shape),
            dv.view(ctx.kv_shape),
        )
        return *(x.to(q.dtype) for x in grads), None, None


OutLse: TypeAlias = tuple[Tensor, Tensor]


def merge_attention(first: OutLse, second: OutLse) -> OutLse:
    """Attention over the keys of both: out (.., T, D) and lse (.., T, 1) of each; ``one`` is
    overwritten."""
    (out, lse), (more, more_lse) = first, second
    total_lse = torch.logaddexp(lse, more_lse)
    return out.mul_((lse - total_lse).exp()).add_(
        more.mul_((more_lse - total_lse).exp())
    ), total_lse


def row_delta(dout: Tensor, out: Tensor) -> Tensor:
    """The ``delta`` of the backward pass (.., T, 1)."""
    return _in_fp32(dout * out).sum(-1, keepdim=True)


@dataclass
class BlockSparseCall:
    """One call's settings, and the dropout masks it drew: one for each tile and head, in the order
    of computation.

    ``position`` is a scheme that adds to the scores; the gradient of what it is made of, by
    parameter, goes to ``dposition``.
    """

    scale: float
    softcap: float | None
    dropout: float
    position: Any = None
    heads: int = 1  # of q
    head_shard: Any = None  # which ones these are, where they are not all
    keep: list[Tensor] = field(default_factory=list)
    dposition: list[Tensor] = field(default_factory=list)

    def scores(
        self, q: Tensor, k: Tensor, bias: Tensor | None, more: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Scores (G, E, n * E) of q (G, E, D) and k (G, n * E, D) and, where they are capped, the
        cap's derivative.

        ``bias`` masks, ``more`` is what the position scheme adds.
        """
        if self.softcap is None and bias is not None:  # scale and mask go into the product itself
            scores = _in_fp32(torch.baddbmm(bias, q, k.mT, alpha=self.scale))
            return scores if more is None else scores.add_(more), None
        scores = _in_fp32(torch.bmm(q, k.mT)).mul_(self.scale)
        derivative = None
        if self.softcap is not None:
            tanh = scores.div_(self.softcap).tanh_()
            derivative, scores = 1 - tanh * tanh, tanh * self.softcap
        scores = scores if more is None else scores.add_(more)
        return scores if bias is None else scores.add_(bias), derivative

    def position_bias(self, block_mask: BlockMask, tile: Tile) -> Tensor | None:
        """The position scheme's term for a tile's scores, (G, H, E, n * E)."""
        if self.position is None:
            return None
        bias: Tensor | None = self.position.bias(*block_mask.positions(tile))
        return bias

    @property
    def parameters(self) -> list[Tensor]:
        """Trainable parameters of the position scheme."""
        return (
            []
            if self.position is None
            else [p for p in self.position.parameters() if p.requires_grad]
        )

    def dropout_mask(self, pattern: Tensor, head: int) -> Tensor:
        """Draws the dropout mask of one head's pattern; numbers of heads on other ranks are drawn
        and thrown away."""
        first, many = self.head_shard or (0, self.heads)
        for _ in range(first if head == 0 else 0):
            keep_mask(pattern, self.dropout)
        keep = keep_mask(pattern, self.dropout)
        for _ in range(many - first - self.heads if head == self.heads - 1 else 0):
            keep_mask(pattern, self.dropout)
        return keep

    def apply_dropout(self, x: Tensor, keep: Tensor) -> Tensor:
        """``x`` with 0 where ``keep`` is false, the rest divided by 1 - dropout."""
        return x.mul(keep).mul_(1 / (1 - self.dropout))

    def forward(
        self, block_mask: BlockMask, q: Tensor, k: Tensor, v: Tensor, with_lse: bool
    ) -> OutLse:
        """Over one block mask: out (R, M, T, D) and, where it is asked for, lse (R, M, T, 1)."""
        group = q.shape[1] // k.shape[1]
        queries, keys = block_mask.queries, block_mask.keys
        q, k, v = queries.to_blocks(q), keys.to_blocks(k), keys.to_blocks(v)
        out = _empty_out(block_mask, q)
        lse = out.new_full((*q.shape[:-1], 1) if with_lse else (0,), MASKED)
        for tile in block_mask.tiles:
            bias = tile.bias(q.dtype)
            more = self.position_bias(block_mask, tile)
            for head in range(len(q)):
                k_tile, v_tile = (_gather(x[head // group], tile.k_blocks) for x in (k, v))
                extra = None if more is None else more[:, head % self.heads]
                scores, _ = self.scores(_gather(q[head], tile.q_blocks), k_tile, bias, extra)
                pattern = scores.softmax(-1)
                if with_lse:  # of the likeliest key: log p = score - lse
                    row_lse = scores.amax(-1, keepdim=True) - pattern.amax(-1, keepdim=True).log()
                    lse[head].index_copy_(0, tile.q_blocks, row_lse)
                if self.dropout:
                    self.keep.append(self.dropout_mask(pattern, head % self.heads))
                    pattern = self.apply_dropout(pattern, self.keep[-1])
                out[head].index_copy_(
                    0, tile.q_blocks, _in_fp32(torch.bmm(pattern.to(v.dtype), v_tile))
                )
        return queries.from_blocks(out), queries.from_blocks(lse) if with_lse else lse

    def backward(
        self,
        block_mask: BlockMask,
        qkv: QKV,
        dout: Tensor,
        delta: Tensor,
        lse: Tensor | None,
        keep: Iterator[Tensor],
    ) -> QKV:
        """One block mask's part of dq, dk (both still to be scaled) and dv; ``lse`` is that over
        all keys, if these are not all."""
        group, queries, keys = (
            qkv[0].shape[1] // qkv[1].shape[1],
            block_mask.queries,
            block_mask.keys,
        )
        q, dout, delta = (queries.to_blocks(x) for x in (qkv[0], dout, delta))
        k, v = keys.to_blocks(qkv[1]), keys.to_blocks(qkv[2])
        lse = None if lse is None else queries.to_blocks(lse)
        dq, dk, dv = (
            _empty_out(block_mask, q),
            *(torch.zeros_like(x, dtype=delta.dtype) for x in (k, v)),
        )
        for tile in block_mask.tiles:
            bias = tile.bias(q.dtype)
            with torch.enable_grad():
                more = self.position_bias(block_mask, tile)
            dmore = (
                None
                if more is None or not more.requires_grad
                else torch.zeros_like(more, dtype=delta.dtype)
            )
            for head in range(len(q)):
                q_tile, dout_tile, delta_tile = (
                    _gather(x[head], tile.q_blocks) for x in (q, dout, delta)
                )
                k_tile, v_tile = (_gather(x[head // group], tile.k_blocks) for x in (k, v))
                extra = None if more is None else more.detach()[:, head % self.heads]
                scores, derivative = self.scores(q_tile, k_tile, bias, extra)
                pattern = (
                    scores.softmax(-1)
                    if lse is None
                    else scores.sub_(_gather(lse[head], tile.q_blocks)).exp_()
                )
                dpattern, dropped_pattern = _in_fp32(torch.bmm(dout_tile, v_tile.mT)), pattern
                if self.dropout:
                    alive = next(keep)
                    dpattern, dropped_pattern = (
                        self.apply_dropout(dpattern, alive),
                        self.apply_dropout(pattern, alive),
                    )
                _add(
                    dv[head // group],
                    tile.k_blocks,
                    torch.bmm(dropped_pattern.to(v.dtype).mT, dout_tile),
                )
                dscores = dpattern.sub_(delta_tile).mul_(pattern)
                if dmore is not None:
                    dmore[:, head % self.heads] += dscores
                dscores = (dscores if derivative is None else dscores.mul_(derivative)).to(q.dtype)
                dq[head].index_copy_(0, tile.q_blocks, _in_fp32(torch.bmm(dscores, k_tile)))
                _add(dk[head // group], tile.k_blocks, torch.bmm(dscores.mT, q_tile))
            if more is not None and dmore is not None:
                param_grads = torch.autograd.grad(
                    more, self.parameters, dmore.to(more.dtype), materialize_grads=True
                )
                totals = self.dposition or [torch.zeros_like(grad) for grad in param_grads]
                self.dposition = [a + b for a, b in zip(totals, param_grads, strict=True)]
        return queries.from_blocks(dq), keys.from_blocks(dk), keys.from_blocks(dv)


def _in_fp32(x: Tensor) -> Tensor:
    """In fp32 at least: where sums are made."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _empty_out(block_mask: BlockMask, q: Tensor) -> Tensor:
    """Memory for a result in the shape of ``q``, in fp32 at least; zeros where a query block
    attends to nothing."""
    make = torch.empty_like if block_mask.covers_queries else torch.zeros_like
    return make(q, dtype=torch.promote_types(q.dtype, torch.float32))


def _gather(x: Tensor, blocks: Tensor) -> Tensor:
    """Some blocks of one head's x (R * N / E, E, D): (G,) -> (G, E, D), (G, n) -> (G, n * E, D)."""
    return x.index_select(0, blocks.flatten()).view(len(blocks), -1, x.shape[-1])


def _add(x: Tensor, blocks: Tensor, value: Tensor) -> None:
    """Add value (G, n * E, D) to some blocks (G, n) of one head's x; a block may come several
    times."""
    x.index_add_(0, blocks.flatten(), _in_fp32(value).view(-1, *x.shape[1:]))
