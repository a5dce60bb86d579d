"""Checkpoints: bit-exact, whole or absent, the good ones never lost."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from folders import read_json, write_json
from glassformer.core import files
from glassformer.core.config import run
from glassformer.core.errors import UserError
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.core.training import train
from glassformer.core.training.loop import State
from glassformer.core.training.optimizer import Optimizer
from glassformer.fast.training.execution import ExecutionSettings
from glassformer.formats import store
from glassformer.runs import run_checkpoints
from glassformer.runs.callbacks import Save
from glassformer.runs.resume import restore_newest
from mistakes import mistake
from tiny import equal_tensors
from training.test_loop import Poisoned, Random, tiny


def new_state(cfg=None, chosen=None, **batches):
    model = build_model(cfg or tiny(dropout=0.2), seed=1)
    return State(model, Optimizer(model, chosen or run.AdamW()), Random(**batches))


def go(state, settings, stop=None, hook=lambda step: None):
    for step in train(
        state.model, state.batches, settings=settings, state=state, execution=ExecutionSettings()
    ):
        hook(step)
        if step.index == stop:
            break
    return state


def equal_states(remaining, right):
    moments = remaining.optimizer.state(), right.optimizer.state()
    return (
        equal_tensors(remaining.model.state_dict(), right.model.state_dict())
        and equal_tensors(*moments)
        and (remaining.step, remaining.tokens) == (right.step, right.tokens)
    )


@pytest.mark.parametrize("chosen", [run.AdamW(), run.Muon()])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_going_on_is_bit_exact_with_dropout_and_accumulation(tmp_path, chosen, accumulate):
    settings = run.Train(steps=7, batch=4, accumulate=accumulate, optimizer=chosen)
    full = go(new_state(chosen=chosen), settings)
    path = run_checkpoints.save(tmp_path, go(new_state(chosen=chosen), settings, stop=4))
    # another process: draws belong to step and piece
    random.seed(99), np.random.seed(99), torch.manual_seed(99)
    state = new_state(chosen=chosen)
    run_checkpoints.restore(path, state)
    assert state.step == 4
    assert equal_states(go(state, settings), full)


def test_a_checkpoint_is_a_model_that_loads(tmp_path):
    state = go(new_state(), run.Train(steps=2, batch=4))
    path = run_checkpoints.save(tmp_path, state)
    files_there = {
        "config.json",
        "model.safetensors",
        "state.json",
        "state.safetensors",
        "SHA256SUMS",
    }
    assert {p.name for p in path.iterdir()} == files_there
    model, tokenizer = store.load(tmp_path)  # a run folder leads to its last checkpoint
    assert tokenizer is None
    assert model.config == state.model.config
    tokens = torch.arange(10)[None]
    assert torch.equal(model(tokens).logits, state.model.eval()(tokens).logits)


def test_the_last_and_the_best_are_kept(tmp_path):
    save = Save(tmp_path, every=1, keep=2)
    valid = {2: 3.0, 4: 1.0, 5: 2.0, 7: 1.5}

    def hook(step):
        step.valid_loss = valid.get(step.index)
        save(step)

    state = go(new_state(), run.Train(steps=8, batch=4), hook=hook)
    assert [p.name for p in run_checkpoints.steps(tmp_path)] == [
        "step-000004",
        "step-000007",
        "step-000008",
    ]
    assert (tmp_path / "best").read_text() == "step-000004\n"
    assert (tmp_path / "last").read_text() == "step-000008\n"
    assert state.best == 1.0
    assert run_checkpoints.newest(tmp_path) == tmp_path / "step-000008"


def test_what_a_killed_rotation_left_is_removed_on_resume(tmp_path):
    state = go(
        new_state(),
        run.Train(steps=4, batch=4),
        hook=lambda step: run_checkpoints.save(tmp_path, step.state),
    )
    assert len(run_checkpoints.steps(tmp_path)) == 4  # killed before the others were removed
    restore_newest(tmp_path, run_checkpoints.newest(tmp_path), new_state(), run.Train(keep=2))
    assert [p.name for p in run_checkpoints.steps(tmp_path)] == [
        "step-000003",
        "step-000004",
    ]
    assert state.step == 4


def test_a_bad_step_is_not_saved_and_rotates_nothing_away(tmp_path):
    state = new_state()
    state.batches = Poisoned(state.model, range(3, 99))
    with mistake("in a row"):
        go(state, run.Train(steps=50, batch=4), hook=Save(tmp_path, every=1, keep=2))
    assert [p.name for p in run_checkpoints.steps(tmp_path)] == ["step-000002", "step-000003"]


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    state = go(new_state(), run.Train(steps=1, batch=4))
    run_checkpoints.save(tmp_path, state)
    state.step = 2
    with torch.no_grad():
        state.model.embed.token.weight[3] = float("nan")
    with mistake(r"embed.token.weight.*not finite"):
        run_checkpoints.save(tmp_path, state)
    assert run_checkpoints.newest(tmp_path).name == "step-000001"


# -------------------------------------------------------------------------------- crash anywhere


class Killed(BaseException):
    """The process ends here."""


TOUCHES = [(files, "sync"), (files, "sha256"), (os, "open"), (os, "write")]
TOUCHES += [(shutil, name) for name in ("rmtree", "copy", "copyfile")]
TOUCHES += [
    (Path, name) for name in ("open", "rename", "replace", "write_text", "write_bytes", "unlink")
]
TOUCHES += [(Path, "mkdir")]


@pytest.mark.parametrize("end, best", [("killed", 2), ("full", 1)])
def test_an_end_at_any_touch_of_the_disk_loses_neither_the_last_nor_the_best(
    tmp_path, monkeypatch, end, best
):
    """Step 2 is saved, step 1 perhaps rotated away; each touch of the disk is the last one, once.
    Then resume."""
    state = go(new_state(), run.Train(steps=3, batch=4))
    state.step, state.best, state.best_step = 1, 3.0, 1
    run_checkpoints.save(tmp_path / "kept", state)
    failure = Killed() if end == "killed" else OSError(errno.ENOSPC, "No space left on device")
    remaining_writes = 0

    def dying(function):
        def wrapped(*args, **kwargs):
            nonlocal remaining_writes
            remaining_writes -= 1
            if remaining_writes < 0:
                raise failure
            return function(*args, **kwargs)

        return wrapped

    bounds = 0
    for calls in range(300):
        out = tmp_path / f"out{calls}"
        shutil.copytree(tmp_path / "kept", out)
        state.step, state.best, state.best_step, remaining_writes = 2, 4.0 - best, best, calls
        with monkeypatch.context() as patch, contextlib.suppress(Killed, UserError, OSError):
            for owner, name in TOUCHES:
                patch.setattr(owner, name, dying(getattr(owner, name)))
            run_checkpoints.save(out, state)
            run_checkpoints.rotate(out, 1)
            remaining_writes += 10**6
        done = remaining_writes > 10**5
        store.load(out)  # also before anything is fixed
        run_checkpoints.tidy(out)
        assert {p.name for p in out.iterdir()} <= {"step-000001", "step-000002", "last", "best"}
        result = run_checkpoints.newest(out)
        again = new_state()
        run_checkpoints.restore(result, again)
        run_checkpoints.point(out, again)
        assert (out / "last").read_text().strip() == result.name
        right = f"step-{best if result.name == 'step-000002' else 1:06d}"
        assert (out / "best").read_text().strip() == right
        assert (out / right).is_dir()
        shutil.rmtree(out)
        if done:
            break
        bounds += 1
    assert 20 < bounds < 299


def test_a_file_size_limit_leaves_the_previous_one(tmp_path):
    state = go(new_state(), run.Train(steps=2, batch=4))
    state.step = 1
    run_checkpoints.save(tmp_path, state)
    state.step = 2
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))
    try:
        with mistake(None):
            run_checkpoints.save(tmp_path, state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert [p.name for p in tmp_path.iterdir() if p.name != "last"] == ["step-000001"]
    run_checkpoints.restore(run_checkpoints.newest(tmp_path), new_state())


# ----------------------------------------------------------------------------- damaged or another's


def test_a_checkpoint_of_another_model_is_named(tmp_path):
    path = run_checkpoints.save(tmp_path, go(new_state(), run.Train(steps=1, batch=4)))
    with mistake(r"another model: .*tied is true there and false here"):
        run_checkpoints.restore(path, new_state(tiny(tied=False, dropout=0.2)))


def test_an_optimizer_of_another_kind_is_named(tmp_path):
    path = run_checkpoints.save(tmp_path, go(new_state(), run.Train(steps=1, batch=4)))
    with mistake(r"another optimizer"):
        run_checkpoints.restore(path, new_state(chosen=run.Muon()))
    second = new_state()
    del second.optimizer.parameters["decoder.last_norm.weight"]
    with mistake(r'"decoder.last_norm.weight".*config'):
        run_checkpoints.restore(path, second)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "state.json", "state.safetensors", "SHA256SUMS"]
)
@pytest.mark.parametrize("harm", ["cut", "gone", "garbage", "empty"])
def test_damage_is_found_by_its_sha256(tmp_path, name, harm):
    path = run_checkpoints.save(tmp_path, go(new_state(), run.Train(steps=1, batch=4)))
    victim = path / name
    if harm == "cut":
        victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    elif harm == "gone":
        victim.unlink()
    elif harm == "empty":
        victim.write_bytes(b"")
    else:
        victim.write_bytes(b"[7]" if name.endswith("json") else b"\xff" * 64)
    with mistake(None, str(path)):
        run_checkpoints.restore(path, new_state())
    if name == "model.safetensors":  # whoever only uses the model is told as well
        with mistake(r"is damaged|has no model.safetensors"):
            store.load(path)


def test_a_flipped_bit_in_any_file_is_found_where_the_file_is_read(tmp_path):
    texts = ["the cat sat on the mat"]
    tokenizer = train_tokenizer("char", texts, None)
    source = train_tokenizer("char", [*texts, "xyz"], None)
    path = run_checkpoints.save(
        tmp_path, go(new_state(), run.Train(steps=1, batch=4)), tokenizer, source
    )
    draw = random.Random(3)
    full = {file.name: file.read_bytes() for file in path.iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "source_tokenizer.json"} < full.keys()
    for name, content in full.items():
        word = content.find(b"best_step")
        places = [draw.randrange(len(content)) for _ in range(8)] + [word] * (word > 0)
        for place in places:
            harmed = bytearray(content)
            harmed[place] ^= 1 << draw.randrange(7)
            (path / name).write_bytes(harmed)
            with pytest.raises(UserError):
                run_checkpoints.restore(path, new_state())
            if not name.startswith(("state.", "SHA256SUMS")):  # what only a training reads
                with pytest.raises(UserError):
                    store.load(path)
        (path / name).write_bytes(content)
    store.load(path)
    (path / "SHA256SUMS").write_text(full["SHA256SUMS"].decode().replace("  model.", "  nodel."))
    with mistake("SHA256SUMS"):
        store.load(path)


@pytest.mark.parametrize("name", ["step", "batches", "best_step"])
def test_a_state_that_lacks_something_is_one_sentence(tmp_path, name, monkeypatch):
    path = run_checkpoints.save(tmp_path, go(new_state(), run.Train(steps=1, batch=4)))
    metrics = read_json(path / "state.json")
    del metrics[name]
    write_json(path / "state.json", metrics)
    monkeypatch.setattr(run_checkpoints, "verify", lambda path: None)
    with mistake(name):
        run_checkpoints.restore(path, new_state())
    (path / "SHA256SUMS").unlink()
    with mistake("SHA256SUMS is missing"):
        run_checkpoints.restore(path, new_state())


def test_differences_are_said_by_place():
    local = {"type": "A", "deep": [{"type": "B", "width": 3}]}
    assert run_checkpoints.difference(local, local) is None
    present = {"type": "A", "deep": [{"type": "B", "width": 4}]}
    assert run_checkpoints.difference(present, local) == "deep.0.width is 4 there and 3 here"
    assert (
        run_checkpoints.difference({"type": "C"}, local, "model") == "model is C there and A here"
    )
    assert "missing" not in str(run_checkpoints.difference({"x": 1}, {"y": 1}))
