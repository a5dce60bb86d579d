"""A long prompt read by several processes, each its columns of it (ring attention); one of them
goes on alone.

    torchrun --nproc-per-node 4 -m glassformer generate MODEL --prompts long.txt

B batch, T tokens of the prompt, K key-value heads, D head dim, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import need
from ..core.nn import Cache, Model
from ..core.nn.cache import KV, CrossKV, Slots
from ..core.nn.model import inference
from .collectives import summed
from .ring import Ring


def prefill(
    model: Model, tokens: Tensor, pos: Tensor | None, ring: Ring, keep: bool = True
) -> tuple[Tensor, Cache]:
    """The logits (B, V) after the last column of ``tokens`` (B, T), and the cache, as one process
    would have made it.

    All processes of the ring call this with the same prompt; ``pos`` (B, T) is -1 at padding, None
    where there is none. Only where ``keep`` is true is the cache put together, layer by layer;
    elsewhere it is empty. Raises UserError for what is no decoder, and for parts that read a row
    from end to end.
    """
    need(model.config.is_decoder, "Only a decoder reads its prompt on several processes; use one.")
    need(
        model.head is not None,
        "The model has no head over tokens, so nothing follows a prompt; use another.",
    )
    most = model.config.stacks["decoder"].depth if model.config.stacks else 0
    detach = ring.attach(model, training=False)
    places = (
        torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        if pos is None
        else pos
    )
    shard = ShardCache(ring.cut(places), most)
    length = tokens.shape[1]
    try:
        with inference(model):
            hidden = model(
                ring.cut(tokens, 0), pos=ring.cut(places), cache=shard, logits="none"
            ).hidden
            # (1, columns here)
            is_last = ring.cut(torch.arange(length, device=tokens.device)[None]) == length - 1
            last = summed((hidden * is_last[..., None]).sum(1, keepdim=True), ring.group)
            assert model.head is not None
            logits = model.head(last, model.embed)[:, -1].float()
    finally:
        detach()
    cache = Cache(model.config)
    if keep:
        cache.advance(tokens, pos)
    for number, (kv, _) in enumerate(shard.layers):
        k, v = (ring.join(x.transpose(1, 2))[:, :length].transpose(1, 2) for x in (kv.k, kv.v))
        kv.k = kv.v = k[:0]
        if keep:
            cache.layers[number][0].extend(k, v)
    return logits, cache


class ShardKV(KV):
    """The keys and values (B, K, columns here, D) of one layer, as they are made."""

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep them; they are all that is here."""
        self.k, self.v = k, v
        return k, v


class ShardCache(Cache):
    """Cache of a prompt's columns on one process of a ring, at positions ``pos`` (B, columns
    here)."""

    def __init__(self, pos: Tensor, depth: int) -> None:
        slots = Slots(None)
        slots.k_pos = pos
        self.layers = [(ShardKV(slots), CrossKV()) for _ in range(depth)]
        self.length, self.contiguous, self.history = 0, False, None

    def advance(self, tokens: Tensor, pos: Tensor | None) -> Tensor:
        """Returns the tokens' positions."""
        assert pos is not None
        return pos
