"""What is added to the flow arrives, also where FSDP2 wraps each block."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import many
import tiny
from glassformer import config as c
from glassformer.core.nn import Flow, build_model
from glassformer.core.nn.flow import document_starts

MIXED = tiny.block(c.Attention(4, 2), c.MoE(4, 2, c.GatedMLP(32), balance_loss=1.0, z_loss=0.1))
DEEP = tiny.decoder(MIXED, position=c.Rotary(), depth=3)
SIDES = (
    c.Stack(2, (MIXED,), c.Rotary(), causal=False),
    c.Stack(2, (tiny.replace(MIXED, cross=c.Attention(4)),), c.Rotary()),
)
MODELS = {
    "decoder": DEEP,
    "both sides": c.EncoderDecoder(
        tiny.DIM, tiny.CONTEXT, c.Embed(tiny.VOCAB), *SIDES, c.Head(), tiny.WIDE
    ),
}


def losses(model):
    """The auxiliary losses of one batch, and the size of the first router's gradient, most of which
    comes of them."""
    out = model(*[tiny.tokens()] * (2 if hasattr(model, "encoder") else 1))
    (sum(out.aux.values()) + 1e-3 * out.logits.square().mean()).backward()
    grads = (w.grad for name, w in model.named_parameters() if name.endswith("ffn.router.weight"))
    grad = next(grads)
    grad = getattr(grad, "full_tensor", lambda: grad)()
    return [*(loss.item() for _, loss in sorted(out.aux.items())), grad.norm().item()]


def wrapped_losses(mesh, name):
    """The same where FSDP2 wraps each block, in one of several processes."""
    model = build_model(MODELS[name], seed=1)
    sides = [getattr(model, side) for side in ("encoder", "decoder") if hasattr(model, side)]
    for block in [block for side in sides for block in side.blocks]:
        fully_shard(block)
    fully_shard(model)
    return losses(model)


def test_the_flow_is_no_dataclass():
    """FSDP2 copies dataclasses that hold tensors with gradients; the proof is the slow one
    below."""
    assert not dataclasses.is_dataclass(Flow)


@pytest.mark.slow
def test_auxiliary_losses_under_fsdp_are_those_of_one_process():
    processes = many.Processes(2)
    try:
        for name, config in MODELS.items():
            expected = pytest.approx(losses(build_model(config, seed=1)), rel=1e-5)
            assert processes.call(wrapped_losses, name=name)[0] == expected
    finally:
        processes.close()


def test_where_documents_begin():
    """At position 0, and where a row's first token goes on from elsewhere; padding begins none."""
    pos = torch.tensor(
        [[3, 4, 0, 1], [-1, -1, 0, 1], [0, 1, 2, -1], [-1, 5, -1, 6], [-1, -1, -1, -1]]
    )
    begins = [[1, 0, 1, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert document_starts(pos).tolist() == [list(map(bool, row)) for row in begins]


def test_a_flow_counts_on_unless_it_is_told_otherwise():
    """A token alone is then computed by its experts' matrices in place, and no mask is made."""
    assert Flow(torch.arange(3)[None]).contiguous
    assert not Flow(torch.arange(3)[None], contiguous=False).contiguous
