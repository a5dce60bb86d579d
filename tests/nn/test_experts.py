"""Mixtures of experts: the fast way is the slow loop, and routing does what the papers and nanoMoE
say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer.core.nn import Flow, Tape, build, build_model
from glassformer.core.training import optimizer as muon
from seeding import generator_from

C = 32
PLAIN = c.MoE(4, 2, c.MLP(24, "gelu"))
GATED = c.MoE(4, 2, c.GatedMLP(64))


def mixture(cfg, dtype=torch.float32):
    torch.manual_seed(0)
    result = build(cfg, C)
    result.path = "ffn"
    for weight in result.parameters():
        nn.init.normal_(weight, std=0.3)
    return result.to(dtype)


def flow_of(x, lengths=None, engine="sdpa", tape=None):
    pos = torch.arange(x.shape[1])[None]
    if lengths is not None:
        pos = torch.where(pos < torch.tensor(lengths)[:, None], pos, -1)
    return Flow(pos, contiguous=lengths is None, engine=engine, tape=tape)


def random_input(rows=3, length=20, dtype=torch.float32):
    return torch.randn(rows, length, C, generator=generator_from(1)).to(dtype)


def everything(cfg, engine, dtype, lengths, length=20):
    """Output and the gradients of x and of every weight, of one training step."""
    result = mixture(cfg, dtype)
    x = random_input(length=length, dtype=dtype).requires_grad_()
    flow = flow_of(x, lengths, engine)
    torch.manual_seed(2)
    write = result(x, flow)
    real = (flow.pos >= 0)[..., None]
    loss = (write * real * random_input(length=length, dtype=dtype).flip(0)).sum()
    sum(flow.aux.values(), loss).backward()
    grads = [weight.grad for weight in result.parameters()]
    assert x.grad is not None
    assert None not in grads
    return [write.detach(), x.grad, *grads]


KINDS = {
    "plain": PLAIN,
    "gated": GATED,
    "one": replace(GATED, top_k=1),
    "three": replace(PLAIN, top_k=3),
    "biased": replace(GATED, expert=c.GatedMLP(64, bias=True)),
    "capacity": replace(PLAIN, capacity_factor=1.0),
    "noisy": replace(GATED, noise=True, balance_loss=0.1, z_loss=0.1),
    "shared": replace(PLAIN, normalize=False, shared=c.GatedMLP(16)),
}


@pytest.mark.parametrize("lengths", [None, [5, 20, 11]], ids=["whole", "padded"])
@pytest.mark.parametrize("name", KINDS)
def test_side_by_side_is_the_slow_loop(name, lengths):
    for dtype in (torch.float64, torch.float32):
        slow, fast = (
            everything(KINDS[name], engine, dtype, lengths) for engine in ("eager", "sdpa")
        )
        # in fp32 through another kernel; a sum of three gradients, or of a bias's rows, is added up
        # in another order
        exact = dtype == torch.float32 and name not in ("three", "biased")
        tolerance = 0.0 if exact else 1e-12 if dtype == torch.float64 else 1e-5
        for result, expected in zip(slow, fast, strict=True):
            assert_close(result, expected, rtol=0.0, atol=tolerance)
    assert torch.equal(slow[0], fast[0])


def test_made_up_rows_change_nothing_but_rounding():
    """In bf16 an expert's rows are made up to a multiple: here of 4."""
    exact, slow, fast = (
        everything(replace(GATED, capacity_factor=1.5), engine, dtype, [80, 128, 100], 128)
        for engine, dtype in (
            ("eager", torch.float64),
            ("eager", torch.bfloat16),
            ("sdpa", torch.bfloat16),
        )
    )
    assert torch.equal(slow[0], fast[0])
    for truth, result, expected in zip(exact, slow, fast, strict=True):
        assert float((result - expected).abs().max()) < 0.02 * float(truth.abs().max())


def test_few_rows_in_bf16_are_the_slow_loop():
    """Fewer choices than experts have sixteenths of: nothing is made up to more than a row."""
    slow, fast = (
        everything(GATED, engine, torch.bfloat16, None, 2) for engine in ("eager", "sdpa")
    )
    assert torch.equal(slow[0], fast[0])


def test_capacity_turns_away_the_last_of_the_second_choices():
    steps = mixture(replace(PLAIN, capacity_factor=0.7)).train()
    x = random_input()
    tape = Tape("ffn.chosen", "ffn.weight")
    flow = flow_of(x, tape=tape)
    write = steps(x, flow)
    chosen = tape["ffn.chosen"].flatten(0, 1)
    weight = tape["ffn.weight"].flatten(0, 1)
    room = math.floor(2 * 0.7 * 60 / 4)
    room += room % 2
    taken = [0] * 4
    expected = torch.zeros(60, C)
    dropped = 0
    for slot in range(2):  # every token's first choice comes before anyone's second
        for token, vector in enumerate(x.flatten(0, 1)):
            expert = int(chosen[token, slot])
            if taken[expert] < room:
                expected[token] += weight[token, slot] * steps.expert_output(expert, vector)
            dropped += taken[expert] >= room
            taken[expert] += 1
    assert dropped > 10
    assert_close(write.flatten(0, 1), expected, rtol=0.0, atol=1e-4)
    assert float(flow.metrics["dropped"]) == pytest.approx(dropped / 120)
    unused = steps.eval()(x, flow_of(x))
    assert torch.equal(unused, mixture(PLAIN).eval()(x, flow_of(x)))
    assert not torch.allclose(write, unused)


def test_there_is_always_room_for_four():
    steps = mixture(replace(PLAIN, capacity_factor=0.001)).train()
    x = random_input()
    flow = flow_of(x)
    steps(x, flow)
    load = (flow.metrics["load"][0] * 120).round()
    assert float(flow.metrics["dropped"]) == pytest.approx(1 - float(load.clamp(max=4).sum()) / 120)


@pytest.mark.parametrize("factor, tokens", [(1.05, 120), (1.4, 90)])
def test_capacity_is_computed_as_python_computes_it(factor, tokens):
    """nanoMoE's room for an expert is a float64: fp32 gives both of these two choices more or fewer."""
    steps = mixture(replace(PLAIN, capacity_factor=factor)).train()
    x = random_input(1, tokens)
    choices = steps.dispatch(*steps.choose(steps.route(x)), flow_of(x))
    room = math.floor(2 * factor * tokens / 4)
    assert choices.capacity == room + room % 2


@pytest.mark.parametrize("capacity", [None, 0.8])
def test_padding_takes_no_room_and_counts_nowhere(capacity):
    steps = mixture(replace(GATED, capacity_factor=capacity, balance_loss=0.1, z_loss=0.1)).train()
    x = random_input(4, 20)
    alone = x[:, :12]
    flow = flow_of(x[:, :12])
    write = steps(alone, flow)
    padded = flow_of(x, [12] * 4)
    result = steps(x, padded)
    assert_close(result[:, :12], write, rtol=0.0, atol=1e-5)
    assert result[:, 12:].abs().max() == 0
    for name in ("balance", "z"):
        assert_close(padded.aux[name], flow.aux[name])
    for name in ("load", "entropy", "dropped"):
        assert_close(padded.metrics[name], flow.metrics[name])


def test_losses_and_facts_by_hand():
    steps = mixture(replace(PLAIN, balance_loss=0.3, z_loss=0.2)).train()
    x = random_input()
    tape = Tape("*")
    flow = flow_of(x, tape=tape)
    steps(x, flow)
    logits = tape["ffn.router"].double().flatten(0, 1)
    chosen = tape["ffn.chosen"].flatten()
    share = logits.softmax(-1)
    load = torch.bincount(chosen, minlength=4) / chosen.numel()
    assert_close(flow.metrics["load"], load[None])
    for actual, expected in (
        (flow.metrics["entropy"], -(share * share.log()).sum(-1).mean()),
        (flow.metrics["dropped"], torch.tensor(0.0)),
        (flow.aux["balance"].detach(), 0.3 * 4 * (load * share.mean(0)).sum()),
        (flow.aux["z"].detach(), 0.2 * logits.exp().sum(-1).log().square().mean()),
    ):
        assert_close(float(actual), float(expected))


def test_noise_has_a_learnt_size_and_only_training_hears_it():
    def router(draw):
        torch.manual_seed(draw)
        tape = Tape("*.router")
        result(x, flow_of(x, tape=tape))
        return tape["ffn.router"]

    result = mixture(replace(GATED, noise=True))
    x = random_input()
    clean = x @ result.router.weight.mT
    result.eval()
    assert torch.equal(router(0), router(1))
    result.train()
    size = torch.nn.functional.softplus(x @ result.noise.weight.mT)
    drawn = ((router(0) - clean) / size).detach().flatten()
    assert abs(float(drawn.mean())) < 0.2
    assert 0.8 < float(drawn.std()) < 1.2
    with torch.no_grad():
        result.noise.weight.zero_()
    noisy = router(3)
    torch.manual_seed(3)
    assert_close(noisy, clean + math.log(2) * torch.randn(clean.shape))


def test_every_token_meets_the_shared_expert():
    model = mixture(KINDS["shared"]).eval()
    x = random_input()
    shared = model.shared
    write = model(x, flow_of(x))
    model.shared = None
    assert_close(write, model(x, flow_of(x)) + shared(x, flow_of(x)))


def test_one_token_meets_its_own_experts_alone():
    model = mixture(GATED).eval()
    x = random_input(1, 6)
    tape = Tape("*.chosen")
    full = model(x, flow_of(x, tape=tape))
    for at in range(6):
        strange = sorted(set(range(4)) - set(tape["ffn.chosen"][0, at].tolist()))
        spoilt = mixture(GATED).eval()
        with torch.no_grad():
            for table in (spoilt.up, spoilt.gate, spoilt.down):
                table[strange] = math.nan
            item = spoilt(x[:, at : at + 1], flow_of(x[:, :1]))
        assert_close(item, full[:, at : at + 1], rtol=0.0, atol=1e-5)


def test_the_router_thinks_in_fp32():
    result = mixture(GATED, torch.bfloat16)
    x = random_input(dtype=torch.bfloat16)
    tape = Tape("*")
    full = mixture(GATED)
    exact = mixture(GATED)(random_input(), flow_of(random_input()))
    with torch.autocast("cpu", torch.bfloat16):
        write = result(x, flow_of(x, tape=tape))
        rounded = full(random_input(), flow_of(random_input()))
    assert tape["ffn.router"].dtype == tape["ffn.weight"].dtype == torch.float32
    assert write.dtype == torch.bfloat16
    assert_close(tape["ffn.router"], x.float() @ result.router.weight.float().mT)
    assert float((rounded - exact).abs().max()) < 0.03 * float(exact.abs().max())


def test_the_tape_sees_each_token_and_an_edit_sends_it_elsewhere():
    def edited(name, change):
        return model(x, flow_of(x, tape=Tape(edits={name: lambda path, value: change(value)})))

    model = mixture(GATED).eval()
    x = random_input()
    tape = Tape("*")
    unedited = model(x, flow_of(x))
    assert torch.equal(model(x, flow_of(x, tape=tape)), unedited)
    widths = {"in": (C,), "router": (4,), "weight": (2,), "chosen": (2,), "write": (C,)}
    widths |= dict.fromkeys(("pre", "gate", "up", "hidden"), (2, 64))
    assert {name: tuple(value.shape) for name, value in tape.records.items()} == {
        f"ffn.{name}": (3, 20, *width) for name, width in widths.items()
    }
    expert = int(tape["ffn.chosen"][1, 7, 1])
    token = x[1, 7]
    gate = torch.nn.functional.silu(token @ model.gate[expert].mT)
    observed = gate * (token @ model.up[expert].mT)
    assert_close(tape["ffn.hidden"][1, 7, 1], observed)
    assert not torch.allclose(
        edited("*.chosen", lambda value: (value + 1) % 4), unedited, atol=1e-2
    )
    assert edited("*.hidden", lambda value: value * 0).abs().max() == 0
    with torch.no_grad():  # a single token, as in decoding
        alone = Tape("*.hidden")
        item = x[1:2, 7:8]
        assert torch.equal(model(item, flow_of(item, tape=alone)), model(item, flow_of(item)))
    assert_close(alone["ffn.hidden"][0, 0, 1], observed)


def test_facts_of_every_mixture_reach_the_output():
    first, second = (tiny.block(feedforward=c.MoE(experts, 2, c.MLP(16))) for experts in (4, 6))
    model = build_model(tiny.decoder(first, tiny.block(), second, position=c.Rotary()), seed=1)
    metrics = model(tiny.tokens()).metrics
    assert {name: tuple(value.shape) for name, value in metrics.items()} == {
        "load": (4, 6),
        "entropy": (4,),
        "dropped": (4,),
    }
    assert_close(metrics["load"].sum(-1), torch.ones(4))
    assert metrics["load"][0::2, 4:].abs().max() == 0  # four of the six exist
    assert not any(value.requires_grad for value in metrics.values())
    assert not model.eval()(tiny.tokens()).metrics


def test_an_encoders_mixtures_are_heard_too():
    base = tiny.vaswani()
    block = replace(base.encoder.pattern[0], feedforward=replace(PLAIN, balance_loss=0.1))
    mixed = replace(base, encoder=replace(base.encoder, pattern=(block,)))
    out = build_model(mixed, seed=1)(tiny.tokens(), tiny.tokens(3, 9))
    assert float(out.aux["balance"]) > 0
    assert out.metrics["load"].shape == (2, 4)


def test_muon_takes_a_stack_as_its_matrices():
    start, *grads = torch.randn(4, 3, 24, 16, generator=generator_from(0))
    stack = nn.Parameter(start.clone())
    apart = [nn.Parameter(matrix.clone()) for matrix in start]
    actual = muon.Muon([{"params": [stack], "lr": 0.1, "weight_decay": 0.1}], 0.9)
    reference = torch.optim.Muon(apart, 0.1, 0.1, 0.9, adjust_lr_fn="match_rms_adamw")
    for grad in grads:
        stack.grad = grad.clone()
        for weight, individual in zip(apart, grad, strict=True):
            weight.grad = individual.clone()
        actual.step()
        reference.step()
    moved = torch.stack([weight.detach() for weight in apart])
    scale = float((moved - start * 0.99**3).abs().max())
    assert float((stack.detach() - moved).abs().max()) < 0.03 * scale  # bf16 inside both
