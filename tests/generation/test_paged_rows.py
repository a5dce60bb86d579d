"""Rows that go on in pages say what they say in a cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from glassformer.generation.session import Session
from glassformer.nn.kernels.library import has

FAMILIES = ["gpt2", "llama", "qwen3", "gemma2", "alibi", "starcoder2", "phi2"]


@pytest.mark.parametrize("name", FAMILIES)
def test_ragged_rows_go_on_in_pages_as_in_the_cache(name: str) -> None:
    """Prompts of three lengths, windows among the masks; one row is dropped on the way and two change places."""
    if not has("stack"):
        pytest.skip("needs the compiled kernels: python hatch_build.py")
    model = tiny.model(replace(tiny.DECODERS[name], context=64))
    starts = [[5, 3, 9, 2, 7, 1, 4, 8, 6, 2, 3], [1, 2], [4, 4, 6, 1, 9, 3]]
    found = []
    for paged in (True, False):
        session = Session(model)
        logits = [session.prefill(starts, None, 1)]
        if paged:
            session.prepack(steps=20)
            assert session.paged is not None
        for step in range(8):
            if step == 4:
                session.select([2, 0])
            tokens = torch.tensor([3 + step, 17, 8][: len(logits[-1]) if step < 4 else 2])
            logits.append(session.decode(tokens))
        found.append(logits)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_a_model_that_does_not_fit_goes_on_in_its_cache() -> None:
    for name in ("mixtral", "gru", "nanomoe"):
        session = Session(tiny.model(tiny.DECODERS[name]))
        session.prefill([[1, 2, 3]], None, 1)
        session.prepack(steps=20)
        assert session.paged is None and session.decode(torch.tensor([4])).isfinite().all()
