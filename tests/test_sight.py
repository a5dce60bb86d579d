"""docs/sight.md shows what the program prints: each command and each block of Python is run again.

Left out is what needs another model, a training or minutes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from pathlib import Path

import pytest

import glassformer
from glassformer.cli import main

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("GLASSFORMER_DATA", ROOT.parent / "shared/data"))
PAGE = (ROOT / "docs/sight.md").read_text(encoding="utf-8")
TEXT = re.search(r'TEXT="(.*)"', PAGE)[1]
APART = ("all-MiniLM", "out/", "--fit", "--tuned", "val.txt", "verify", "generate", "LAYOUT")
NUMBER = re.compile(r"[-+]?\d[\d,]*\.\d+(?:e[-+]?\d+)?|[-+]?\d+e[-+]?\d+")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

needs_data = pytest.mark.skipif(not (DATA / "stories260K").is_dir(), reason="needs stories260K")


def commands():
    """Each command of the page with what stands below it; ``...`` is the command before it, up to
    its options."""
    before = ""
    for match in FENCE.finditer(PAGE):
        language, block = match.groups()
        above = re.search(r"((?:^    .*\n)+)\n?\Z", PAGE[: match.start()], re.MULTILINE)
        if above and "    glassformer " in above[1] and not language:
            yield above[1].replace("\\\n", " ").strip(), block
        elif block.startswith("$ "):
            for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, output = re.sub(r"\\\n\s*", "", example).partition("\n")
                command = command.partition("   #")[0].strip()
                base = re.split(r" --(?!\w*text)", before, maxsplit=1)[0]
                before = command if command.startswith("glass") else command.replace("...", base, 1)
                yield before, output


def close(actual, expected):
    """Equal but for numbers with a point, which are within a thousandth of the line's largest; the
    page may leave lines out by one that says ``..``."""
    # a rounding that one processor has and another has not
    texts = (re.sub(r"difference 0$", "difference 0.0", x, flags=re.M) for x in (actual, expected))
    rows = [text.rstrip().splitlines() for text in texts]
    if "  .." in rows[1]:
        at, count = rows[1].index("  .."), len(rows[1])
        rows = [rows[0][:at] + rows[0][at + 1 - count :], rows[1][:at] + rows[1][at + 1 :]]
    assert len(rows[0]) == len(rows[1]), actual
    for actual_line, expected_line in zip(*rows, strict=True):
        words = [" ".join(NUMBER.sub("#", row).split()) for row in (actual_line, expected_line)]
        assert words[0] == words[1]
        numbers = [
            [float(x.replace(",", "")) for x in NUMBER.findall(row)]
            for row in (actual_line, expected_line)
        ]
        scale = max((abs(x) for x in numbers[1]), default=0)
        tiny = "difference" in expected_line or "rounding" in expected_line
        assert tiny or numbers[0] == pytest.approx(numbers[1], rel=1e-3, abs=2e-3 * scale), (
            actual_line
        )


EXAMPLES = [x for x in commands() if not any(word in x[0] for word in APART)]


@needs_data
@pytest.mark.parametrize("command, output", EXAMPLES, ids=[x[0][12:60] for x in EXAMPLES])
def test_commands(command, output, tmp_path, monkeypatch, capsys):
    (source,) = (block for language, block in FENCE.findall(PAGE) if "def make" in block)
    (tmp_path / "mixer.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    words = shlex.split(command.replace("$TEXT", TEXT))[1:]
    words = [re.sub(r"^(DATA/)?stories260K$", str(DATA / "stories260K"), word) for word in words]
    main(words)
    printed = capsys.readouterr()
    assert " --help." not in printed.err, "the page shows a command that is not whole"
    close(printed.err + printed.out, output)


@needs_data
@pytest.mark.slow
def test_python_of_any_model():
    """The blocks on causes and instruments of a model of transformers, one after the other."""
    pytest.importorskip("transformers")
    start, end = PAGE.index("    import transformers\n"), PAGE.index("## Change one thing")
    model, tokenizer = glassformer.load(str(DATA / "stories260K"))
    ids = [
        glassformer.trace(model, tokenizer, text).tokens
        for text in (TEXT, TEXT.replace("Lily", "Tim"))
    ]
    names = {"glassformer": glassformer, "TEXT": TEXT, "IDS": ids[0], "IDS_OF_TIM": ids[1]}
    count = 0
    blocks = re.finditer(r"((?:^(?:    [^\n]*)?\n)+)```\n(.*?)^```$", PAGE[start:end], re.M | re.S)
    for block in blocks:
        code = re.sub(r"^    ", "", block[1], flags=re.MULTILINE).replace("DATA/", f"{DATA}/")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(code, names)
        close(output.getvalue(), block[2])
        count += 1
    assert count >= 5
