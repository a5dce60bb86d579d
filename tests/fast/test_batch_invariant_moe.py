"""A mixture by the kernels of our own: the same numbers, and each token's bits its own."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from glassformer import config as c
from glassformer.core.nn.experts import MoE
from glassformer.core.nn.flow import Flow
from glassformer.fast import kernels
from glassformer.fast.batch_invariant_moe import BatchInvariantMoE, batch_invariant_moe
from glassformer.fast.fused import fuse

CASES = {
    "gated": c.MoE(6, 3, c.GatedMLP(20), normalize=False, shared=c.GatedMLP(32)),
    "biased": c.MoE(4, 2, c.MLP(40, "gelu", bias=True)),
}


@pytest.mark.skipif(kernels.path() == "torch", reason="needs the compiled kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_a_token_is_answered_alike_whoever_is_beside_it(name, dtype):
    torch.manual_seed(0)
    plain = MoE(CASES[name], 48).eval()
    for weight in plain.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    exact = BatchInvariantMoE(plain.to(dtype))
    exact.shared = None  # dense, and of prepacked.py
    x = torch.randn(1, 37, 48, dtype=dtype)

    def run(mixture, x):
        with torch.no_grad():
            return mixture(x, Flow(torch.arange(x.shape[1])[None], contiguous=False))

    together = run(exact, x)
    assert torch.equal(
        together, torch.cat([run(exact, x[:, place : place + 1]) for place in range(37)], 1)
    )
    plain.shared = None
    assert_close(together, run(plain, x), atol=1e-5 if dtype == torch.float32 else 0.1, rtol=2e-2)


@pytest.mark.parametrize("width", [23, 20, 33])
@pytest.mark.parametrize("ffn", [c.MLP, c.GatedMLP])
def test_what_is_computed_densely_beside_it_activates_each_token_alone(ffn, width):
    """A vector of torch's loop would hold the end of one token and the beginning of the next."""
    act = fuse(MoE(c.MoE(4, 2, c.GatedMLP(20), shared=ffn(width, "silu")), 48).eval()).shared.act
    x = torch.randn(1, 37, width)
    assert torch.equal(act(x), torch.cat([act(x[:, place : place + 1]) for place in range(37)], 1))


def test_copies_are_made_where_there_is_room():
    model = torch.nn.Sequential(MoE(CASES["gated"], 48))
    size = sum(
        weight.nbytes
        for name, weight in model[0].named_parameters()
        if name in ("gate", "up", "down")
    )
    view, taken = batch_invariant_moe(model, size)
    assert taken == size
    assert isinstance(view[0], BatchInvariantMoE)
    assert type(model[0]) is MoE
    assert batch_invariant_moe(model, size - 1) == (model, 0)
