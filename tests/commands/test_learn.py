"""``glassformer learn`` as it is typed: list, start, check, hint, solution; what is done is kept in
the folder."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from folders import read_json
from glassformer.core import files
from glassformer.learn import checking, progress_file
from glassformer.learn.exercise import catalogue, find
from mistakes import SENTENCES

COMMAND = [sys.executable, "-m", "glassformer", "learn"]


@pytest.fixture
def one_worker(checker, monkeypatch):
    """All checks of the command by one process that stays up: to start one takes seconds."""
    monkeypatch.setattr(checking, "Checker", lambda exercises: nullcontext(checker))


def test_the_way_of_a_learner(tmp_path, terminal, monkeypatch, one_worker):
    monkeypatch.chdir(tmp_path)
    exercise = find("causal-mask")
    path = Path("causal_mask.py")
    data = terminal.json("learn")
    assert len(data) >= 18
    assert {item["state"] for item in data} == {"new"}
    assert {"name", "title", "state"} <= data[0].keys()
    assert terminal("learn start causal-mask") == f"{path}\n"
    assert f"learn check {path}" in terminal.notes
    assert "causal_mask is not written yet" in terminal(f"learn check {path}", code=1)
    assert "learn hint causal-mask" in terminal.notes
    for hint in exercise.hints:
        assert terminal("learn hint causal-mask") == f"{hint}\n"
    solution = terminal("learn solution causal-mask")  # it can be checked as it is
    assert solution == f"# exercise: causal-mask\n\n{exercise.solution}"
    path.write_text(f"{solution}\nprint('hello')\n")
    terminal("learn check causal-mask")  # by its name
    output = terminal("learn check")
    assert "  | hello\n" in output
    assert output.endswith("causal-mask: passed.\n")
    assert "changed last" in terminal.notes
    assert "causal-mask              done" in terminal("learn")
    assert f"1 of {len(data)} done." in terminal.notes
    saved = read_json(Path(progress_file.FILE))["causal-mask"]
    fields = {"state": "done", "checks": 3, "hints": 3, "file": str(path)}
    assert saved.items() >= fields.items()
    path.write_text("# exercise: causal-mask\n")
    # broken again: what was done stays done
    assert json.loads(terminal("learn check --json", code=1))["state"] == "failed"
    assert progress_file.state(exercise, progress_file.read_progress(tmp_path)) == "done"


def test_the_real_command_over_a_class(tmp_path):
    exercise = find("causal-mask")
    for learner, code in (("ada", exercise.solution), ("bob", exercise.starter)):
        (tmp_path / learner).mkdir()
        (tmp_path / learner / "work.py").write_text(f"# exercise: causal-mask\n{code}")
    words = ["check", "--all", ".", "--json", "--grades", "out/class.csv", "--gradebook", "canvas"]
    done = subprocess.run([*COMMAND, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    grades = (tmp_path / "out" / "class.csv").read_text().splitlines()
    assert grades[2:] == ["ada,,,ada,,10", "bob,,,bob,,0"]
    results = {(row["learner"], row["state"], row["file"]) for row in json.loads(done.stdout)}
    assert results == {("ada", "passed", "ada/work.py"), ("bob", "todo", "bob/work.py")}
    assert not list(tmp_path.rglob(progress_file.FILE))


def test_a_class_as_a_table(tmp_path, terminal, one_worker):
    (tmp_path / "ada.py").write_text("# exercise: causal-mask\nwhile True: pass\n")
    (tmp_path / "bob.py").write_text("nothing")
    output = terminal(f"learn check --all {tmp_path} --seconds 0.3")
    assert "ada      causal-mask  stopped  line 2" in output
    assert "refused" in output
    assert "2 learners, 2 files, 0 passed." in terminal.notes


def test_lab_sheets_and_their_solutions(tmp_path, terminal):
    (tmp_path / "names.txt").write_text("Ada\n\n  Alan Turing \nAda\n")
    words = f"learn sheets {tmp_path / 'names.txt'} --seed 7 --problems loss,norms --out {tmp_path}"
    assert terminal(words).split() == [str(tmp_path / n) for n in ("sheets.html", "solutions.html")]
    assert "2 students" in terminal.notes
    sheets = (tmp_path / "sheets.html").read_text()
    assert "Alan Turing" in sheets and sheets != (tmp_path / "solutions.html").read_text()
    terminal(words)
    assert sheets == (tmp_path / "sheets.html").read_text()
    for text, problem in (("\n", "names.txt is empty"), (" \n\n", "names no student")):
        (tmp_path / "names.txt").write_text(text)
        terminal(words, code=2)
        assert problem in terminal.notes


def test_grades_are_of_a_class(tmp_path, terminal):
    (tmp_path / "ada.py").write_text("# exercise: causal-mask\n")
    terminal(f"learn check {tmp_path}/ada.py --grades {tmp_path}/a.csv", code=2)
    assert "give --all CLASS too" in terminal.notes
    terminal(f"learn check --all {tmp_path} --grades {tmp_path}/a.csv --gradebook moodle", code=2)
    assert "csv, canvas, nbgrader" in terminal.notes
    assert not (tmp_path / "a.csv").exists()


def test_a_broken_file_is_one_sentence(tmp_path, terminal, one_worker):
    (tmp_path / "a.py").write_text("# exercise: norms\ndef layer_norm(:\n")
    output = terminal(f"learn check {tmp_path}/a.py", code=1)
    assert "Traceback" not in output + terminal.notes
    assert "line 2: invalid syntax: Python cannot read your file" in output


def test_ctrl_c_ends_a_check_without_a_traceback(tmp_path):
    (tmp_path / "a.py").write_text(
        "# exercise: norms\nfrom pathlib import Path\nPath('begun').touch()\nwhile True: pass\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = [*COMMAND, "check", "a.py"]
    running = subprocess.Popen(words, cwd=tmp_path, start_new_session=True, **pipes)
    while not (tmp_path / "begun").exists() and running.poll() is None:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    message, notes = running.communicate(timeout=60)
    assert (running.returncode, message) == (130, ""), message
    assert "stopped." in notes and "Traceback" not in notes, notes


@pytest.mark.parametrize(
    "line, message",
    SENTENCES["learn"].items(),
)
def test_bad_input_gets_a_sentence(line, message, tmp_path, terminal, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("plain.py").write_text("x = 1\n")
    assert terminal(f"learn {line}", code=2) == ""
    assert message in terminal.notes
    assert [path.name for path in tmp_path.iterdir()] == ["plain.py"]


def test_a_broken_record_is_said(tmp_path, terminal):
    (tmp_path / progress_file.FILE).write_text("{")
    assert "delete it to begin anew" in terminal.refused(f"learn start int8 --out {tmp_path}")
    assert not (tmp_path / "int8.py").exists()
    (tmp_path / progress_file.FILE).write_text('{"int8": 3}')
    terminal.refused(f"learn --out {tmp_path}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_locked_folder(tmp_path, terminal):
    tmp_path.chmod(0o555)
    assert "cannot be written" in terminal.refused(f"learn start int8 --out {tmp_path}")


def test_a_check_in_a_folder_that_cannot_be_written_still_says_what_it_found(
    tmp_path, capsys, monkeypatch
):
    def full(*args):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("glassformer.core.files.write", full)
    progress_file.update_progress(tmp_path, "int8", state="done")
    assert "could not be saved" in capsys.readouterr().err
    assert (
        progress_file.state(catalogue()[0], progress_file.read_progress(tmp_path))
        == progress_file.NEW
    )


@pytest.mark.parametrize(
    ("line", "last"),
    [
        ("learn sheets names.txt --problems loss", "solutions.html"),
        ("learn start causal-mask", progress_file.FILE),
    ],
)
def test_a_disk_that_fills_up_half_way_changes_nothing(line, last, tmp_path, terminal, monkeypatch):
    """The disk has no room for the last file that is written."""
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("Ada Lovelace\n")
    real = files.sync

    def sync(path):
        if last in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path)

    monkeypatch.setattr(files, "sync", sync)
    assert "is full; free some space. Nothing there was changed." in terminal.refused(line)
    assert [path.name for path in tmp_path.iterdir()] == ["names.txt"]
