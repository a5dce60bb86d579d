"""What befalls a training from outside: terminals that close, folders and files that go, samples
that fail."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys

import pytest

from glassformer import runs, training
from glassformer.core.errors import Stuck, UserError
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import resolve
from glassformer.formats.data import find as find_corpus
from glassformer.formats.data import tokenise
from glassformer.runs import callbacks, launch, run_checkpoints
from glassformer.runs.callbacks import Save
from mistakes import mistake
from runs.test_launch import attend, corpus, settings, start  # noqa: F401  (corpus is a fixture)
from runs.test_run_checkpoints import new_state
from tiny import equal_tensors
from training.test_loop import Poisoned, steps_of, weights_of


def poisoned(tmp_path, bad, steps, every, valid=None):
    """A run of so many steps of which ``bad`` (from 0 on) have a NaN loss; its state."""
    state = new_state()
    state.batches = Poisoned(state.model, bad)
    save = Save(tmp_path, every, 2)
    step = None
    try:
        for step in steps_of(state.model, state.batches, state=state, steps=steps):
            step.valid_loss = (valid or {}).get(step.index)
            save(step)
    except Stuck:
        save.save(step)
    return state


def pointer(folder, name):
    """The step that a pointer names."""
    path = folder / name
    return int(path.read_text().removeprefix("step-")) if path.exists() else None


def check_saved(folder, state, *numbers):
    """These checkpoints are there, and the last one has the state's weights."""
    assert [p.name for p in run_checkpoints.steps(folder)] == [f"step-{n:06}" for n in numbers]
    again = new_state()
    run_checkpoints.restore(folder / f"step-{numbers[-1]:06}", again)
    assert again.skipped_in_a_row == state.skipped_in_a_row
    assert equal_tensors(weights_of(again.model), weights_of(state.model))


# ------------------------------------------------------------------------- good weights are kept


@pytest.mark.parametrize("valid", [{}, {8: 1.0}])
def test_a_last_step_that_is_skipped_is_saved_with_the_weights_before_it(tmp_path, valid):
    state = poisoned(tmp_path, {6, 7}, steps=8, every=5, valid=valid)
    assert state.skipped_in_a_row == 2
    assert pointer(tmp_path, "last") == 8
    assert (tmp_path / "best").exists() == bool(valid)
    check_saved(tmp_path, state, 5, 8)


def test_patience_that_runs_out_saves_what_was_learned_since_the_last_checkpoint(tmp_path):
    state = poisoned(tmp_path, range(7, 99), steps=50, every=5)
    assert state.skipped_in_a_row == 5
    check_saved(tmp_path, state, 5, 12)


def test_patience_that_runs_out_before_anything_was_learned_saves_nothing(tmp_path):
    poisoned(tmp_path, range(99), steps=50, every=1)
    assert not run_checkpoints.steps(tmp_path)


def test_a_run_that_is_stuck_says_where_its_weights_are(corpus, tmp_path, monkeypatch):  # noqa: F811
    real = launch.train

    def stuck(model, *args, **kwargs):
        for step in real(model, *args, **kwargs):
            yield step
            if step.index == 4:
                raise Stuck("Training stopped.")

    monkeypatch.setattr(launch, "train", stuck)
    with mistake(r"Training stopped. They are in .*step-000004"):
        runs.run(settings(corpus), tmp_path / "run")


# ---------------------------------------------------------------------------- pointers and sums


def test_resume_fixes_stale_pointers_and_forgets_a_best_that_was_removed(tmp_path):
    state = poisoned(tmp_path, set(), steps=6, every=2, valid={2: 3.0, 4: 1.0, 6: 2.0})
    assert state.best_step == 4
    for name, step in (("best", 2), ("last", 4)):
        (tmp_path / name).write_text(f"step-{step:06}\n")
    again = new_state()
    run_checkpoints.restore(run_checkpoints.newest(tmp_path), again)
    run_checkpoints.point(tmp_path, again)
    assert pointer(tmp_path, "best") == 4
    assert pointer(tmp_path, "last") == 6
    shutil.rmtree(tmp_path / "step-000004")
    run_checkpoints.point(tmp_path, again)
    assert not (tmp_path / "best").exists()
    assert again.best == math.inf
    assert again.best_step is None


@pytest.mark.parametrize("name", ["best", "last"])
@pytest.mark.parametrize("lead", ["..", ".", "link"])
def test_pointers_never_lead_outside_the_folder(tmp_path, name, lead):
    out = tmp_path / "run"
    poisoned(out, set(), steps=2, every=1, valid={2: 1.0})
    shutil.copytree(out / "step-000002", tmp_path / "elsewhere")
    (out / "link").symlink_to(tmp_path / "elsewhere")
    shutil.copy(tmp_path / "elsewhere" / "config.json", tmp_path / "config.json")
    (out / "best").unlink()
    (out / name).write_text(lead + "\n")
    with mistake(rf'names "{lead}", which is not a folder in'):
        resolve.resolve(str(out))


# ------------------------------------------------------------- terminals, folders, caches, samples


@pytest.mark.parametrize("direction", ["2>&-", pytest.param("2>/dev/full", marks=pytest.mark.slow)])
def test_standard_error_that_is_closed_or_full_ends_no_training(corpus, tmp_path, direction):  # noqa: F811
    out = tmp_path / "run"
    line = (
        f"-m glassformer train --out {out} --data.train {corpus} --steps 2 --dim 16"
        " --decoder.depth 1 --context 16 --batch 2 --data.tokenizer char --tensorboard false"
        " --evaluate_batches 1 --decoder.pattern.attention.heads 2"
    )
    command = ["sh", "-c", f"exec {sys.executable} {line} {direction}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=120)
    assert (done.returncode, done.stdout) == (0, b"")
    assert pointer(out, "last") == 2
    # nothing else was written into it
    assert [json.loads(row)["step"] for row in (out / "log.jsonl").open()] == [1, 2]


def test_a_terminal_that_closes_saves_and_nohup_keeps_training(corpus, tmp_path):  # noqa: F811
    out = tmp_path / "run"
    process = start(corpus, out)
    attend(process, out, after=2)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)  # the shell's, then the terminal's
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGHUP
    assert pointer(out, "last") == callbacks.read_log(out / "log.jsonl")[-1]["step"] < 40


def test_which_signals_are_heard(tmp_path):
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with launch.Signals(tmp_path) as signals:
            os.kill(os.getpid(), signal.SIGHUP)  # nohup's stays ignored
            assert signals.number is None
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with launch.Signals(tmp_path) as signals:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
            assert signals.number == signal.SIGHUP
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, old)


@pytest.mark.parametrize("leave", ["rmtree", "move"])
def test_a_folder_that_goes_while_training_ends_it(corpus, tmp_path, leave):  # noqa: F811
    out = tmp_path / "run"

    def sample(model, tokenizer, source):
        getattr(shutil, leave)(out, *([tmp_path / "away"] if leave == "move" else []))
        return ""

    going = settings(corpus, sample_every="5", save_every="0", evaluate_every="0")
    with mistake(r"log.jsonl was moved or removed while training"):
        runs.run(going, out, sample=sample)
    assert not list(tmp_path.glob("run/step-*"))


def test_a_sample_that_cannot_be_made_ends_no_training(corpus, tmp_path, capfd):  # noqa: F811
    def sample(model, tokenizer, source):
        raise UserError("A mask of the kind Prefix cannot be sampled.")

    going = settings(corpus, steps="4", sample_every="2")
    assert runs.run(going, tmp_path / "run", sample=sample).step == 4
    assert "(none: A mask of the kind Prefix cannot be sampled.)" in capfd.readouterr().err


def test_a_token_cache_that_is_cut_while_training_is_one_sentence(tmp_path):
    (tmp_path / "text.txt").write_text("some words " * 5000)
    source = find_corpus(str(tmp_path / "text.txt"))
    shards = tokenise(source, train_tokenizer("char", source.texts()), cache=tmp_path / "cache")
    batches = training.Batches(shards, 2, 8)
    next(batches)
    (tokens,) = (tmp_path / "cache").rglob("tokens.bin")
    os.truncate(tokens, 100)
    with mistake(r"tokenised copy of .* was truncated while in use"):
        next(batches)


def test_a_share_of_one_token_is_found_before_training(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ab" * 20)
    with mistake(r"sets aside 1 token to validate on; raise data.valid"):
        runs.run(settings(path, **{"data.valid": "0.02"}), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


def test_validation_rows_may_not_change_on_resume(corpus, tmp_path):  # noqa: F811
    runs.run(settings(corpus, steps="2"), tmp_path / "run")
    with mistake(r"train.evaluate_batches is 2 there and 3 here"):
        runs.run(settings(corpus, steps="2", evaluate_batches="3"), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8")],
)
def test_memory_that_is_not_there_is_one_sentence(error, monkeypatch, terminal):
    def fail(*_):
        raise error

    # where the command computes, whatever its signature
    monkeypatch.setattr("glassformer.commands.parsing.bound", fail)
    assert "not enough memory" in terminal.refused("masks full")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"schedule.warmup": "-5"}, r"warmup is -5"),
        ({"schedule": "Cosine", "schedule.floor": "2"}, r"train.schedule.floor is 2"),
        ({"schedule.decay": "-1"}, r"decay is -1"),
        ({"schedule.warmup": "0.7", "schedule.decay": "0.6"}, r"more than the run"),
        ({"schedule": "InverseSqrt", "schedule.dim": "0"}, r"train.schedule.dim is 0"),
        ({"seed": str(2**70)}, r"seed"),
        ({"seed": "-1"}, r"train.seed is -1"),
        ({"optimizer.lr": "1e300"}, r"optimizer.lr is 1e\+300"),
        ({"optimizer.rest.eps": "-1"}, r"train.optimizer.rest.eps is -1"),
        (
            {"optimizer.groups": '[{pattern="*", lr_scale=1e300}]'},
            r"optimizer.groups.0.lr_scale is 1e\+300",
        ),
        ({"init.std": "-1"}, r"init.std is -1"),
        (
            {"data.vocab": "1000000000"},
            r"data.vocab is 1000000000; give a number from 1 to "
            r"1,048,576",
        ),
    ],
)
def test_settings_that_cannot_be(corpus, tmp_path, changes, message):  # noqa: F811
    with mistake(message):
        runs.run(settings(corpus, **changes), tmp_path / "run")


def test_sums_are_read_back_by_sha256sum(tmp_path):
    tool = shutil.which("sha256sum")
    if tool is None:
        pytest.skip("needs sha256sum")
    poisoned(tmp_path, set(), steps=1, every=1)
    subprocess.check_output([tool, "-c", "SHA256SUMS"], cwd=tmp_path / "step-000001")


def test_a_resumed_run_fixes_its_pointers(corpus, tmp_path):  # noqa: F811
    going = settings(corpus, steps="4", evaluate_every="2")
    runs.run(going, tmp_path)
    right = [pointer(tmp_path, name) for name in ("best", "last")]
    (tmp_path / "best").unlink()
    (tmp_path / "last").write_text("step-000001\n")
    runs.run(going, tmp_path, resume=True)
    assert [pointer(tmp_path, name) for name in ("best", "last")] == right
