"""What README shows is what happens: Python blocks run, command lines are understood, links lead
somewhere."""

from __future__ import annotations

import contextlib
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import glassformer
from glassformer import cli
from glassformer.commands import VERBS
from glassformer.core.config.serial import change
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.families import find

ROOT = Path(__file__).parents[1]
PAGES = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/tour.md")]
README = "\n".join(PAGES)


def fences(page):
    """The blocks of a page, each with its language."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


BLOCKS = [block for page in PAGES for block in fences(page)]
PYTHON = [block for kind, block in BLOCKS if kind == "python"]
(TOML,) = (block for kind, block in BLOCKS if kind == "toml")
SHELL = [
    line.partition(" #")[0].removeprefix(".venv/bin/").strip()
    for _, block in BLOCKS
    for line in block.splitlines()
    if line.startswith(".venv/bin/glassformer")
]


@pytest.mark.parametrize("line", SHELL)
def test_command_lines_are_understood(line):
    words = shlex.split(line)[1:]
    assert cli.parser(VERBS).parse(words).run


@pytest.mark.parametrize("page", PAGES, ids=["README", "tour"])
def test_lines_need_only_what_earlier_lines_left(page):
    folders = set()
    lines = [
        line.partition(" #")[0]
        for kind, block in fences(page)
        if not kind
        for line in block.splitlines()
    ]
    lines = [line for line in lines if ".venv/bin/" in line and "pip install" not in line]
    for words in (shlex.split(line) for line in lines if "glassformer" in line):
        run_files = [word for word in words if word.endswith(".toml")]
        assert all((ROOT / file).exists() for file in run_files), words
        result = [words[words.index("--out") + 1]] if "--out" in words else []
        result += words[3:4] if words[1] == "quantize" else []
        assert "--resume" in words or not folders & {*result}, (
            f"{words} writes where an earlier line did"
        )
        ids = {word for word in words if word.startswith("out/")} - {*result}
        assert ids <= folders, f"{words} reads what no earlier line made"
        folders |= {*result}
    assert "out/mine" in folders


def test_the_first_example_prints_what_stands_below_it(monkeypatch, capsys):
    from test_sight import close

    monkeypatch.chdir(ROOT)
    shell = [block for kind, block in fences(PAGES[0]) if not kind]
    index = next(i for i, block in enumerate(shell) if "glassformer why" in block)
    assert cli.main(shlex.split(shell[index])[1:]) == 0
    close(capsys.readouterr().out, shell[index + 1])


def test_the_front_page_is_one_screen():
    assert len(PAGES[0].splitlines()) < 120
    assert "\n## Install\n" in PAGES[0] and "](docs/page-attention.png)" in PAGES[0]


@pytest.mark.parametrize("verb", ["look", "why"])
def test_lines_that_look_inside_show_what_they_say(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tokenizer = train_tokenizer("byte", [], 257)
    model = build_model(
        change(find("glass/200k"), {"embed.vocab": tokenizer.size, "context": 64}), seed=0
    )
    glassformer.save(model, "out/mine", tokenizer)
    lines = [
        line
        for line in README.splitlines()
        if line.startswith(f".venv/bin/glassformer {verb} out/mine")
    ]
    assert lines
    for line in lines:
        command, _, comment = line.removeprefix(".venv/bin/").partition(" #")
        assert cli.main(shlex.split(command)[1:]) == 0
        output = capsys.readouterr().out
        assert ("shape" in output) == ("shape" in comment), output
        if verb == "why":  # the number that is named, of a token that can be read
            assert 'word 116 "t"' in output and 'probability of "t"' in comment, output


def test_there_is_something_to_hold_it_to():
    assert len(SHELL) >= 5
    assert len(PYTHON) >= 2


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """The working folder that the blocks expect: a text, and a model that was trained on it."""
    monkeypatch.chdir(tmp_path)
    text = "The cat sat on a house of glass and looked through its walls.\n" * 400
    Path("own.txt").write_text(text)
    tokenizer = train_tokenizer("bpe", [text], 300)
    shape = change(find("glass/200k"), {"embed.vocab": tokenizer.size, "context": 64})
    glassformer.save(build_model(shape, seed=0), "out/mine", tokenizer)


@pytest.mark.parametrize("block", PYTHON, ids=range(len(PYTHON)))
def test_python_blocks_run(block, workplace, capsys):
    shorter = (
        block.replace('"python-docs"', '"own.txt"')
        .replace("2048", "300")
        .replace("steps=100", "steps=2")
    )
    Path("mine.toml").write_text(TOML.replace('"python-docs"', '"own.txt"').replace("= 500", "= 2"))
    exec(compile(shorter, "README.md", "exec"), {})
    output = capsys.readouterr().out
    assert output.count("\n") == 2 if "steps=" in block else output, output


@pytest.mark.parametrize("name", ["data-formats", "objectives", "tape"])
def test_the_blocks_of_a_page_run(name, workplace, capsys):
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        if kind == "python":
            exec(compile(block, f"{name}.md", "exec"), {})
            output = capsys.readouterr().out
            assert output and "False" not in output, output
        for line in block.splitlines() if not kind else ():
            assert cli.parser(VERBS).parse(shlex.split(line.partition(" #")[0])[1:]).run


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
            assert link.startswith("http") or (page.parent / link).exists(), (page.name, link)


def test_the_file_of_ones_own_runs_as_pasted(tmp_path):
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    matches = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(matches) > 5
    (tmp_path / "my_parts.py").write_text("\n".join(matches))
    program = (
        "import glassformer, torch; from glassformer.core.nn import build_model; from "
        "glassformer.families import find; "
        "from glassformer.core.config.serial import change; glassformer.use('my_parts.py'); "
        "cfg = change(find('glass/200k'), {'decoder.pattern.0.norm': 'ScaleNorm'}); "
        "model = build_model(cfg, seed=0); glassformer.save(model, 'm'); "
        "assert glassformer.load('m')[0].config == cfg; "
        "print(bool(model(torch.tensor([[1]])).logits.isfinite().all()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr
    words = [sys.executable, "-m", "glassformer", "generate", "m", "x"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and '"ScaleNorm"' in done.stderr and "--use FILE" in done.stderr, (
        done.stderr
    )


def exists(module, name):
    with contextlib.suppress(ImportError):
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
        return True
    return False


def test_what_the_pages_import_is_there():
    """The site is built rarely, so that a name which moved would be missed for long."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("notebooks/*.ipynb")]
    imports = re.compile(r'(?:^ *|")from (glassformer[\w.]*) import ([\w, ]+)', re.M)
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    missing = [
        f"{page.relative_to(ROOT)}: {module} has no {name}"
        for page, text in texts.items()
        for module, names in imports.findall(text)
        for name in (entry.split(" as ")[0].strip() for entry in names.split(","))
        if not exists(module, name)
    ]
    assert not missing, missing
