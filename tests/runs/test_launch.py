"""``glassformer train`` as a whole: real processes killed and resumed, and what it says to a
mistake."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import glassformer
from folders import read_json, read_rows, squares, write_json
from glassformer import runs, training
from glassformer.core.config import serial
from glassformer.core.config.run import PAUSED
from glassformer.core.errors import UserError
from glassformer.formats import resolve, store
from glassformer.formats.checkpoint import Checkpoint
from glassformer.runs import callbacks, launch, progress, report, run_config, run_file
from mistakes import SENTENCES, mistake
from tiny import equal_tensors

SETTINGS = {
    "dim": "16",
    "decoder.depth": "2",
    "decoder.pattern.attention.heads": "2",
    "decoder.dropout": "0.1",
    "context": "16",
    "batch": "4",
    "accumulate": "2",
    "steps": "40",
    "evaluate_every": "10",
    "evaluate_batches": "2",
    "save_every": "3",
    "data.tokenizer": "char",
    "dtype": "float32",
    "tensorboard": "false",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "squares.txt"
    path.write_text(squares(400))
    return path


def settings(corpus, **changes):
    return run_file.read_run(None, {**SETTINGS, "data.train": str(corpus), **changes})


def weights(out):
    model, _ = store.load(out / (out / "last").read_text().strip())
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def finished_run(corpus, tmp_path_factory):
    """The folder of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    ended = runs.run(settings(corpus), out)
    assert ended.step == 40
    assert ended.valid_loss < 3.2
    assert ended.signal is None
    return out


# ------------------------------------------------------------------------------- real processes

CHILD = """
import signal, sys, time, torch
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever this test was started under
from pathlib import Path
from types import SimpleNamespace
torch.set_num_threads(int(sys.argv[4]))
from glassformer import runs
from glassformer.core.config import serial
from glassformer.runs import launch, run_config
slow = launch.Log.__call__
launch.Log.__call__ = lambda self, step: (slow(self, step), time.sleep(0.03))  # so that there is a moment to strike
settings = serial.loads(run_config.Run, Path(sys.argv[1]).read_text())
again = "glassformer train it --resume"
ended = runs.run(settings, Path(sys.argv[2]), resume=sys.argv[3] == "resume", command=again)
sys.exit(128 + ended.signal if ended.signal else 0)
"""


def start(corpus, out, resume=False):
    book = out.parent / "settings.json"
    book.write_text(serial.dumps(settings(corpus)))
    command = [sys.executable, "-c", CHILD, str(book), str(out), "resume" if resume else "new"]
    return subprocess.Popen(
        [*command, str(torch.get_num_threads())], stderr=subprocess.PIPE, text=True
    )


def logged(out):
    return [line["step"] for line in callbacks.read_log(out / "log.jsonl")]


def attend(process, out, after):
    """Wait until step ``after`` is in the log."""
    until = time.monotonic() + 120
    while not logged(out) or logged(out)[-1] < after:
        assert process.poll() is None and time.monotonic() < until, process.stderr.read()
        time.sleep(0.005)


def strike(process, out, number, after):
    """Send a signal once step ``after`` is in the log; what the process said."""
    attend(process, out, after)
    process.send_signal(number)
    return process.communicate(timeout=60)[1]


def test_killed_and_stopped_runs_end_bit_for_bit_like_an_undisturbed_one(
    corpus, finished_run, tmp_path, capfd
):
    out = tmp_path / "run"
    process = start(corpus, out)
    attend(process, out, after=4)
    with mistake(r"Another process is training in .*wait"):
        runs.run(settings(corpus), out, resume=True)
    strike(process, out, signal.SIGKILL, after=8)
    assert process.returncode == -signal.SIGKILL
    store.load(out)

    process = start(corpus, out, resume=True)
    message = strike(process, out, signal.SIGTERM, after=17)
    assert process.returncode == 128 + signal.SIGTERM
    last = logged(out)[-1]
    assert 17 <= last < 40
    assert (out / "last").read_text() == f"step-{last:06d}\n"  # the step was finished and saved
    assert f"Stopped by SIGTERM after step {last}" in message
    assert message.rstrip().endswith("glassformer train it --resume")

    runs.run(settings(corpus), out, resume=True)
    assert "Going on from" in capfd.readouterr().err
    assert logged(out) == list(range(1, 41))
    assert equal_tensors(weights(out), weights(finished_run))
    curves = [
        [(e["loss"], e.get("valid_loss")) for e in callbacks.read_log(f / "log.jsonl")]
        for f in (out, finished_run)
    ]
    assert curves[0] == curves[1]
    state = [(f / "step-000040" / "state.safetensors").read_bytes() for f in (out, finished_run)]
    assert state[0] == state[1]


def test_a_file_in_the_folder_stops_a_run(corpus, tmp_path, capfd, monkeypatch):
    """A file acts like SIGTERM: the step is finished and saved; one from an earlier run stops
    nothing."""
    stop = tmp_path / "run" / "stop"
    stop.parent.mkdir()
    stop.touch()
    log = launch.Log.__call__
    monkeypatch.setattr(
        launch.Log,
        "__call__",
        lambda self, step: log(self, step) or (step.index == 3 and stop.touch()),
    )
    ended = runs.run(settings(corpus), stop.parent)
    assert (ended.step, ended.signal) == (3, signal.SIGTERM)
    assert not stop.exists()
    assert (stop.parent / "last").read_text() == "step-000003\n"
    assert "asks this run to stop" in capfd.readouterr().err


def hold(process, out, after):
    """Have a run wait once step ``after`` is in the log; the step after which it waits, by its own
    word."""
    attend(process, out, after)
    (out / "pause").touch()
    until = time.monotonic() + 120
    while (out / "pause").read_text() != PAUSED:
        assert process.poll() is None and time.monotonic() < until, process.stderr.read()
        time.sleep(0.005)
    return logged(out)[-1]


@pytest.mark.slow
def test_a_file_in_the_folder_holds_a_run(corpus, finished_run, tmp_path):
    """The run waits after a step as long as the file exists; one killed meanwhile waits no more
    when it goes on."""
    out = tmp_path / "run"
    process = start(corpus, out)
    stored = hold(process, out, after=3)
    time.sleep(0.5)
    assert logged(out)[-1] == stored < 40
    (out / "pause").unlink()
    stored = hold(process, out, after=stored + 1)
    process.kill()
    output = process.communicate(timeout=60)[1]
    assert output.count("it goes on when that file is gone") == 2
    assert output.count("Going on.") == 1

    process = start(corpus, out, resume=True)
    stored = hold(process, out, after=stored + 1)
    (out / "stop").touch()
    output = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert f"SIGTERM after step {stored};" in output
    assert not (out / "pause").exists()
    assert not (out / "stop").exists()
    runs.run(settings(corpus), out, resume=True)
    assert equal_tensors(weights(out), weights(finished_run)), "pauses change no bit"


@pytest.mark.slow
def test_killed_at_twenty_moments(corpus, finished_run, tmp_path):
    out = tmp_path / "run"
    for turn in range(20):
        before = (out / "log.jsonl").stat().st_mtime_ns if (out / "log.jsonl").exists() else None
        process = start(corpus, out, resume=(out / "run.json").exists())
        # torch alone takes seconds to import: count from where its log is begun anew
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:
            if (out / "log.jsonl").exists() and (out / "log.jsonl").stat().st_mtime_ns != before:
                break
            time.sleep(0.005)
        time.sleep(0.02 * turn)
        process.kill()
        process.communicate()
        if (out / "last").exists():
            store.load(out)
    runs.run(settings(corpus), out, resume=True)
    assert equal_tensors(weights(out), weights(finished_run))


# ------------------------------------------------------------------------------------- one run


def test_a_run_leaves_what_the_contract_says(finished_run):
    names = {path.name for path in finished_run.iterdir()}
    assert {"run.json", "log.jsonl", "last", "best", "step-000040"} <= names
    assert not [name for name in names if name.endswith((".part", ".old"))]
    model, tokenizer = store.load(finished_run)
    assert tokenizer.decode(tokenizer.encode("7 times 7")) == "7 times 7"
    assert model.config.embed.vocab == tokenizer.size
    assert model.config.context == 16
    book = read_json(finished_run / "run.json")
    assert book["train"]["steps"] == 40
    assert book["execution"]["dtype"] == "float32"
    lines = callbacks.read_log(finished_run / "log.jsonl")
    assert len(lines) == 40
    assert lines[9]["valid_loss"] > lines[-1]["valid_loss"]
    assert lines[0]["loss"] > lines[-1]["loss"]


def test_everything_said_goes_to_standard_error(corpus, tmp_path, capfd):
    runs.run(
        settings(corpus, steps="4"),
        tmp_path / "run",
        sample=lambda model, tokenizer, source: "a sample",
    )
    output = capfd.readouterr()
    assert output.out == ""
    for word in (
        "parameters",
        "MFLOP a token",
        "memory",
        "float32",
        "torch.compile",
        "'a sample'",
        "4/4",
        "curves",
    ):
        assert word in output.err
    samples = read_rows(tmp_path / "run" / "samples.jsonl")
    assert samples
    assert all(sample["text"] == "a sample" for sample in samples)
    assert samples[-1]["step"] == 4


def test_sampling_and_evaluating_change_nothing(corpus, finished_run, tmp_path):
    def sample(model, tokenizer, source):
        assert not model.training
        return str(torch.rand(5).sum())

    runs.run(
        settings(corpus, evaluate_every="7", sample_every="3", keep="1"),
        tmp_path / "run",
        sample=sample,
    )
    assert equal_tensors(weights(tmp_path / "run"), weights(finished_run))


def test_each_sample_of_a_resumed_run_is_there_once(corpus, tmp_path):
    """Of a run that was lost after step 8 with half a line, and goes on from step 6."""

    def run(name, resume=False):
        options = settings(corpus, steps="9", evaluate_every="0", sample_every="2", keep="9")
        runs.run(options, tmp_path / name, resume=resume, sample=lambda *args, **named: "a text")
        return (tmp_path / name / "samples.jsonl").read_bytes()

    expected = run("whole")
    assert expected.count(b"a text") == 5
    lost = tmp_path / "lost"
    shutil.copytree(tmp_path / "whole", lost)
    shutil.rmtree(lost / "step-000009")
    (lost / "last").write_text("step-000006\n")
    (lost / "samples.jsonl").write_bytes(expected[:-30])
    assert run("lost", resume=True) == expected


def test_resuming_a_finished_run_does_nothing(corpus, finished_run):
    before = weights(finished_run)
    assert runs.run(settings(corpus), finished_run, resume=True).step == 40
    assert equal_tensors(before, weights(finished_run))
    assert logged(finished_run) == list(range(1, 41))


def test_a_run_that_is_older_than_a_setting_is_resumed(corpus, tmp_path):
    runs.run(settings(corpus, steps="2"), tmp_path / "run")
    data = read_json(tmp_path / "run" / "run.json")
    del data["data"]["split"], data["train"]["clip"]
    write_json(tmp_path / "run" / "run.json", data)
    assert runs.run(settings(corpus, steps="3"), tmp_path / "run", resume=True).step == 3
    refuse("train.clip", settings(corpus, steps="3", clip="0.5"), tmp_path / "run", resume=True)


def test_resuming_nothing_is_refused(corpus, tmp_path):
    refuse(
        r"holds no run to go on with; leave out --resume",
        settings(corpus),
        tmp_path / "run",
        resume=True,
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("schedule", ["Constant", "Cosine"])
def test_a_finished_run_goes_on_with_more_steps_and_is_killed_there(
    corpus, tmp_path, capfd, schedule
):
    """Constant goes on as if more had been asked for at once; Cosine begins anew; a stop in between
    changes nothing."""
    options = {"schedule": schedule, "schedule.warmup": "2", "save_every": "2"}
    for name in ("apart", "stopped"):
        runs.run(settings(corpus, steps="4", **options), tmp_path / name)
    capfd.readouterr()
    longer = settings(corpus, steps="10", **options)
    runs.run(longer, tmp_path / "apart", resume=True)
    output = (
        "goes on as Constant has it"
        if schedule == "Constant"
        else "Cosine begins anew for the 6 added steps"
    )
    assert "ended at step 4 and goes on to 10: " in (stderr := capfd.readouterr().err)
    assert output in stderr

    def kill(self, step, real=callbacks.Save.__call__):
        real(self, step)
        if step.index == 7:
            raise InterruptedError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(callbacks.Save, "__call__", kill)
        runs.run(longer, tmp_path / "stopped", resume=True)
    assert logged(tmp_path / "stopped")[-1] == 7
    runs.run(longer, tmp_path / "stopped", resume=True)
    rates = [
        [line["lr"] for line in callbacks.read_log(tmp_path / name / "log.jsonl")]
        for name in ("apart", "stopped")
    ]
    assert rates[0] == rates[1]
    assert equal_tensors(weights(tmp_path / "apart"), weights(tmp_path / "stopped"))
    if schedule == "Constant":
        runs.run(longer, tmp_path / "whole")
        assert equal_tensors(weights(tmp_path / "apart"), weights(tmp_path / "whole"))
    else:
        assert rates[0][3] < rates[0][4] < rates[0][5] == max(rates[0])
        assert rates[0][9] < 0.2 * rates[0][5]


def test_a_run_that_is_not_finished_is_finished_first(corpus, tmp_path):
    runs.run(settings(corpus, steps="4", save_every="2"), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "step-000004")
    refuse(
        r"stands at step 2 of 4; give --steps 4",
        settings(corpus, steps="9", save_every="2"),
        tmp_path / "run",
        True,
    )


def test_a_run_that_ended_early_goes_on_with_more_steps(corpus, tmp_path, capfd, monkeypatch):
    """The evaluations without a better one are counted anew, and the schedule begins anew."""
    monkeypatch.setattr(callbacks.Evaluate, "measure", lambda self, model: (1.0, {}))
    options = {"early_stop": "2", "evaluate_every": "2", "save_every": "2", "schedule": "Cosine"}
    assert runs.run(settings(corpus, steps="40", **options), tmp_path / "run").step == 6
    assert "--resume --early-stop 0 continues" in (stderr := capfd.readouterr().err)
    assert "N above 40" in stderr
    assert (
        runs.run(settings(corpus, steps="40", **options), tmp_path / "run", resume=True).step == 6
    )
    refuse(
        "train.steps is 40 there and 30 here",
        settings(corpus, steps="30", **options),
        tmp_path / "run",
        True,
    )
    assert (
        runs.run(settings(corpus, steps="50", **options), tmp_path / "run", resume=True).step == 10
    )
    assert (
        "ended at step 6 and goes on to 50: Cosine begins anew for the 44 added steps"
        in capfd.readouterr().err
    )
    assert logged(tmp_path / "run") == list(range(1, 11))
    assert read_json(tmp_path / "run" / "run.json")["ended"] == [6]


def test_a_run_file_in_python_is_the_command(corpus, tmp_path, finished_run):
    file = tmp_path / "run.toml"
    file.write_text(f'[data]\ntrain = "{corpus}"\n')
    ended = glassformer.train(file, out=tmp_path / "run", overrides={**SETTINGS, "steps": "4"})
    assert (ended.step, ended.folder) == (4, tmp_path / "run")
    again = glassformer.train(
        run_file.read_run(file, {**SETTINGS, "steps": "6"}), out=str(tmp_path / "run"), resume=True
    )
    assert again.step == 6
    assert logged(tmp_path / "run") == [1, 2, 3, 4, 5, 6]
    with mistake(r'There is no run file "dmo".*demo'):
        glassformer.train("dmo", out=tmp_path / "other")
    with mistake("leave overrides out"):
        glassformer.train(run_config.Run(), out=tmp_path / "other", overrides={"steps": "3"})


def test_a_long_validation_says_how_far_it_is(corpus, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(callbacks, "PROGRESS", 0.0)
    runs.run(settings(corpus, steps="2", evaluate_every="1"), tmp_path / "run")
    stderr = capfd.readouterr().err
    assert "validated on 1 batches\n" in stderr
    assert "validated on 2 batches of 2\n" in stderr


def test_the_log_has_each_groups_rate(corpus, tmp_path):
    group = '[{pattern = "embed.*", lr_scale = 0.5}]'
    options = settings(
        corpus, steps="2", lr="4e-3", schedule="Constant", **{"optimizer.rest.groups": group}
    )
    runs.run(options, tmp_path / "run")
    assert callbacks.read_log(tmp_path / "run" / "log.jsonl")[0]["lrs"] == {
        "Muon": 4e-3,
        "AdamW embed.*": 4e-3,  # twice Muon's in this recipe, halved
        "AdamW": 8e-3,
    }


def test_going_on_from_a_trained_model(corpus, finished_run, tmp_path):
    table = {"from": str(finished_run), "decoder.dropout": 0.0}
    further = replace(settings(corpus, steps="1", context="none"), model=table)
    further = replace(further, data=replace(further.data, tokenizer=None))
    ended = runs.run(further, tmp_path / "run")
    assert ended.loss < callbacks.read_log(finished_run / "log.jsonl")[0]["loss"] - 0.3
    model, tokenizer = store.load(tmp_path / "run")
    assert model.config.decoder.dropout == 0.0
    assert tokenizer is not None
    wider = replace(
        further, model={"from": str(finished_run), "decoder.pattern.feedforward.hidden": 8}
    )
    with mistake(r"ffn.*change only the head or pool"):
        runs.run(wider, tmp_path / "other")


def test_a_mixture_of_corpora(corpus, tmp_path):
    second = tmp_path / "cubes.txt"
    second.write_text("".join(f"{i} to the third is {i**3}.\n" for i in range(300)))
    base = settings(corpus, steps="2")
    data = run_config.Data(train={str(corpus): 3.0, str(second): 1.0}, tokenizer="char")
    assert runs.run(replace(base, data=data), tmp_path / "run").step == 2


def test_a_full_disk_ends_the_run_with_one_sentence(corpus, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1100k", "tmpfs", disk], capture_output=True
    ).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        with mistake(r"disk.*full"):
            runs.run(settings(corpus), disk / "run")
        store.load(disk / "run")
        saved = {path.name for path in (disk / "run").glob("step-*")}
        assert len(saved) > 1, "so that one before the newest could be named"
        with pytest.raises(OSError), (disk / "other").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        with pytest.raises(UserError, match=r"disk.*full; free some space") as full:
            runs.run(settings(corpus), disk / "run", resume=True)
        assert "remove" not in str(full.value), "no checkpoint is damaged"
        assert {path.name for path in (disk / "run").glob("step-*")} == saved
    finally:
        subprocess.run(["umount", disk], check=True)


# ------------------------------------------------------------------------------------- mistakes


def refuse(message, settings, out, resume=False):
    with mistake(message):
        runs.run(settings, out, resume=resume)


def test_a_folder_that_holds_a_run(corpus, finished_run):
    refuse(r"holds a run already; add --resume", settings(corpus), finished_run)
    assert (finished_run / "step-000040").is_dir()


@pytest.mark.parametrize("changes, message", SENTENCES["another config"])
def test_resuming_with_another_config_names_what_differs(corpus, finished_run, changes, message):
    before = weights(finished_run)
    refuse(message, settings(corpus, **changes), finished_run, resume=True)
    assert equal_tensors(before, weights(finished_run))


def test_resuming_with_another_text_is_named(corpus, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(corpus.read_text())
    runs.run(settings(path, steps="2"), tmp_path / "run")
    path.write_text(corpus.read_text()[::-1])
    refuse(
        r"another content of the training data",
        settings(path, steps="2"),
        tmp_path / "run",
        resume=True,
    )


def test_an_out_folder_that_cannot_be(corpus, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refuse(r"file stands in its way", settings(corpus), tmp_path / "file" / "run")
    refuse(r"cannot be", settings(corpus), Path("/proc/nowhere/run"))
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        refuse(r"cannot be written", settings(corpus), tmp_path / "closed" / "run")


def test_what_cannot_fit_is_refused_before_it_starts(corpus, tmp_path):
    huge = {"dim": "65536", "decoder.depth": "200", "decoder.pattern.feedforward.hidden": "262144"}
    refuse(r"Training needs about .* are free; lower", settings(corpus, **huge), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_vocabulary_that_does_not_fit(corpus, tmp_path):
    refuse(r"only 5; raise it", settings(corpus, **{"embed.vocab": "5"}), tmp_path / "run")


# ------------------------------------------------------------------------------------ the view


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_bar_shows_every_number_beside_its_name(width):
    from rich.console import Console

    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    view = progress.Live(flops=1e6, peak=1e11, terminal=False)
    view.losses, view.valid, view.first = [3.0, 2.0, 1.0], 1.5, 0
    view.tokens, view.seconds, view.metrics = 200_000, 10.0, {"valid_accuracy": 0.25}
    step = training.TrainStep(300, 1000, 1.0, 1e-3, 0.5, 64, 0.01, 0, state=None)
    view.screen = view.bar(console)
    view.screen.start()
    view.show(step)
    numbers = view.numbers(step)
    assert numbers["loss"] == "1.0000"
    assert numbers["validation"] == "1.5000"
    assert numbers["tokens/s"] == "20,000"
    assert numbers["of this machine's peak"] == "20%"
    lines = re.sub(r"\x1b\[[?\d]*\w", "", console.file.getvalue()).splitlines()
    view.screen.stop()
    assert len(lines) < 24
    assert max(map(len, lines)) <= width
    drawn = " ".join(" ".join(lines).split())
    assert "step 300 of 1,000" in drawn
    assert "━" in drawn
    assert all(word in drawn for name, value in numbers.items() for word in (*name.split(), value))


def test_rewards_stand_in_the_place_of_a_loss_that_is_always_0(capsys):
    view = progress.Live(terminal=False)
    facts = {"reward": 0.25, "valid_reward": 0.5, "valid_length": 3.0}
    view(training.TrainStep(1, 1, -0.0, 1e-3, 0.5, 64, 0.01, 0, None, None, -0.5, {}, facts))
    assert "step 1/1  reward 0.2500  validation 0.5000  length 3.0000" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind, screen", [("xterm-256color", True), ("dumb", False), ("unknown", False)]
)
def test_a_terminal_that_cannot_be_drawn_on_gets_plain_lines(monkeypatch, kind, screen):
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("TERM", kind)
    assert progress.Live().terminal is screen


def test_spans_of_time():
    assert [progress.duration(s) for s in (5, 90, 600, 10_000)] == [
        "5 s",
        "90 s",
        "10 min",
        "2.8 h",
    ]


def test_a_log_cut_short_by_a_crash_is_still_read(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n{"step": 3, "lo')
    assert [line["step"] for line in callbacks.read_log(path)] == [1, 2]
    callbacks.Log(path, start=1)
    assert path.read_text() == '{"step": 1, "loss": 2.0}\n'


def test_the_curves(finished_run, tmp_path):
    pytest.importorskip("matplotlib")
    assert "curves are in" in report.draw(
        runs.training_log(finished_run).charts(), tmp_path / "curves.png"
    )
    assert (tmp_path / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_tensorboard(corpus, tmp_path):
    pytest.importorskip("tensorboard")
    runs.run(settings(corpus, steps="2", tensorboard="true"), tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_tensorboard_that_is_missing_is_refused_where_it_was_asked_for(
    corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with mistake("pip install tensorboard"):
        runs.run(settings(corpus, steps="2", tensorboard="true"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_planned_model_is_the_one_that_is_trained_and_no_tokenizer_is(
    corpus, finished_run, monkeypatch
):
    trained = Checkpoint.open(finished_run / "step-000040").config
    monkeypatch.setattr("glassformer.runs.run_plan.train_tokenizer", None)
    assert runs.plan_run(settings(corpus)).model == trained
    for kind, vocab in (("bpe", 4096), ("byte", 257)):
        assert (
            runs.plan_run(settings(corpus, **{"data.tokenizer": kind})).model.embed.vocab == vocab
        )
    assert (
        runs.plan_run(
            settings(corpus, **{"data.tokenizer": "bpe", "data.vocab": "300"})
        ).model.embed.vocab
        == 300
    )


@pytest.mark.parametrize(
    "content", [None, b"", b"\xff\xfe\x00" * 9], ids=["missing", "empty", "no text"]
)
def test_no_tokenizer_is_announced_before_the_file_was_read(tmp_path, capsys, content):
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError):
        runs.run(settings(path), tmp_path / "run")
    assert "tokenizer" not in capsys.readouterr().err


def test_a_run_folder_means_its_best_checkpoint_and_says_so(finished_run, capsys):
    from glassformer.commands.options import ModelOptions

    def warnings_of(folder):
        ModelOptions(str(folder)).load_with_tokenizer()
        return capsys.readouterr().err

    best = (finished_run / "best").read_text().strip()
    assert resolve.checkpoint_folder(finished_run) == finished_run / best
    assert f"Checkpoint {best} of {finished_run}, the best by validation loss." in warnings_of(
        finished_run
    )
    assert "Checkpoint" not in warnings_of(finished_run / best)


def test_a_separator_makes_documents_of_a_file(tmp_path):
    """The separator itself is not a text: a character tokenizer has never met it."""
    (tmp_path / "two.txt").write_text("aab " * 100 + "%" + "bba " * 100)
    expected = {
        **SETTINGS,
        "steps": "1",
        "data.train": str(tmp_path / "two.txt"),
        "data.separator": "%",
    }
    runs.run(run_file.read_run(None, expected), tmp_path / "out")
    _, tokenizer = store.load(tmp_path / "out")
    assert set(tokenizer.vocabulary()) - set(tokenizer.specials) == {"a", "b", " "}


def test_a_damaged_checkpoint_names_the_one_before(tmp_path, corpus):
    expected = {**SETTINGS, "steps": "6", "data.train": str(corpus)}
    runs.run(run_file.read_run(None, expected), tmp_path)
    damaged = tmp_path / "step-000006" / "state.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with mistake(r"step-000003 instead, remove .*step-000006"):
        runs.run(run_file.read_run(None, expected), tmp_path, resume=True)
