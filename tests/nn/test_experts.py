"""Mixtures of experts: the fast way is the slow loop, and routing does what the papers and nanoMoE
say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from glassformer import config as c
from glassformer.core.nn import Flow, Tape, build, build_model
from glassformer.core.nn.experts import MoE
from glassformer.core.training import optimizer as muon

C = 32
PLAIN = c.MoE(4, 2, c.MLP(24, "gelu"))
GATED = c.MoE(4, 2, c.GatedMLP(64))


def mixture(cfg: c.MoE, dtype: torch.dtype = torch.float32) -> MoE:
    torch.manual_seed(0)
    result: MoE = build(cfg, C)
    result.path = "ffn"
    for weight in result.parameters():
        nn.init.normal_(weight, std=0.3)
    return result.to(dtype)


def flow_of(
    x: Tensor, lengths: list[int] | None = None, engine: str = "sdpa", tape: Tape | None = None
) -> Flow:
    pos = torch.arange(x.shape[1])[None]
    if lengths is not None:
        pos = torch.where(pos < torch.tensor(lengths)[:, None], pos, -1)
    return Flow(pos, contiguous=lengths is None, engine=engine, tape=tape)


def random_input(rows: int = 3, length: int = 20, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, length, C, generator=torch.Generator().manual_seed(1)).to(dtype)


def everything(
    cfg: c.MoE, engine: str, dtype: torch.dtype, lengths: list[int] | None, length: int = 20
) -> list[Tensor]:
    """Output and the gradients of x and of every weight, of one training step."""
    result, x = mixture(cfg, dtype), random_input(length=length, dtype=dtype).requires_grad_()
    flow = flow_of(x, lengths, engine)
    torch.manual_seed(2)
    write = result(x, flow)
    real = (flow.pos >= 0)[..., None]
    loss = (write * real * random_input(length=length, dtype=dtype).flip(0)).sum() + sum(
        flow.aux.values(), torch.zeros(())
    )
    loss.backward()
    grads = [weight.grad for weight in result.parameters()]
    assert x.grad is not None and None not in grads
    return [write.detach(), x.grad, *grads]  # type: ignore[list-item]


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
    slow, fast = (
        everything(KINDS[name], engine, torch.float64, lengths) for engine in ("eager", "sdpa")
    )
    for remaining, right in zip(slow, fast, strict=True):
        torch.testing.assert_close(remaining, right, rtol=0.0, atol=1e-12)
    slow, fast = (
        everything(KINDS[name], engine, torch.float32, lengths) for engine in ("eager", "sdpa")
    )
    assert torch.equal(slow[0], fast[0])  # through another kernel than in float64
    # a sum of three gradients, or of a bias's rows, is added up in another order
    if name in ("three", "biased"):
        for remaining, right in zip(slow, fast, strict=True):
            torch.testing.assert_close(remaining, right, rtol=0.0, atol=1e-5)
    else:
        assert all(
            torch.equal(remaining, right) for remaining, right in zip(slow, fast, strict=True)
        )


def test_made_up_rows_change_nothing_but_rounding():
    """In bf16 an expert's rows are made up to a multiple: here of 4."""
    cfg = replace(GATED, capacity_factor=1.5)
    exact = everything(cfg, "eager", torch.float64, [80, 128, 100], 128)
    slow, fast = (
        everything(cfg, engine, torch.bfloat16, [80, 128, 100], 128) for engine in ("eager", "sdpa")
    )
    assert torch.equal(slow[0], fast[0])
    for truth, remaining, right in zip(exact, slow, fast, strict=True):
        scale = float(truth.abs().max())
        assert float((remaining - right).abs().max()) < 0.02 * scale


def test_capacity_turns_away_the_last_of_the_second_choices():
    steps, x = mixture(replace(PLAIN, capacity_factor=0.7)).train(), random_input()
    tape = Tape("ffn.chosen", "ffn.weight")
    flow = flow_of(x, tape=tape)
    write = steps(x, flow)
    chosen, weight = tape["ffn.chosen"].flatten(0, 1), tape["ffn.weight"].flatten(0, 1)
    room = math.floor(2 * 0.7 * 60 / 4)
    room += room % 2
    taken, expected, dropped = [0] * 4, torch.zeros(60, C), 0
    for slot in range(2):  # every token's first choice comes before anyone's second
        for token in range(60):
            expert = int(chosen[token, slot])
            if taken[expert] < room:
                expected[token] += weight[token, slot] * steps.expert_output(
                    expert, x.flatten(0, 1)[token]
                )
            dropped += taken[expert] >= room
            taken[expert] += 1
    assert dropped > 10
    torch.testing.assert_close(write.flatten(0, 1), expected, rtol=0.0, atol=1e-4)
    assert float(flow.metrics["dropped"]) == pytest.approx(dropped / 120)
    dropless = mixture(PLAIN).eval()(x, flow_of(x))
    assert torch.equal(steps.eval()(x, flow_of(x)), dropless) and not torch.allclose(
        write, dropless
    )


def test_there_is_always_room_for_four():
    steps, x = mixture(replace(PLAIN, capacity_factor=0.001)).train(), random_input()
    flow = flow_of(x)
    steps(x, flow)
    load = (flow.metrics["load"][0] * 120).round()
    assert float(flow.metrics["dropped"]) == pytest.approx(1 - float(load.clamp(max=4).sum()) / 120)


@pytest.mark.parametrize("capacity", [None, 0.8])
def test_padding_takes_no_room_and_counts_nowhere(capacity):
    steps = mixture(replace(GATED, capacity_factor=capacity, balance_loss=0.1, z_loss=0.1)).train()
    x = random_input(4, 20)
    alone, flow = x[:, :12], flow_of(x[:, :12])
    write = steps(alone, flow)
    padded = flow_of(x, [12] * 4)
    result = steps(x, padded)
    torch.testing.assert_close(result[:, :12], write, rtol=0.0, atol=1e-5)
    assert result[:, 12:].abs().max() == 0
    for name in ("balance", "z"):
        torch.testing.assert_close(padded.aux[name], flow.aux[name])
    for name in ("load", "entropy", "dropped"):
        torch.testing.assert_close(padded.metrics[name], flow.metrics[name])


def test_losses_and_facts_by_hand():
    steps, x, tape = (
        mixture(replace(PLAIN, balance_loss=0.3, z_loss=0.2)).train(),
        random_input(),
        Tape("*"),
    )
    flow = flow_of(x, tape=tape)
    steps(x, flow)
    logits, chosen = tape["ffn.router"].double().flatten(0, 1), tape["ffn.chosen"].flatten()
    share = logits.softmax(-1)
    load = torch.tensor([float((chosen == expert).double().mean()) for expert in range(4)])
    torch.testing.assert_close(flow.metrics["load"], load[None])
    torch.testing.assert_close(
        float(flow.metrics["entropy"]), float(-(share * share.log()).sum(-1).mean())
    )
    assert float(flow.metrics["dropped"]) == 0
    torch.testing.assert_close(
        float(flow.aux["balance"].detach()), float(0.3 * 4 * (load * share.mean(0)).sum())
    )
    torch.testing.assert_close(
        float(flow.aux["z"].detach()), float(0.2 * logits.exp().sum(-1).log().square().mean())
    )


def test_noise_has_a_learnt_size_and_only_training_hears_it():
    result, x = mixture(replace(GATED, noise=True)), random_input()
    assert result.noise is not None
    quiet = result.eval()(x, flow_of(x))
    assert torch.equal(quiet, result(x, flow_of(x)))
    tape = Tape("*.router")
    result.train()(x, flow_of(x, tape=tape))
    clean = x @ result.router.weight.mT
    size = torch.nn.functional.softplus(x @ result.noise.weight.mT)
    drawn = ((tape["ffn.router"] - clean) / size).detach().flatten()
    assert abs(float(drawn.mean())) < 0.2 and 0.8 < float(drawn.std()) < 1.2
    with torch.no_grad():
        result.noise.weight.zero_()
    torch.manual_seed(3)
    loud = Tape("*.router")
    result(x, flow_of(x, tape=loud))
    torch.manual_seed(3)
    torch.testing.assert_close(loud["ffn.router"], clean + math.log(2) * torch.randn(clean.shape))


def test_every_token_meets_the_shared_expert():
    model, x = mixture(KINDS["shared"]).eval(), random_input()
    shared = model.shared
    write = model(x, flow_of(x))
    model.shared = None
    torch.testing.assert_close(write, model(x, flow_of(x)) + shared(x, flow_of(x)))


def test_one_token_meets_its_own_experts_alone():
    model = mixture(GATED).eval()
    x, tape = random_input(1, 6), Tape("*.chosen")
    full = model(x, flow_of(x, tape=tape))
    for at in range(6):
        strange = sorted(set(range(4)) - set(tape["ffn.chosen"][0, at].tolist()))
        second_model = mixture(GATED).eval()
        with torch.no_grad():
            for table in (second_model.up, second_model.gate, second_model.down):
                table[strange] = math.nan
            item = second_model(x[:, at : at + 1], flow_of(x[:, :1]))
        torch.testing.assert_close(item, full[:, at : at + 1], rtol=0.0, atol=1e-5)


def test_the_router_thinks_in_fp32():
    result, x, tape = mixture(GATED, torch.bfloat16), random_input(dtype=torch.bfloat16), Tape("*")
    with torch.autocast("cpu", torch.bfloat16):
        write = result(x, flow_of(x, tape=tape))
    assert (
        tape["ffn.router"].dtype == tape["ffn.weight"].dtype == torch.float32
        and write.dtype == torch.bfloat16
    )
    torch.testing.assert_close(tape["ffn.router"], x.float() @ result.router.weight.float().mT)
    full = mixture(GATED)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = full(random_input(), flow_of(random_input()))
    exact = full(random_input(), flow_of(random_input()))
    assert float((rounded - exact).abs().max()) < 0.03 * float(exact.abs().max())


def test_the_tape_sees_each_token_and_an_edit_sends_it_elsewhere():
    model, x, tape = mixture(GATED).eval(), random_input(), Tape("*")
    unedited = model(x, flow_of(x))
    assert torch.equal(model(x, flow_of(x, tape=tape)), unedited)
    shapes = {name: tuple(value.shape) for name, value in tape.records.items()}
    assert shapes == {
        "ffn.in": (3, 20, C),
        "ffn.router": (3, 20, 4),
        "ffn.weight": (3, 20, 2),
        "ffn.chosen": (3, 20, 2),
        **dict.fromkeys(("ffn.pre", "ffn.gate", "ffn.up", "ffn.hidden"), (3, 20, 2, 64)),
        "ffn.write": (3, 20, C),
    }
    expert = int(tape["ffn.chosen"][1, 7, 1])
    assert model.gate is not None
    observed = torch.nn.functional.silu(x[1, 7] @ model.gate[expert].mT) * (
        x[1, 7] @ model.up[expert].mT
    )
    torch.testing.assert_close(tape["ffn.hidden"][1, 7, 1], observed)
    sent = model(x, flow_of(x, tape=Tape(edits={"*.chosen": lambda path, value: (value + 1) % 4})))
    assert not torch.allclose(sent, unedited, atol=1e-2)
    with torch.no_grad():  # a single token, as in decoding
        alone, item = Tape("*.hidden"), x[1:2, 7:8]
        assert torch.equal(model(item, flow_of(item, tape=alone)), model(item, flow_of(item)))
    torch.testing.assert_close(alone["ffn.hidden"][0, 0, 1], observed)
    silent = model(x, flow_of(x, tape=Tape(edits={"*.hidden": lambda path, value: value * 0})))
    assert silent.abs().max() == 0


def test_facts_of_every_mixture_reach_the_output():
    first, second = (tiny.block(feedforward=c.MoE(experts, 2, c.MLP(16))) for experts in (4, 6))
    model = build_model(tiny.decoder(first, tiny.block(), second, position=c.Rotary()), seed=1)
    metrics = model(tiny.tokens()).metrics
    assert {name: tuple(value.shape) for name, value in metrics.items()} == {
        "load": (4, 6),
        "entropy": (4,),
        "dropped": (4,),
    }
    torch.testing.assert_close(metrics["load"].sum(-1), torch.ones(4))
    assert metrics["load"][0::2, 4:].abs().max() == 0  # four of the six exist
    assert not any(value.requires_grad for value in metrics.values())
    assert not model.eval()(tiny.tokens()).metrics


def test_an_encoders_mixtures_are_heard_too():
    base: Any = tiny.vaswani()
    think = c.MoE(4, 2, c.MLP(16), balance_loss=0.1)
    mixed = replace(
        base,
        encoder=replace(
            base.encoder, pattern=(replace(base.encoder.pattern[0], feedforward=think),)
        ),
    )
    out = build_model(mixed, seed=1)(tiny.tokens(), tiny.tokens(3, 9))
    assert float(out.aux["balance"]) > 0 and out.metrics["load"].shape == (2, 4)


def test_muon_takes_a_stack_as_its_matrices():
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(3, 24, 16, generator=draw)
    grads = [torch.randn(3, 24, 16, generator=draw) for _ in range(3)]
    stack, apart = nn.Parameter(start.clone()), [nn.Parameter(matrix.clone()) for matrix in start]
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
