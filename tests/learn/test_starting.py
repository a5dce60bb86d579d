"""The learner's file: it holds task, TODOs and hints, is never written over, and is read back."""

from __future__ import annotations

import ast
import os

import pytest

from folders import read_json, write_json
from glassformer.learn import starting
from glassformer.learn.exercise import catalogue, find
from mistakes import mistake


@pytest.mark.parametrize("name", [item.name for item in catalogue()])
def test_both_kinds_hold_the_same_code(name, tmp_path):
    corpus = find(name)
    path = starting.write(corpus, tmp_path)
    notebook = starting.write(corpus, tmp_path, as_notebook=True)
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text), clean=False).startswith(f"{corpus.title}\n")
    assert corpus.starter in text
    assert "# 1. " in text
    assert f"learn check {path.name}" in text
    assert all(len(line) <= 120 for line in text.splitlines()), max(text.splitlines(), key=len)
    assert starting.read_source(path).exercise == starting.read_source(notebook).exercise == name
    assert corpus.starter.strip() in starting.read_source(notebook).code
    data = read_json(notebook)
    assert (data["nbformat"], [cell["cell_type"] for cell in data["cells"]][:2]) == (
        4,
        ["markdown", "code"],
    )
    ids = [cell["id"] for cell in data["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(corpus.hints[0] not in "".join(c["source"]) for c in data["cells"][:2])


def test_a_file_that_is_there_stays(tmp_path):
    path = starting.write(find("int8"), tmp_path)
    path.write_text("mine")
    with mistake("is there already"):
        starting.write(find("int8"), tmp_path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.py", b"x = 1\n", "belongs to no exercise"),
        ("a.py", b"\xff\xfe", "not UTF-8"),
        ("a.py", b"# exercise: x\n\0", "holds a NUL"),
        ("a.ipynb", b"{", "not valid JSON"),
        ("a.ipynb", b"[]", "not a JSON object"),
        ("a.ipynb", b"{}", "belongs to no exercise"),
        ("a.ipynb", b'{"cells": 3}', "belongs to no exercise"),
    ],
)
def test_what_cannot_be_read_is_said(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with mistake(None, message):
        starting.read_source(tmp_path / name)


def test_a_pipe_and_an_endless_file_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "endless.py").symlink_to("/dev/zero")
    (tmp_path / "large.py").touch()
    os.truncate(tmp_path / "large.py", 1 << 40)
    for name, why in (("pipe", "not a file"), ("endless", "not a file"), ("large", "more than")):
        with mistake(f"{name}.py cannot be read .it .*{why}"):
            starting.read_source(tmp_path / f"{name}.py")
    (tmp_path / "lines.py").write_bytes(b"# exercise: x\r\na = 1\rb = 2\n")
    assert starting.read_source(tmp_path / "lines.py").code == "# exercise: x\na = 1\nb = 2\n"


def test_a_missing_file_gets_the_nearest(tmp_path):
    (tmp_path / "causal_mask.py").touch()
    with mistake("Did you mean"):
        starting.read_source(tmp_path / "casual_mask.py")
    with mistake(r"is a folder; .* check --all"):
        starting.read_source(tmp_path)


def test_cells_lines_and_magics(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": "# exercise: not-this"},
        {"cell_type": "code", "source": ["# exercise: int8\n", "%matplotlib inline\n", "x = 1"]},
        {"cell_type": "code", "source": "%%bash\nls -l"},
        {"cell_type": "code", "source": "if x:\n    !ls\nz = 3"},
    ]
    write_json(tmp_path / "n.ipynb", {"cells": cells})
    source = starting.read_source(tmp_path / "n.ipynb")
    assert source.exercise == "int8"
    ast.parse(source.code)
    assert [source.location(line) for line in (3, 6, 8, None)] == [
        "code cell 1, line 3",
        "code cell 3, line 1",
        "code cell 3, line 3",
        "",
    ]
    assert "ls -l" not in source.code
    assert source.code.splitlines()[6] == "    pass  # !ls"
