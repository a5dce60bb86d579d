"""A KV cache

To say the next token a model needs the keys and values of all tokens before it. They do not change:
so keep them, and compute only those of the new token. The text stays the same and a token costs one
token.

One cache is one layer's. `extend` is given the new keys and values and gives back all of them, the
old ones first. Room is what matters. `torch.cat` of the old and the new gives the right numbers,
but lays all keys anew for each token: T tokens cost T^2 / 2 copies. Keep a buffer with room to
spare and write into it in place; when it is full, make one twice as large. The check counts how
often your keys were laid anew.
"""

from itertools import pairwise
from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 7.3
HINTS = (
    "Keep two buffers (K, room, d) and a number: how many places of them are filled.",
    "buffer[:, filled : filled + new] = k writes in place; buffer[:, :filled] is a view, not a "
    "copy.",
    "When there is no room: make a buffer twice as large (or as large as is needed), copy the "
    "old part once.",
)

# %% yours
import torch
from torch import Tensor


class Cache:
    """The keys and values of one layer."""

    def __init__(self) -> None:
        # TODO: nothing is kept yet
        self.k = self.v = torch.empty(0)
        self.filled = 0
        # END

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep k and v (K, new, d); returns all keys and all values so far, (K, all, d) each."""
        # TODO: write the new ones behind the old ones, make room first where there is none
        end = self.filled + k.shape[1]
        if self.k.ndim < 3 or self.k.shape[1] < end:
            room = max(64, 2 * end)
            old_k, old_v = self.k, self.v
            self.k, self.v = (
                k.new_empty(len(k), room, k.shape[2]),
                v.new_empty(len(v), room, v.shape[2]),
            )
            if self.filled:
                self.k[:, : self.filled] = old_k[:, : self.filled]
                self.v[:, : self.filled] = old_v[:, : self.filled]
        self.k[:, self.filled : end] = k
        self.v[:, self.filled : end] = v
        self.filled = end
        return self.k[:, :end], self.v[:, :end]
        # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    import time

    from glassformer.core.nn import Cache
    from glassformer.core.nn.cache import KV

    def extend(cache: Any, k: Tensor, v: Tensor, at: int, end: int) -> Any:
        result = cache.extend(k[:, at:end].clone(), v[:, at:end].clone())
        report.pair(result, "extend gives back two things: all keys, all values.")
        return result

    first = learner.Cache()
    k, v = report.randn(2, 150, 4), report.randn(2, 150, 4)
    lengths = [0, 5, 6, 7, 67, 68, 150]
    for at, end in pairwise(lengths):
        keys, values = extend(first, k, v, at, end)
        slips = {
            "the old ones: they come first, then the new ones": k[:, at:end],
            "keys and values: they are exchanged": v[:, :end],
        }
        report.equal(f"the keys after {end} places", keys, k[:, :end], slips=slips)
        slips = {"the values: these are the keys": k[:, :end]}
        report.equal(f"the values after {end} places", values, v[:, :end], slips=slips)
    look = (
        "what is kept belongs to the object (self), not to the class: every layer has its own cache"
    )
    keys, _ = extend(learner.Cache(), k, v, 0, 2)
    report.equal("the keys of a second cache", keys, k[:, :2], look=look)
    report.say(
        "150 places in pieces of 5, 1, 1, 60, 1, 82: every key and value, each cache by itself"
    )
    long, k = learner.Cache(), report.randn(1, 1100, 4)
    for at, end in pairwise([0, *range(1000, 1101, 20)]):
        keys, _ = extend(long, k, k, at, end)
    report.equal("the keys of a cache that grew beyond 1,000 places", keys, k)

    single = learner.Cache()
    # all are held, so that no address is given twice
    outputs = [extend(single, k, k, at, at + 1)[0] for at in range(200)]
    laid = len({torch.as_tensor(keys).data_ptr() for keys in outputs})
    report.true(
        laid <= 20,
        f"Of 200 tokens that came one by one, {laid} made extend lay all keys anew; with room to "
        "spare it is a few.",
        "torch.cat and clone copy everything: write the new ones into a buffer in place, and "
        "give back a view of it",
    )
    report.say(f"200 tokens one by one: the keys were laid anew {laid} times")

    model, tokenizer = real_model.real()

    class Yours(KV):
        def __init__(self, slots: Any) -> None:
            super().__init__(slots)
            self.own = learner.Cache()

        def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = self.own.extend(k[0], v[0])
            return keys[None], values[None]

    def yours() -> Cache:
        cache = Cache(model.config)
        cache.layers = [(Yours(kv.slots), cross) for kv, cross in cache.layers]
        return cache

    prompt = tokenizer.encode(". ".join(real_model.texts()))[:150]
    count = 40

    @torch.no_grad()
    def write(make: Any) -> tuple[str, float]:
        """The text after a long prompt, and the seconds of this processor without those for the
        prompt."""
        cache, ids, new, start = make(), prompt, prompt, 0.0
        for step in range(count + 1):
            inputs = torch.tensor([ids if cache is None else new])
            new = [int(model(inputs, cache=cache, logits="last").logits[0, -1].argmax())]
            ids, start = ids + new, start if step else time.process_time()
        return tokenizer.decode(ids[len(prompt) :]), time.process_time() - start

    kinds = (lambda: None, yours, lambda: Cache(model.config))
    texts, seconds = zip(*map(write, kinds), strict=True)
    report.equal("the text that our model writes with your cache", texts[1], texts[0])
    report.say(f"in the real model the same {count} tokens as without a cache")
    without, own, ours = (f"{count / elapsed:,.0f}" for elapsed in seconds)
    report.say(f"tokens a second: {without} without, {own} with yours, {ours} with ours")
