"""The script that plants bugs, on a small made-up repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mutate
from mutate import Change, Mutant, Row, Tree

MODULE = '''"""A module."""


def clamp(value: int, low: int = 0) -> int:
    if low > 9:
        raise ValueError("low is above 9")
    return max(value, low)


def countdown(value):
    while value > 0:
        value -= 1
    return value
'''
TESTS = """from room.module import clamp, countdown


def test_clamp():
    assert clamp(-1) == 0 and clamp(5) == 5 and countdown(3) == 0
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    root = tmp_path / "repository"
    for path, text in {
        "src/room/module.py": MODULE,
        "src/room/other.py": "LIMIT = 3\n",
        "tests/room/test_module.py": TESTS,
        "tests/where.md": "| `room/test_module.py` | `room/other` `hall/*` |\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    monkeypatch.setattr(mutate, "SOURCE", Path("src"))
    monkeypatch.setattr(mutate, "GRACE", 3.0)
    return root


@pytest.mark.parametrize(
    "text, bugs",
    [
        ("x < y", {"comparison: x <= y"}),
        ("x is not y", {"comparison: x is y"}),
        ("x and y", {"and/or: (x or y)"}),
        ("z = not (x or y)", {"not: z = (x or y)", "and/or: z = not ((x and y))"}),
        ("x = 7", {"off by one: x = 8"}),
        ("x = True", {"boolean: x = False"}),
        ("x = y - z", {"sign: x = y + z", "operands: x = z - y"}),
        (
            "x = y - z - w",
            {"sign: x = y + z - w", "operands: x = z - y - w"}
            | {"sign: x = y - z + w", "operands: x = w - (y - z)"},
        ),
        ("x = y + 'z'", set()),
        ("x = f(y, scale=z, strict=w)", {"keyword: x = f(y, strict=w)"}),
        ("x = min(y, z)", {"min/max: x = max(y, z)"}),
        ("f(x)", {"call: pass"}),
        ("if x:\n    raise E(y + z)", {"guard: pass"}),
        ("'ä' if x > y else z", {"comparison: 'ä' if x >= y else z"}),
        ("@f(x=1)\ndef g(x: L[1]) -> L[2]: ...", set()),
        ("assert x > 0, f'{x + 1}'", set()),
        ("y = f(x, strict=True)", set()),
    ],
)
def test_patterns_of_python(text, bugs):
    assert {
        f"{change.operator}: {change.apply(text)}" for change in mutate.python_changes(text)
    } == bugs


def test_patterns_of_c():
    text = "#include <a-1.h>\nfor (i = 0; i < n; i++) { // i + 1\n  put(y, a + b[i] * c); }\n"
    result = {
        f"{change.operator}: {change.apply(text).splitlines()[-1]}"
        for change in mutate.c_changes(text)
    }
    assert result >= {
        "sign:   put(y, a - b[i] * c); }",
        "term:   put(y, a * c); }",
        "term:   put(y, a + b[i]); }",
    }
    assert "call: ; }" in {item.replace(":   ", ": ") for item in result}
    loops = {change.apply(text).splitlines()[1] for change in mutate.c_changes(text)}
    assert "for (i = 0; i <= n; i++) { // i + 1" in loops
    assert "for (i = 1; i < n; i++) { // i + 1" in loops
    assert all(
        change.apply(text).startswith("#include <a-1.h>") for change in mutate.c_changes(text)
    )
    assert not any(
        "// i - 1" in change.apply(text) or "// i + 2" in change.apply(text)
        for change in mutate.c_changes(text)
    )


def test_a_seed_draws_the_same_bugs_and_the_operators_take_turns(repository):
    drawn = mutate.draw([Path("room")], 6, 1, repository)
    assert (
        drawn
        == mutate.draw([Path("room")], 6, 1, repository)
        != mutate.draw([Path("room")], 6, 2, repository)
    )
    assert {item.change.operator for item in drawn} >= {
        "comparison",
        "off by one",
        "min/max",
        "guard",
    }
    assert {item.file for item in mutate.draw([Path("room/other.py")], 9, 0, repository)} == {
        Path("room/other.py")
    }


def test_the_tests_of_a_file(repository):
    for file in ("room/module.py", "room/other.py", "hall/module.py"):
        assert mutate.tests_of(Path(file), repository) == ("tests/room/test_module.py",)
    assert mutate.tests_of(Path("core/room/module.py"), repository) == (
        "tests/room/test_module.py",
    )
    assert mutate.tests_of(Path("room/sums.c"), repository) == ("tests/room",)
    assert mutate.tests_of(Path("room/__init__.py"), repository) == ("tests/room",)
    assert mutate.tests_of(Path("cellar/module.py"), repository) == ()


@pytest.mark.slow
def test_a_bug_is_killed_or_lives_and_the_repository_is_as_before(repository, tmp_path):
    tree = Tree(tmp_path, repository)
    results = {}
    for change in mutate.python_changes(MODULE):
        if change.operator in ("min/max", "guard") or "value >" in change.new:
            mutant = Mutant(Path("room/module.py"), change, ("tests/room/test_module.py",))
            results[change.new] = tree.plant(mutant)
    endless = Change("by hand", MODULE.index("value -= 1"), MODULE.index("value -= 1") + 10, "pass")
    results["endless"] = tree.plant(
        Mutant(Path("room/module.py"), endless, ("tests/room/test_module.py",))
    )
    assert results == {
        "min(value, low)": "killed",
        "pass": "lived",
        "value >= 0": "killed",
        "endless": "killed",
    }
    assert (
        (repository / "src/room/module.py").read_text()
        == (tree.folder / "src/room/module.py").read_text()
        == MODULE
    )


def test_tests_that_fail_without_a_bug_are_refused(repository, tmp_path):
    (repository / "tests/room/test_module.py").write_text("def test_red():\n    assert False\n")
    tree = Tree(tmp_path, repository)
    with pytest.raises(
        SystemExit,
        match=r"Without a bug pytest tests/room/test_module\.py ends "
        r"with 1",
    ):
        tree.plant(mutate.draw([Path("room")], 1, 0, repository)[0])


def test_rows_by_hand():
    (row,) = mutate.rows(
        "| where | bug | change | tests |\n|---|---|---|---|\n"
        "| `room/module.py: clamp` | wrong | `max(..., low)` => `(... \\| 0)` | "
        '`room/test_module.py -k "a b"` |\n'
    )
    assert row.tests == ["tests/room/test_module.py", "-k", "a b"]
    change = row.change(MODULE)
    assert change is not None
    assert "    return (value | 0)\n" in change.apply(MODULE)
    assert row._replace(old="max(value, high)").change(MODULE) is None
    assert row._replace(function="clip").change(MODULE) is None
    split = Row(Path("a.py"), "", "", "f(x, y)", "f(y, x)", []).change("f(x,\n  y)")
    assert split is not None
    assert split.new == "f(y, x)"


def test_the_page_of_rows_is_read():
    page = (mutate.ROOT / "tests/mutants.md").read_text(encoding="utf-8")
    rows = mutate.rows(page)
    assert 0 < len(rows) == page.count("\n| `") <= 50
    source = mutate.ROOT / mutate.SOURCE
    stale = [
        f"{row.file}: {row.bug}"
        for row in rows
        if row.change((source / row.file).read_text(encoding="utf-8")) is None
    ]
    assert not stale, f"what these rows change has gone; change or drop them: {stale}"


def test_the_command_refuses_a_file_that_is_not_there():
    command = [sys.executable, "tests/mutate.py", "room/none.py"]
    done = subprocess.run(command, cwd=mutate.ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "room/none.py is neither here nor below src/glassformer" in done.stderr
