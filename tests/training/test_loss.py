"""Training on a GPU: between the first layer and the last gradient nothing is asked of the
device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import tiny
from glassformer import config
from glassformer.core.nn import build_model
from glassformer.core.nn.experts import Dispatch
from glassformer.core.training.batches import Batch
from glassformer.core.training.causal import Causal
from glassformer.core.training.loss import backward, cross_entropy, forward, sums, tokens_in
from seeding import generator_from


def rows(packed, device, source=False):
    """Four rows of 16 tokens; ``packed``: two documents in each."""
    tokens = torch.zeros(4, 16, dtype=torch.long)
    place = torch.arange(16).expand(4, 16)
    side = (place % 8, place // 8) if packed else (None, None)
    sources = (tokens, *side) if source else ()
    return Batch(tokens, tokens.clone(), *side, *sources).to(device)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize(
    "name",
    sorted(
        name for name in tiny.ALL.keys() - tiny.RECURRENT - {"reader"} if not tiny.ALL[name].pool
    ),
)
def test_a_piece_asks_the_device_nothing(name, packed, asked_nothing):
    """bf16, as it is trained there: of fp32 experts torch has no grouped product on a GPU."""
    shape = tiny.ALL[name]
    with asked_nothing():
        model = build_model(shape, seed=0).bfloat16().to("meta").train()
        batch = rows(packed, "meta", isinstance(shape, config.EncoderDecoder))
        grads = backward(model, batch, Causal(), 0.0)
        unused = {name for name, p in model.named_parameters() if p.grad is None}
        assert grads.sum.device.type == "meta"
        # a router's correction chooses, stored frequencies do not train: no gradient reaches them
        unused = {name for name in unused if not name.endswith((".correction", ".inv_freq"))}
        assert unused <= {"embed.segment.weight"}


@pytest.mark.parametrize(
    "name", ["pooled", "gru", "reader", "bahdanau", "additive-lstm", "cho", "vaswani"]
)
def test_what_the_host_counts_is_what_is_there(name):
    """Documents of several lengths and padding, told by the host, give the gradients that they give
    alone."""
    shape = tiny.ALL[name]
    (tokens, pos, ids) = packed()
    pair = isinstance(shape, config.EncoderDecoder)
    source = (tokens.flip(1), *packed(more=1)[1:]) if pair else ()
    batch = Batch(tokens, tokens.where(pos >= 0, -1), pos, ids, *source)
    model = build_model(shape, seed=0).train()
    results = []
    for args in (batch, replace(batch, host=batch)):
        model.zero_grad()
        done = backward(model, args, Causal(), 0.0)
        pooled = [] if model.config.pool is None else [forward(model, args).pooled]
        results.append(
            [done.sum, *pooled, *(p.grad for p in model.parameters() if p.grad is not None)]
        )
    assert_close(*results)


def packed(more=0):
    """Three rows of 14 tokens: documents of several lengths, padding behind them."""
    pos, ids = torch.full((2, 3, 14), -1)
    for row, lengths in enumerate(([5, 3, 2], [9], [1, 6])):
        at = 0
        for number, length in enumerate(lengths):
            local = slice(at, at := at + length + more)
            pos[row, local], ids[row, local] = torch.arange(length + more), number
    draw = generator_from(more)
    return torch.randint(5, tiny.VOCAB, (3, 14), generator=draw), pos, ids


def test_what_is_counted_on_the_device_is_told_once():
    model = tiny.model("llama")
    batch = rows(True, "cpu")
    batch.targets[0, :5] = -1
    loss = backward(model, batch, Causal(), 0.0)
    assert isinstance(loss.count, torch.Tensor)
    assert tokens_in(batch) == 64
    result = sums([loss, loss])
    assert (result.count, result.tokens) == (118, 118)
    assert result.loss == 2 * float(loss.sum)
    assert result.loss == pytest.approx(loss.sum.item() / int(loss.count) * 118)


@pytest.mark.parametrize("name", ["mixtral", "noisy", "nanomoe", "deepseek"])
@pytest.mark.parametrize("padded", [False, True])
def test_experts_on_a_gpu_work_on_every_choice(name, padded, monkeypatch):
    """Choices that go nowhere or are over capacity count for nothing; output and gradients are the
    definition's."""

    def every_row(self, step):
        return self._every_row(self.expert_index.flatten().argsort(stable=True))

    model = tiny.model(name).double().train()
    results = []
    tokens = torch.ones(4, 16, dtype=torch.long)  # alike: an expert is over capacity
    pos = torch.arange(16) - torch.tensor([0, 3, 9, 1])[:, None] * padded
    args = {"pos": pos.clamp(min=-1)} if padded else {}
    for engine, variant in (("eager", Dispatch.rows), ("auto", every_row)):
        monkeypatch.setattr(Dispatch, "rows", variant)
        model.engine = engine
        model.zero_grad()
        torch.manual_seed(0)
        present = model(tokens, **args).logits[pos >= 0]
        present.square().mean().backward()
        results.append([present.detach(), *(p.grad for p in model.parameters())])
    assert_close(*results, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_validation_computes_no_gradient(mode, monkeypatch):
    """The loss alone, the same to the bit, although the table requires a gradient."""
    hidden = torch.randn(7, 8)
    table = torch.randn(11, 8, requires_grad=True)
    targets = torch.randint(11, (7,))
    expected = cross_entropy(hidden, targets, table)
    monkeypatch.setattr(torch, "mm", None)  # what a gradient is computed by
    with mode():
        assert torch.equal(cross_entropy(hidden, targets, table), expected.detach())
