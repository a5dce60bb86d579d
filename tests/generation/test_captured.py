"""Decode steps of one shape: the same logits, the same memory each time, nothing asked of the
device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tiny
from glassformer import config
from glassformer.core.generation import session
from glassformer.core.generation.session import Session
from glassformer.core.nn import Cache, build_model

FIXED = [
    name
    for name, cfg in tiny.DECODERS.items()
    if isinstance(cfg.decoder, config.Stack) and not cfg.embed.previous_token_embeddings
]
PADDED = torch.tensor([[-1, -1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]])


def drawn(cfg: config.Decoder, *shape: int) -> torch.Tensor:
    return torch.randint(
        cfg.embed.vocab, shape, generator=torch.Generator().manual_seed(sum(shape))
    )


@pytest.mark.parametrize("pos", [None, PADDED], ids=["even", "padded"])
@pytest.mark.parametrize("name", FIXED)
@torch.no_grad()
def test_a_cache_of_one_shape_gives_the_same_logits(name: str, pos: torch.Tensor | None) -> None:
    cfg = tiny.DECODERS[name]
    model, plain, fixed = tiny.model(cfg), Cache(cfg), Cache(cfg)
    for cache in (plain, fixed):
        model(drawn(cfg, 2, 6), pos=pos, cache=cache)
    fixed.fix(10)
    for step in range(4):
        if step == 2:
            fixed.fix(cfg.context)
        stored = [kv.k.data_ptr() for kv, _ in fixed.layers]
        token = drawn(cfg, 2, 1)
        torch.testing.assert_close(
            model(token, cache=fixed).logits, model(token, cache=plain).logits
        )
        assert stored == [kv.k.data_ptr() for kv, _ in fixed.layers]


@pytest.mark.parametrize("name", FIXED)
@torch.no_grad()
def test_such_a_step_asks_the_device_nothing(name: str, asked_nothing: Any) -> None:
    cfg = tiny.DECODERS[name]
    with asked_nothing():
        model, cache = build_model(cfg, seed=0).bfloat16().to("meta").eval(), Cache(cfg)
        model(torch.zeros(2, 6, dtype=torch.long, device="meta"), cache=cache)
        cache.fix(cfg.context)
        model(torch.zeros(2, 1, dtype=torch.long, device="meta"), cache=cache)


class Recorded(TorchDispatchMode):
    """What CUDAGraph is on a GPU, on a CPU: the operations of a step, played again from and into
    the same memory."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, ...]] = []
        self.played = 0
        Recorded.made += 1

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), named: Any = None
    ) -> Any:
        result = operation(*args, **(named or {}))
        self.operations.append((operation, args, named or {}, result))
        return result

    def replay(self) -> None:
        self.played += 1
        if self.played == 1:  # recording has computed it, here
            return
        with torch.inference_mode():
            for operation, args, named, before in self.operations:
                result = operation(*args, **named)
                for old, new in zip(tree_leaves(before), tree_leaves(result), strict=True):
                    if (
                        isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr()
                    ):  # neither a view nor in place
                        old.copy_(new)


@pytest.mark.parametrize("name", ["llama", "mixed", "gpt2"])
def test_a_recorded_step_is_played_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorded)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: graph)
    monkeypatch.setattr(session, "ROOM", 8)
    monkeypatch.setattr(Recorded, "made", 0)
    model = tiny.model(tiny.DECODERS[name])
    plain, item = Session(model), Session(model)
    for second_item in (plain, item):
        second_item.prefill([[1, 2, 3, 4], [5, 6, 7]], None, 1)
    item.capture()
    for token in range(3, 12):
        if token == 9:
            for second_item in (plain, item):
                second_item.select([1])
        tokens = torch.tensor([token, token + 1][: 1 if token >= 9 else 2])
        torch.testing.assert_close(item.decode(tokens), plain.decode(tokens))
    # one for the first room, one for twice as much, one for a row less
    assert Recorded.made == 3 and item.room == 16
