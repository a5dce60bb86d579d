"""Training and checkpoints, held where a planted bug once lived."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from glassformer import config
from glassformer.core.config import run
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.core.training import loop, loss, train
from glassformer.core.training.batches import Batches
from glassformer.core.training.loss import forward
from glassformer.core.training.optimizer import Optimizer, factor, factor_in_extended_run
from glassformer.formats import store
from glassformer.formats.data import find as find_corpus
from glassformer.formats.data import tokenise
from glassformer.runs import run_checkpoints
from mistakes import mistake
from runs.test_run_checkpoints import go, new_state
from training.test_loop import Random, steps_of, tiny

# ------------------------------------------------------------------------------------- training


def test_a_gradient_below_the_clip_is_only_averaged():
    grads = [torch.tensor([3.0, 4.0])]
    loop._scale(grads, norm=0.5, count=10, clip=1.0)
    assert torch.equal(grads[0], torch.tensor([0.3, 0.4]))
    loop._scale(grads, norm=5.0, count=1, clip=1.0)
    assert grads[0].tolist() == pytest.approx([0.06, 0.08])
    loop._scale([], norm=0.0, count=1, clip=1.0)  # no weight has a gradient


def test_a_seed_starts_every_generator():
    drawn = []
    for _ in range(2):
        list(steps_of(steps=1, seed=7))
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(1))))
    assert drawn[0] == drawn[1]


def test_each_group_moves_at_its_own_rate():
    groups = (run.Group("embed.*", lr_scale=0.5), run.Group("*.ffn.*", lr_scale=0.25))
    chosen = run.Muon(lr=0.01, groups=groups, rest=run.AdamW(lr=0.04, eps=1e-5, groups=groups))
    (step,) = steps_of(steps=1, optimizer=chosen, schedule=run.Constant())
    optimizer = step.state.optimizer
    rates = {path: group["lr"] for group in optimizer.groups() for path in group["paths"]}
    for name, rate in (
        ("embed.token.weight", 0.02),
        ("decoder.last_norm.weight", 0.04),
        ("decoder.blocks.0.attn.q.weight", 0.01),
        ("decoder.blocks.0.ffn.up.weight", 0.0025),
    ):
        assert rates[name] == pytest.approx(rate)
    assert step.lr == pytest.approx(0.04)
    assert len(step.lrs) == 4
    assert {name.split()[0] for name in step.lrs} == {"Muon", "AdamW"}
    assert {group["eps"] for group in optimizer.optimizers[1].param_groups} == {1e-5}


def test_muon_leaves_the_biases_of_experts_to_the_rest():
    block = config.Block(config.Attention(2), config.MoE(4, 2, config.MLP(8, bias=True)))
    model = build_model(config.Decoder(16, 24, config.Embed(50), config.Stack(1, (block,))), seed=1)
    groups = Optimizer(model, run.Muon()).optimizers[0].param_groups
    matrices = {path for group in groups for path in group["paths"]}
    names = {name for name, p in model.named_parameters() if ".ffn." in name and p.ndim == 2}
    stacks = {name for name in names if name.endswith("bias")}
    assert stacks
    assert not stacks & matrices
    assert any(".ffn." in name for name in matrices)


def test_moments_are_taken_up_apart_and_alone():
    state = go(new_state(), run.Train(steps=2, batch=4))
    saved = {name: value.clone() for name, value in state.optimizer.state().items()}
    second = go(new_state(), run.Train(steps=3, batch=4)).optimizer
    name = next(name for name in saved if name.endswith(":exp_avg"))
    path = name.partition(":")[0]
    group = {key: value for key, value in saved.items() if not key.startswith(path)}
    second.restore(group)
    assert second.state().keys() == group.keys()  # nothing of before stays
    args = {key: value.clone() for key, value in saved.items()}
    second.restore(args)
    args[name].fill_(7.0)
    assert torch.equal(second.state()[name], saved[name])  # no alias
    with mistake(r"this model \[50, 16\]|as \["):
        second.restore({**saved, name: saved[name][:1]})


def test_a_prefix_reaches_the_model():
    model = build_model(tiny(), seed=1).eval()
    batch = next(Random())
    prefix = torch.zeros_like(batch.tokens, dtype=torch.bool)
    prefix[:, :6] = True
    plain, output = (forward(model, item).hidden for item in (batch, replace(batch, prefix=prefix)))
    assert not torch.allclose(plain[:, 2], output[:, 2])
    assert torch.isfinite(output).all()


def test_gradients_shared_by_processes_see_every_batch():
    """Nothing is drawn for a choice of number format before them."""
    batches = iter(range(3))
    consumed_batches = []
    state = loop.State(model := build_model(tiny(), seed=0), Optimizer(model, run.AdamW()), batches)

    def gradients(runner, batches, *args):
        consumed_batches.append(next(batches))
        return loss.Sums(0.0, 0.0, 0, 0, {})

    state.gradients = gradients
    list(train(model, batches, settings=run.Train(steps=3), state=state))
    assert consumed_batches == [0, 1, 2]


def test_a_tables_gradient_over_many_pieces_is_added_up_in_fp32(monkeypatch):
    """512 equal pieces: added up in bf16 the sum would stand still long before the end."""
    hidden = torch.ones(512, 8, dtype=torch.bfloat16)
    table = torch.zeros(4, 8, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(512, dtype=torch.long)
    monkeypatch.setattr(loss, "ONE_SHOT", 4)
    loss.cross_entropy(hidden, targets, table).backward()
    right = torch.tensor([-0.75, 0.25, 0.25, 0.25]) * 512
    assert_close(table.grad.float(), right[:, None].expand(4, 8), rtol=0.01, atol=0.0)


def test_borders_of_a_second_corpus_stand_in_its_own_rows(tmp_path):
    """One corpus is one long document, the other many short ones: only the second's rows hold
    borders."""
    texts = ("a" * 900, "%".join(["bbbb"] * 200))
    pieces = []
    tokenizer = train_tokenizer("char", ["ab"])
    for text in texts:
        path = tmp_path / f"{text[0]}.txt"
        path.write_text(text)
        source = find_corpus(str(path), separator="%")
        pieces.append((tokenise(source, tokenizer, cache=tmp_path / "cache"), 1.0))
    batch = next(Batches(pieces, 8, 16))
    of_b = (batch.tokens == tokenizer.encode("b")[0]).any(1)
    assert of_b.sum() == 4
    assert torch.equal(batch.document_ids[:, -1] > 0, of_b)


@pytest.mark.parametrize("schedule", [run.Cosine(warmup=2), run.WarmupStableDecay(warmup=2)])
def test_a_schedule_begins_anew_after_the_step_at_which_a_run_had_ended(schedule):
    result = [factor_in_extended_run(schedule, step, 10, (4,)) for step in range(1, 11)]
    steps = [(step, 4) for step in range(1, 5)] + [(step, 6) for step in range(1, 7)]
    assert result == [factor(schedule, step, total) for step, total in steps]
    constant = run.Constant(warmup=0.5)
    result = [factor_in_extended_run(constant, step, 10, (4,)) for step in (1, 2, 5)]
    assert result == [0.5, 1.0, 1.0]


# ---------------------------------------------------------------------------------- checkpoints


def test_best_and_bad_come_back(tmp_path):
    state = go(new_state(), run.Train(steps=2, batch=4))
    state.best, state.best_step, state.skipped_in_a_row = 1.25, 1, 3
    again = new_state()
    run_checkpoints.restore(run_checkpoints.save(tmp_path, state), again)
    assert (again.best, again.best_step, again.skipped_in_a_row) == (1.25, 1, 3)


def test_weights_of_another_shape_are_refused(tmp_path, monkeypatch):
    path = run_checkpoints.save(tmp_path, go(new_state(), run.Train(steps=1, batch=4)))
    second = new_state(tiny(dropout=0.2, vocab=40))
    store.save(second.model, tmp_path / "other", layout="glassformer")
    shutil.copy(tmp_path / "other" / "model.safetensors", path)
    monkeypatch.setattr(run_checkpoints, "verify", lambda path: None)
    with mistake(r"another model's weights: the shape of embed.token.weight"):
        run_checkpoints.restore(path, new_state())


def saved(folder, *numbers):
    state = go(new_state(), run.Train(steps=1, batch=4))
    for number in numbers:
        state.step = number
        with torch.no_grad():
            state.model.decoder.last_norm.weight.fill_(float(number))
        run_checkpoints.save(folder, state)
    return state


def test_half_a_checkpoint_never_bears_a_good_name(tmp_path, monkeypatch):
    saved(tmp_path, 1, 2, 3)
    # killed in the middle
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: (path / "config.json").unlink())
    run_checkpoints.rotate(tmp_path, 1)
    assert [path.name for path in run_checkpoints.steps(tmp_path)] == ["step-000003"]
    monkeypatch.undo()
    remaining = {path.name for path in tmp_path.iterdir()} - {"last", "step-000003"}
    assert remaining == {".step-000001.old", ".step-000002.old"}
    (tmp_path / ".last.x1.part").write_text("")
    (tmp_path / ".run.json.x1.part").write_text("")
    (tmp_path / ".mine").write_text("")
    run_checkpoints.tidy(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"last", "step-000003", ".mine"}


def test_a_million_comes_after_what_is_below_it(tmp_path):
    saved(tmp_path, 1_000_000, 999_999)
    assert run_checkpoints.newest(tmp_path).name == "step-1000000"


def test_the_pointer_is_replaced_not_written_over(tmp_path):
    saved(tmp_path, 1)
    os.link(tmp_path / "last", tmp_path / "reader")  # who has it open sees the old one whole
    saved(tmp_path, 2)
    assert (tmp_path / "reader").read_text() == "step-000001\n"
    assert (tmp_path / "last").read_text() == "step-000002\n"


def test_a_step_is_not_written_again(tmp_path):
    state = saved(tmp_path, 1)
    before = (tmp_path / "step-000001" / "model.safetensors").stat()
    run_checkpoints.save(tmp_path, state)
    after = (tmp_path / "step-000001" / "model.safetensors").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_an_average_is_of_as_many_as_are_asked_for(tmp_path):
    saved(tmp_path, 1, 2, 6)
    for last, mean in ((1, 6.0), (2, 4.0), (3, 3.0)):
        model, _ = run_checkpoints.average(tmp_path, last)
        assert torch.allclose(model.decoder.last_norm.weight, torch.tensor(mean))
    with mistake(r"keeps 3 checkpoints; give --last 3, or train with --keep 4"):
        run_checkpoints.average(tmp_path, 4)
    weights = tmp_path / "step-000001" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\7")
    run_checkpoints.average(tmp_path, 2)
    with mistake(r"step-000001.*is damaged: its sha256"):
        run_checkpoints.average(tmp_path, 3)
    shutil.rmtree(tmp_path / "step-000001"), shutil.rmtree(tmp_path / "step-000002")
    with mistake(r"keeps 1 checkpoint;"):
        run_checkpoints.average(tmp_path, 2)
