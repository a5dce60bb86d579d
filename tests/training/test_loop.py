"""The training loop's laws: loss, gradients, optimizers, schedules, and what never reaches the
weights."""

from __future__ import annotations

import math
import platform
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from glassformer import config
from glassformer.core.config import run
from glassformer.core.nn import build_model
from glassformer.core.training import loss, train
from glassformer.core.training import optimizer as muon
from glassformer.core.training.batches import Batch
from glassformer.core.training.causal import Causal
from glassformer.core.training.loop import State
from glassformer.core.training.loss import cross_entropy, gradients, split
from glassformer.core.training.optimizer import Optimizer, factor
from glassformer.fast.training import execution
from glassformer.fast.training.bf16_replica import Bf16Replica
from glassformer.fast.training.blockwise import blockwise
from glassformer.fast.training.execution import ExecutionSettings, choose_execution
from mistakes import mistake
from seeding import generator_from
from tiny import equal_tensors

PLAIN = ExecutionSettings()


def tiny(tied=True, dropout=0.0, vocab=50):
    block = config.Block(config.Attention(heads=2), config.GatedMLP(hidden=24))
    stack = config.Stack(2, (block,), config.Rotary(), last_norm=config.RMSNorm(), dropout=dropout)
    return config.Decoder(16, 24, config.Embed(vocab), stack, config.Head(tied=tied, bias=not tied))


class Random:
    """Batches of random tokens with ragged ends, the same from the same place on."""

    def __init__(self, rows=4, length=12, vocab=50, repeat=False):
        self.rows, self.length, self.vocab, self.repeat = rows, length, vocab, repeat
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        draw = generator_from(0 if self.repeat else self.at)
        self.at += 1
        tokens = torch.randint(self.vocab, (self.rows, self.length + 1), generator=draw)
        targets = tokens[:, 1:].clone()
        for row in range(self.rows):
            targets[row, self.length - 2 * row :] = -1
        return Batch(tokens[:, :-1], targets)

    def state(self):
        return {"at": self.at}

    def restore(self, state):
        self.at = state["at"]


def model_of(seed=1, **changes):
    return build_model(tiny(**changes), seed=seed)


def steps_of(model=None, batches=None, execution=PLAIN, state=None, **settings):
    """The steps of a training with batches of 4, as they are taken."""
    return train(
        model or model_of(),
        batches or Random(),
        settings=run.Train(**{"batch": 4, **settings}),
        execution=execution,
        state=state,
    )


def losses_of(*args, **options):
    return [step.loss for step in steps_of(*args, **options)]


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def gradients_of(model, batch, pieces=1):
    """What ``gradients`` counts, and each weight's gradient."""
    model.zero_grad()
    counted = gradients(model, batch, Causal(), pieces)
    return counted, {name: p.grad.clone() for name, p in model.named_parameters()}


# ------------------------------------------------------------------------------------ objective


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_in_pieces_equals_torchs(bias, softcap, smoothing, monkeypatch):
    monkeypatch.setattr(loss, "LOGITS_IN_CACHE", 50 * 2)  # several passes a piece
    draw = generator_from(0)
    hidden, table, *biases = values = [
        torch.randn(shape, generator=draw, dtype=torch.float64, requires_grad=True)
        for shape in [(37, 16), (50, 16)] + [(50,)] * bias
    ]
    targets = torch.randint(50, (37,), generator=draw)
    targets[[0, 7, 8, 36]] = -1
    logits = F.linear(*values)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    options = {"ignore_index": -1, "reduction": "sum", "label_smoothing": smoothing}
    plain = F.cross_entropy(logits, targets, **options)
    expected = torch.autograd.grad(plain * 3, values)
    for limit in (50 * 5, loss.ONE_SHOT):
        monkeypatch.setattr(loss, "ONE_SHOT", limit)
        args = (*biases, softcap) if biases else (None, softcap)
        pieces = cross_entropy(hidden, targets, table, *args, smoothing)
        assert_close(pieces, plain)
        assert_close(torch.autograd.grad(pieces * 3, values), expected)


def test_a_certain_model_has_its_exact_loss_and_a_broken_one_none():
    table = torch.eye(4)
    targets = torch.tensor([0, 1, 2])
    for size in (50.0, 200.0):  # the target's share underflows in fp32
        hidden = torch.tensor([[size, 0, 0, 0], [size, 0, 0, 0], [0, 0, 0, size]])
        assert float(cross_entropy(hidden, targets, table)) == pytest.approx(2 * size)
    assert math.isnan(float(cross_entropy(hidden * math.nan, targets, table)))
    assert float(cross_entropy(hidden * math.nan, torch.full((3,), -1), table)) == 0.0


def test_pieces_never_hold_more_logits_than_the_limit(monkeypatch):
    calls = []
    linear = F.linear
    monkeypatch.setattr(loss.F, "linear", lambda *args: calls.append(len(args[0])) or linear(*args))
    monkeypatch.setattr(loss, "ONE_SHOT", 500)
    hidden = torch.randn(37, 16, requires_grad=True)
    table = torch.randn(50, 16)
    targets = torch.zeros(37, dtype=torch.long)
    cross_entropy(hidden, targets, table).backward()
    assert calls == [10, 10, 10, 7]
    assert table.grad is None
    with torch.no_grad():
        assert not cross_entropy(hidden, targets, table).requires_grad


# ------------------------------------------------------------------------------------------ bf16


def in_bf16(model, batch, pieces=1):
    half = Bf16Replica(model.train())
    half.follow()
    result = gradients(half.model, batch, Causal(), pieces)
    return result, {name: p.grad.clone() for name, p in model.named_parameters()}


def test_bf16_gives_the_gradients_of_fp32_in_fp32():
    model = model_of()
    batch = next(Random())
    sums, result = in_bf16(model, batch)
    right, grads = gradients_of(model, batch)
    assert sums.count == right.count
    assert sums.loss == pytest.approx(right.loss, rel=0.01)
    for name, grad in grads.items():
        # and its dtype
        assert_close(result[name], grad, rtol=0.1, atol=0.03 * float(grad.abs().max()))


def test_bf16_gradients_add_up_over_pieces_in_fp32():
    model = model_of()
    batch = next(Random())
    _, together = in_bf16(model, batch, 4)
    alone = []
    for piece in split(batch, 4):
        model.zero_grad()
        alone.append(in_bf16(model, piece)[1])
    for name, value in together.items():
        assert_close(value, sum(grads[name] for grads in alone), rtol=1e-6, atol=1e-7)


def test_under_autocast_the_loss_is_bf16s():
    model = model_of()
    batch = next(Random())
    plain = Causal().loss(model, batch).sum.item()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert Causal().loss(model, batch).sum.item() == pytest.approx(plain, rel=0.01)


@pytest.mark.parametrize("dtype, most", [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("pieces", [2, 3, 4])
def test_accumulated_gradients_equal_the_full_batchs_whatever_the_padding(dtype, most, pieces):
    batch = next(Random())
    model = model_of().to(dtype)
    assert len({int((row >= 0).sum()) for row in batch.targets}) == 4  # ragged
    (sums, right), (in_micro_batches, result) = (gradients_of(model, batch, n) for n in (1, pieces))
    assert sums.count == in_micro_batches.count == 36
    assert sums.loss == pytest.approx(in_micro_batches.loss, rel=1e-6)
    assert_close(result, right, rtol=most, atol=most)


def test_a_step_under_accumulation_moves_the_weights_as_a_whole_one():
    after = []
    for accumulate in (1, 3):
        model = model_of().double()
        after.append((losses_of(model, steps=3, accumulate=accumulate), weights_of(model)))
    assert after[0][0] == pytest.approx(after[1][0], rel=1e-9)
    assert_close(after[0][1], after[1][1], rtol=1e-6, atol=1e-8)


def test_split_leaves_out_nothing():
    batch = next(Random(rows=5))
    pieces = split(replace(batch, pos=batch.targets), 3)
    assert [len(piece.tokens) for piece in pieces] == [2, 2, 1]
    assert pieces[0].document_ids is None
    assert torch.equal(torch.cat([piece.pos for piece in pieces]), batch.targets)


def test_auxiliary_losses_are_weighed_by_the_targets():
    model = model_of()
    batch = next(Random())
    plain = Causal().loss(model, batch)
    model.register_forward_hook(
        lambda module, inputs, output: output.aux.update(balance=torch.tensor(0.5))
    )
    loss = Causal().loss(model, batch)
    assert float(loss.total.detach()) == pytest.approx(float(plain.total.detach()) + 0.5 * 36)
    assert loss.sum.item() / loss.count == pytest.approx(plain.sum.item() / plain.count)


# ------------------------------------------------------------------------------------ schedules


@pytest.mark.parametrize(
    "schedule, total, factors",
    [
        (run.Cosine(warmup=10, floor=0.1), 110, {1: 0.1, 10: 1.0, 60: 0.55, 110: 0.1}),
        (
            # the last step still moves the weights
            run.WarmupStableDecay(warmup=0.1, decay=0.2, floor=0.0),
            100,
            {5: 0.5, 10: 1, 50: 1, 80: 1, 90: 11 / 21, 100: 1 / 21},
        ),
        (run.Constant(warmup=4), 9, {1: 0.25, 4: 1, 9: 1}),
        (run.InverseSqrt(warmup=100), 1000, {50: 0.5, 100: 1.0, 400: 0.5}),
        (  # Vaswani et al. 2017, section 5.3
            run.InverseSqrt(warmup=4000, dim=512),
            100_000,
            {
                step: 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
                for step in (1, 100, 4000, 100_000)
            },
        ),
    ],
)
def test_schedules(schedule, total, factors):
    for step, expected in factors.items():
        assert factor(schedule, step, total) == pytest.approx(expected)


def test_pytorchs_cosine_agrees():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.1)
    for step in range(51):
        assert factor(run.Cosine(warmup=0.0, floor=0.1), step, 50) == pytest.approx(
            scheduler.get_last_lr()[0], abs=1e-9
        )
        optimizer.step()
        scheduler.step()


# ----------------------------------------------------------------------------------- optimizers


def test_groups_by_path():
    groups = (run.Group("embed.*", lr_scale=0.5), run.Group("*.ffn.*", weight_decay=0.01))
    settings = run.AdamW(weight_decay=0.2, groups=groups)
    optimizer = Optimizer(build_model(tiny(tied=False)), settings)
    result = {
        name: (group["base_lr"] / settings.lr, group["weight_decay"])
        for group in optimizer.groups()
        for name in group["paths"]
    }
    expected = {
        "embed.token.weight": (0.5, 0.0),
        "head.proj.weight": (1, 0.2),
        "head.proj.bias": (1, 0.0),
        "decoder.blocks.0.attn.q.weight": (1, 0.2),
        "decoder.blocks.1.ffn.up.weight": (1, 0.01),
        "decoder.blocks.0.attn_norm.weight": (1, 0.0),
        "decoder.last_norm.weight": (1, 0.0),
    }
    assert result.items() >= expected.items()
    assert set(result) == set(optimizer.parameters)


def test_muon_has_the_matrices_of_the_blocks_and_adamw_the_rest():
    matrix, adamw = Optimizer(build_model(tiny(tied=False)), run.Muon(lr=0.01)).optimizers
    assert isinstance(matrix, muon.Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    matrices, names = (
        {name for group in optimizer.param_groups for name in group["paths"]}
        for optimizer in (matrix, adamw)
    )
    assert len(matrices) == 2 * 7
    assert all(".blocks." in name and "norm" not in name for name in matrices)
    assert {"embed.token.weight", "head.proj.weight", "decoder.last_norm.weight"} <= names
    groups = list(Optimizer(build_model(tiny()), run.AdamW()).groups())
    assert len(groups) == 2
    assert all(group["fused"] for group in groups)


def test_muon_is_torchs(monkeypatch):
    # stacks of two, and of a few smaller ones
    monkeypatch.setattr(muon, "STACK_NUMEL", 24 * 16 * 2)
    shapes = [(24, 16), (16, 24), (16, 16), (24, 16), (8, 16), (16, 24)]
    draw = generator_from(0)
    start, *grads = ([torch.randn(shape, generator=draw) for shape in shapes] for _ in range(4))
    local, reference = ([torch.nn.Parameter(value.clone()) for value in start] for _ in range(2))
    optimizers = (
        muon.Muon([{"params": local, "lr": 0.1, "weight_decay": 0.1}], 0.9),
        torch.optim.Muon(reference, 0.1, 0.1, 0.9, adjust_lr_fn="match_rms_adamw"),
    )
    for step in grads:
        for optimizer, weights in zip(optimizers, (local, reference), strict=True):
            for weight, grad in zip(weights, step, strict=True):
                weight.grad = grad.clone()
            optimizer.step()
    for actual, expected, value in zip(local, reference, start, strict=True):
        moved = (expected.detach() - value * 0.99**3).abs().max()
        # bf16 inside both
        assert float((actual - expected).detach().abs().max()) < 0.03 * float(moved)
        momenta = (
            optimizer.state[weight]["momentum_buffer"]
            for optimizer, weight in zip(optimizers, (actual, expected), strict=True)
        )
        assert_close(*momenta)


def test_adamw_is_torchs_with_the_gradients_of_the_mean():
    model = model_of().double()
    reference = model_of().double()
    optimizer = run.AdamW(weight_decay=0.0)
    steps = steps_of(model, steps=4, clip=0.05, schedule=run.Constant(), optimizer=optimizer)
    adamw = torch.optim.AdamW(
        reference.parameters(), lr=optimizer.lr, betas=(0.9, 0.95), weight_decay=0.0
    )
    for batch, step in zip(Random(), list(steps), strict=False):
        adamw.zero_grad()
        logits = reference(batch.tokens).logits.flatten(0, 1)
        F.cross_entropy(logits, batch.targets.flatten(), ignore_index=-1).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05))
        assert step.grad_norm == pytest.approx(norm, rel=1e-6)
        assert norm > 0.05  # the clip bites
        adamw.step()
    assert_close(weights_of(model), weights_of(reference), rtol=1e-6, atol=1e-9)


def test_on_a_gpu_muon_orthogonalises_many_matrices_at_once():
    """The directions of a stack are each matrix's own; the 124M shape's 72 matrices take six stacks
    instead of 72."""
    draw = generator_from(0)
    one_by_one = [torch.randn(24, 40, generator=draw, dtype=torch.bfloat16) for _ in range(7)]
    for matrix, result in zip(one_by_one, muon.orthogonal(torch.stack(one_by_one)), strict=True):
        alone = muon.orthogonal(matrix[None])[0]
        # a rounding of bf16
        assert (result.float() - alone.float()).norm() <= 2**-7 * alone.float().norm()
    shapes = [(768, 768)] * 48 + [(3072, 768), (768, 3072)] * 12
    gpu = muon.stack_indices(shapes, muon.stack_numel([torch.empty(1, device="meta")]))
    assert len(gpu) == 6
    assert sorted(i for stack in gpu for i in stack) == list(range(72))
    assert len(muon.stack_indices(shapes, muon.stack_numel([torch.empty(1)]))) == 72


BLOCKWISE = {
    "packed": {"packed": True},
    "alibi": {"packed": True, "stack": {"position": config.Alibi()}},
    "t5": {"stack": {"position": config.RelativeBias(8, 16)}},
    "windows": {"packed": True, "attention": {"kv_heads": 1, "mask": config.Window(5)}},
    "mixture": {"feedforward": config.MoE(4, 2, config.MLP(16), balance_loss=0.01)},
}


@pytest.mark.parametrize("name", BLOCKWISE)
def test_blocks_are_compiled_once_for_all_batches(name, monkeypatch):
    """The first block, which makes the masks, and the others: two programs; losses and gradients as
    without."""
    case = BLOCKWISE[name]
    attention = config.Attention(2, **case.get("attention", {}))
    block = config.Block(attention, case.get("feedforward", config.MLP(24)))
    stack_options = {
        "position": config.Rotary(),
        "last_norm": config.RMSNorm(),
        **case.get("stack", {}),
    }
    stack = config.Stack(4, (block,), **stack_options)
    model = build_model(config.Decoder(16, 24, config.Embed(50), stack), seed=0).train()
    # of fp32 experts torch has no grouped product but on a CPU, which a trace does not see
    model, close = (
        (model.bfloat16(), {"rtol": 0.03, "atol": 0.03})
        if "feedforward" in case
        else (model, {"rtol": 1e-4, "atol": 1e-6})
    )
    programs = []
    compile = torch.compile
    keep = lambda graph, args: programs.append(graph) or graph.forward  # noqa: E731
    monkeypatch.setattr(
        torch, "compile", lambda piece, **more: compile(piece, backend=keep, **more)
    )
    torch._dynamo.reset()
    view = blockwise(model)
    for number in range(4):
        batch = next(Random())
        place = torch.arange(12).expand(4, -1)
        if case.get("packed"):
            size = 4 + number
            batch = replace(batch, pos=place % size, document_ids=place // size)
        results = []
        for runner in (model, view):
            model.zero_grad()
            total = loss.backward(runner, batch, Causal(), 0.0).total
            results.append([total, *(p.grad for p in model.parameters())])
        assert_close(*results, **close)
    assert len(programs) == 2
    with mistake(r"train\.compile is for one process"):
        execution.choose_by_table(tiny(), torch.device("cpu"), run.Train(compile="blocks"))
    torch._dynamo.reset()


def test_tf32_is_asked_for_said_and_taken_back(monkeypatch):
    settings = run.Train(tf32=True)
    cpu = torch.device("cpu")
    for refuse in (
        lambda: choose_execution(model_of(), next(Random()), Causal(), settings),
        lambda: execution.choose_by_table(tiny(), cpu, settings),
    ):
        with mistake(r"train\.tf32 is for NVIDIA GPUs"):
            refuse()
    gpu = torch.device("cuda")
    assert "TF32" in execution._tf32(settings, gpu)
    assert not execution._tf32(run.Train(), gpu)
    before = torch.get_float32_matmul_precision()
    calls = []
    backward = loss.backward
    note = lambda *args: calls.append(torch.get_float32_matmul_precision()) or backward(*args)  # noqa: E731
    monkeypatch.setattr(loss, "backward", note)
    for options in (ExecutionSettings(), ExecutionSettings(tf32=True)):
        assert not next(steps_of(execution=options, steps=1)).skipped
        assert torch.get_float32_matmul_precision() == before
    assert calls == [before, "high"]


@pytest.mark.parametrize(
    "chosen, plan, least",
    [
        (run.AdamW(lr=0.02, weight_decay=0.0), PLAIN, 0.05),
        (run.Muon(lr=0.02, weight_decay=0.0, rest=run.AdamW(lr=0.02)), PLAIN, 0.05),
        (run.AdamW(lr=0.02), ExecutionSettings(dtype="bfloat16"), 1.0),
    ],
)
def test_it_overfits_one_batch(chosen, plan, least):
    model = model_of()
    steps = steps_of(model, Random(repeat=True), plan, steps=150, optimizer=chosen)
    assert next(steps).loss > 3.5
    assert any(step.loss < least for step in steps)
    assert all(p.dtype is torch.float32 for p in model.parameters())


# ------------------------------------------------------------------------------------- the loop


def test_a_seed_gives_the_same_run():
    def losses(seed):
        return losses_of(model_of(seed, dropout=0.2), steps=5, seed=seed)

    assert losses(1) == losses(1) != losses(2)


def test_a_step_says_what_happened():
    steps = list(steps_of(steps=3))
    assert [(step.index, step.last) for step in steps] == [(1, False), (2, False), (3, True)]
    assert all(step.tokens == 36 and step.grad_norm > 0 and step.seconds > 0 for step in steps)
    assert steps[0].lr == run.Muon().lr
    assert steps[2].lr == pytest.approx(run.Muon().lr / 3)
    assert steps[-1].state.tokens == 108


class Poisoned(Random):
    """Batches of which some make the loss something else than a number."""

    def __init__(self, model, bad, value=math.nan, **settings):
        super().__init__(**settings)
        self.model, self.bad, self.value = model, bad, value
        self.hook = None

    def __next__(self):
        if self.hook:
            self.hook.remove()
        poison = self.value if self.at in self.bad else 1.0
        self.hook = self.model.embed.register_forward_hook(
            lambda module, inputs, output: output * poison
        )
        return super().__next__()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_step_that_is_not_finite_never_reaches_the_weights(value):
    model = model_of()
    before = None
    skipped = []
    for step in steps_of(model, Poisoned(model, {2, 3}, value), steps=6):
        moments = {name: value.clone() for name, value in step.state.optimizer.state().items()}
        after = {**weights_of(model), **moments}
        if step.skipped:
            skipped.append(step.index)
            assert equal_tensors(after, before)
        assert all(torch.isfinite(weight).all() for weight in model.parameters())
        before = after
    assert skipped == [3, 4]
    assert step.state.skipped_in_a_row == 0


def test_an_infinite_gradient_is_skipped_though_the_loss_is_finite():
    model = model_of()
    model.decoder.last_norm.weight.register_hook(lambda grad: grad * math.inf)
    for step in steps_of(model, steps=2):
        assert math.isfinite(step.loss)
        assert "gradient" in step.skipped


def test_several_in_a_row_stop_the_training_with_one_sentence():
    model = model_of()
    calls = []
    steps = steps_of(model, Poisoned(model, range(4, 99)), steps=99, max_skipped_steps=3)
    with mistake(r"3 steps in a row.*loss is nan.*optimizer\.lr"):
        calls.extend(step.skipped is not None for step in steps)
    assert calls == [False] * 4 + [True] * 3


def test_a_batch_without_targets_is_skipped():
    batch = replace(next(Random()), targets=torch.full((4, 12), -1))
    (step,) = steps_of(batches=iter([batch]), steps=1)
    assert "no targets" in step.skipped


def test_the_plan_leaves_everything_as_it_was():
    def plan(**settings):
        return choose_execution(model, next(Random()), Causal(), run.Train(batch=4, **settings))

    model = model_of(dropout=0.5).eval()
    weights = weights_of(model)
    drawn = torch.get_rng_state()
    chosen = plan(steps=10)
    assert chosen.seconds > 0
    assert chosen.peak > 1e8
    assert not chosen.compile
    assert "no torch.compile" in chosen.why
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not model.training
    assert equal_tensors(weights, weights_of(model))
    assert all(p.grad is None for p in model.parameters())
    explicit = plan(dtype="bfloat16", compile="yes")
    assert explicit.dtype == "bfloat16"
    assert explicit.compile


CPUS = {
    "CPU with AMX": "vendor_id : GenuineIntel\nflags : avx512_bf16 amx_bf16 "
    "amx_tile\n\nprocessor : 1",
    "CPU with AVX512-BF16": "vendor_id : GenuineIntel\nflags : avx512f avx512_bf16\n\nprocessor : 1",
    "AMD CPU with AVX512-BF16": "vendor_id : AuthenticAMD\nflags : avx512f "
    "avx512_bf16\n\nprocessor : 1",
    "machine": "vendor_id : AuthenticAMD\nflags : avx2 fma\n",
}


@pytest.mark.parametrize("kind", CPUS)
def test_the_kind_of_a_machine_is_read_off_its_flags(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(execution, "CPUINFO", tmp_path / "cpuinfo")
    assert execution.machine(torch.device("cpu")) == "machine"  # no Linux
    (tmp_path / "cpuinfo").write_text(CPUS[kind])
    assert execution.machine(torch.device("cpu")) == kind
    assert execution.machine(torch.device("meta")) == "machine"


@pytest.mark.parametrize(
    "kind, width, dtype",
    [
        ("CPU with AMX", 384, "bfloat16"),
        ("CPU with AMX", 380, "float32"),
        ("AMD CPU with AVX512-BF16", 128, "bfloat16"),
        ("AMD CPU with AVX512-BF16", 64, "float32"),
        ("CPU with AVX512-BF16", 4096, "float32"),
        ("GPU with bf16", 64, "bfloat16"),
        ("machine", 4096, "float32"),
    ],
)
def test_the_table_decides(kind, width, dtype):
    assert execution.find_rule(replace(tiny(), dim=width), kind).dtype == dtype


def test_the_same_command_on_the_same_kind_of_machine_gives_the_same_bits(monkeypatch):
    """Whatever a stopwatch says: one that finds bf16 a thousand times faster, and one that finds it
    slower."""
    results = []
    for ratio in (1e-3, 1e3):
        seconds = {"float32": 1.0, "bfloat16": ratio}
        peaks = {torch.float32: 1e9, torch.bfloat16: 1e9 / ratio}
        monkeypatch.setattr(
            execution, "_step_seconds", lambda m, b, o, s, dtype, table=seconds: table[dtype]
        )
        monkeypatch.setattr(execution, "matmul_peak", lambda dtype, _, table=peaks: table[dtype])
        model = model_of(3, dropout=0.1)
        list(train(model, Random(), settings=run.Train(steps=4, batch=4)))
        results.append(weights_of(model))
    assert equal_tensors(*results)


def test_a_plan_for_a_big_step_times_a_part_of_it(monkeypatch):
    run_it = execution.gradients
    rows = []
    monkeypatch.setattr(
        execution,
        "gradients",
        lambda m, piece, *args: rows.append(len(piece.tokens)) or run_it(m, piece, *args),
    )
    for trial, expected in ((execution.TRIAL, 4), (1.0, 1)):
        monkeypatch.setattr(execution, "TRIAL", trial)
        choose_execution(model_of(), next(Random()), Causal(), run.Train(steps=10, batch=4))
        assert set(rows) == {expected}
        rows.clear()


@pytest.mark.parametrize(
    "plan", [PLAIN, ExecutionSettings(dtype="bfloat16")], ids=lambda plan: plan.dtype
)
def test_a_state_goes_on_where_it_was(plan):
    settings = run.Train(steps=6, batch=4)
    expected = model_of()
    list(train(expected, Random(), settings=settings, execution=plan))
    model = model_of()
    batches = Random()
    state = State(model, Optimizer(model, settings.optimizer), batches)
    options = {"settings": settings, "state": state, "execution": plan}
    next(step for step in train(model, batches, **options) if step.index == 3)
    assert [step.index for step in train(model, batches, **options)] == [4, 5, 6]
    assert equal_tensors(weights_of(model), weights_of(expected))


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [False, True])
def test_compiled_training_equals_eager(blocks):
    plan = ExecutionSettings(compile=True, blocks=blocks)
    assert losses_of(execution=plan, steps=5) == pytest.approx(losses_of(steps=5), rel=1e-4)


FAULTS = """
import resource, torch
from glassformer.fast.training.allocator import keep_freed_memory
if {kept}:
    assert keep_freed_memory()
for index in range(8):
    if index == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step = [torch.ones(1 << 24) for _ in range(3)]
    del step
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator only")
@pytest.mark.slow
def test_freed_memory_is_kept_for_the_next_step():
    def faults(saved):
        command = [sys.executable, "-c", FAULTS.format(kept=saved)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    # Several blocks, as a step has them: freed together they are one, with room to align in. (A
    # single block is not always taken again: something small may lie right behind it.)
    assert max(faults(True) for _ in range(3)) < 0.5 * faults(False)
