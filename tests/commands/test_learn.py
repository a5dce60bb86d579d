"""``glassformer learn`` as it is typed: list, start, check, hint, solution; what is done is kept in
the folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glassformer.cli import main
from glassformer.learn import progress
from glassformer.learn.exercise import catalogue, find

COMMAND = [sys.executable, "-m", "glassformer", "learn"]


def test_the_way_of_a_learner(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["learn", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (
        len(data) >= 18
        and {item["state"] for item in data} == {"new"}
        and {"name", "title", "state"} <= data[0].keys()
    )
    assert main(["learn", "start", "causal-mask"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "causal_mask.py\n" and "learn check causal_mask.py" in captured.err
    path = Path("causal_mask.py")
    assert main(["learn", "check", "causal_mask.py"]) == 1
    captured = capsys.readouterr()
    assert (
        "causal_mask is not written yet" in captured.out
        and "learn hint causal-mask" in captured.err
    )
    for hint in find("causal-mask").hints:
        assert main(["learn", "hint", "causal-mask"]) == 0
        assert capsys.readouterr().out == f"{hint}\n"
    assert main(["learn", "solution", "causal-mask"]) == 0
    solution = capsys.readouterr().out
    assert solution == f"# exercise: causal-mask\n\n{find('causal-mask').solution}", (
        "it can be checked as it is"
    )
    path.write_text(f"{solution}\nprint('hello')\n")
    assert main(["learn", "check", "causal-mask"]) == 0, "by its name"
    capsys.readouterr()
    assert main(["learn", "check"]) == 0
    captured = capsys.readouterr()
    assert (
        "  | hello\n" in captured.out
        and captured.out.endswith("causal-mask: passed.\n")
        and "changed last" in captured.err
    )
    assert main(["learn"]) == 0
    captured = capsys.readouterr()
    assert (
        "causal-mask              done" in captured.out
        and f"1 of {len(data)} done." in captured.err
    )
    saved = json.loads((tmp_path / progress.FILE).read_text())["causal-mask"]
    assert (saved["state"], saved["checks"], saved["hints"], saved["file"]) == (
        "done",
        3,
        3,
        "causal_mask.py",
    )
    path.write_text("# exercise: causal-mask\n")
    assert main(["learn", "check", "--json"]) == 1  # broken again: what was done stays done
    assert json.loads(capsys.readouterr().out)["state"] == "failed"
    assert progress.state(find("causal-mask"), progress.read_progress(tmp_path)) == "done"


def test_the_real_command_over_a_class(tmp_path):
    everyone = tmp_path / "class"
    for learner, code in (
        ("ada", find("causal-mask").solution),
        ("bob", find("causal-mask").starter),
    ):
        (everyone / learner).mkdir(parents=True)
        (everyone / learner / "work.py").write_text(f"# exercise: causal-mask\n{code}")
    done = subprocess.run(
        [*COMMAND, "check", "--all", everyone, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    output = {item["learner"]: item for item in json.loads(done.stdout)}
    assert (output["ada"]["state"], output["bob"]["state"], output["ada"]["file"]) == (
        "passed",
        "todo",
        "ada/work.py",
    )
    assert not list(everyone.rglob(progress.FILE))


def test_a_class_as_a_table(tmp_path, capsys):
    (tmp_path / "ada.py").write_text("# exercise: causal-mask\nwhile True: pass\n")
    (tmp_path / "bob.py").write_text("nothing")
    assert main(["learn", "check", "--all", str(tmp_path), "--seconds", "0.3"]) == 0
    captured = capsys.readouterr()
    assert "ada      causal-mask  stopped  line 2" in captured.out and "refused" in captured.out
    assert "2 learners, 2 files, 0 passed." in captured.err


def test_a_broken_file_through_the_real_command(tmp_path):
    (tmp_path / "a.py").write_text("# exercise: norms\ndef layer_norm(:\n")
    done = subprocess.run(
        [*COMMAND, "check", "a.py"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (
        done.returncode == 1
        and "line 2: invalid syntax: Python cannot read your file" in done.stdout
    ), done
    assert "Traceback" not in done.stdout + done.stderr


def test_ctrl_c_ends_a_check_without_a_traceback(tmp_path):
    (tmp_path / "a.py").write_text(
        "# exercise: norms\nfrom pathlib import Path\nPath('begun').touch()\nwhile True: pass\n"
    )
    pipes = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
    }
    running = subprocess.Popen([*COMMAND, "check", "a.py"], cwd=tmp_path, **pipes)  # type: ignore[call-overload]
    while not (tmp_path / "begun").exists() and running.poll() is None:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    message, notes = running.communicate(timeout=60)
    assert (
        running.returncode == 130 and "stopped." in notes and "Traceback" not in message + notes
    ), (
        message,
        notes,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["strat", "int8"], 'no command "strat". Did you mean "start"?'),
        (["start"], "required: NAME; see glassformer learn start --help"),
        (["start", "casual-mask"], 'Did you mean "causal-mask"?'),
        (["start", "int8", "norms"], "norms is not understood"),
        (["hint", "nonesuch"], "There is no exercise"),
        (["solution", "int-8"], 'Did you mean "int8"?'),
        (["check"], "There is no exercise begun in"),
        (["check", "nothing.py"], "nothing.py is not there"),
        (["check", "plain.py"], "is of no exercise"),
        (["check", "plain.py", "--seconds", "0"], "give 0 to 86,400, above 0"),
        (["check", "plain.py", "--seconds", "inf"], "give 0 to 86,400"),
        (["check", "plain.py", "--seed", "-1"], "--seed is -1; give 0 to"),
        (["check", "--all", "nowhere"], "is not a folder"),
        (["--exercises", "nowhere"], "is not a folder"),
        (["check", "plain.py", "--all", "."], "not both"),
    ],
)
def test_bad_input_gets_a_sentence(
    words,
    message,
    tmp_path,
    capsys,
    monkeypatch,
):
    monkeypatch.chdir(tmp_path)
    Path("plain.py").write_text("x = 1\n")
    assert main(["learn", *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["plain.py"]


def test_a_broken_record_is_said(tmp_path, capsys):
    (tmp_path / progress.FILE).write_text("{")
    assert main(["learn", "start", "int8", "--out", str(tmp_path)]) == 2
    assert (
        "delete it to begin anew" in capsys.readouterr().err and not (tmp_path / "int8.py").exists()
    )
    (tmp_path / progress.FILE).write_text('{"int8": 3}')
    assert main(["learn", "--out", str(tmp_path)]) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_locked_folder(tmp_path, capsys):
    tmp_path.chmod(0o555)
    assert main(["learn", "start", "int8", "--out", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_file_in_the_way_of_the_folder(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["learn", "start", "int8", "--out", str(tmp_path / "file")]) == 2
    assert "a file stands in its way" in capsys.readouterr().err


def test_a_check_in_a_folder_that_cannot_be_written_still_says_what_it_found(
    tmp_path, capsys, monkeypatch
):
    def full(*args):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("glassformer.core.files.write", full)
    progress.update_progress(tmp_path, "int8", state="done")
    assert "could not be kept" in capsys.readouterr().err
    assert progress.state(catalogue()[0], progress.read_progress(tmp_path)) == progress.NEW
