"""Every notebook runs from top to bottom, offline, and gives the outputs that are stored in it.

    python tests/test_notebooks.py [NAME ...]      runs them and stores what they give

A cell's tag says how its output is held to the stored one: "varies" (clocks, texts drawn after a
training) not at all, "trained" numbers within 5 %, others word for word, numbers within 0.1 %;
pictures by the words and numbers in them.
"""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
from html import unescape
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbclient is missing: pip install -e '.[dev]'")
nbclient = pytest.importorskip("nbclient", reason="nbclient is missing: pip install -e '.[dev]'")
pytest.importorskip("ipykernel", reason="ipykernel is missing: pip install -e '.[dev]'")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST = 400_000  # bytes of one
QUICK = ("1-first-steps", "5-tokenizers")  # seconds; the others train
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
MACHINE = re.compile(r"/(?:tmp|home|root|work|Users|usr|content)/|\.venv")


def read_notebook(path):
    """A notebook."""
    return nbformat.read(path, as_version=4)


def executed(path):
    """A notebook run from its first cell to its last in an empty folder, on one thread, with no
    network's proxy."""
    book = read_notebook(path)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HUB_OFFLINE": "1",
    }
    environment["GLASSFORMER_DATA"] = "/nowhere"  # nothing but what the package holds
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            book,
            timeout=900,
            kernel_name="python3",
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        client.execute(env=environment)
    for cell in book.cells:
        cell.metadata.pop("execution", None)
    book.metadata = {"kernelspec": book.metadata["kernelspec"], "language_info": {"name": "python"}}
    return book


def outputs(cell):
    """Printed and displayed output of a cell, as text."""
    messages = []
    for output in cell.outputs:
        if output.output_type == "stream":
            messages.append(output.text)
        else:
            data = output.get("data", {})
            messages.append(
                re.sub("<[^>]+>", " ", unescape(data["text/html"]))
                if "text/html" in data
                else data.get("text/plain", "")
            )
    return re.sub(r"(\w\.py):\d+", r"\1", "\n".join(messages))  # lines of our source move


def alike(item, other_name, relative):
    """True where two texts have the same words and, but for rounding, the same numbers."""
    if NUMBER.sub("#", item).split() != NUMBER.sub("#", other_name).split():
        return False
    pairs = zip(NUMBER.findall(item), NUMBER.findall(other_name), strict=True)
    sides = ((float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs)
    return all(math.isclose(a, b, rel_tol=relative, abs_tol=1e-5 + relative / 10) for a, b in sides)


def differing(stored, ran):
    """The cells whose output is not the stored one."""
    results = []
    for at, (cell, second) in enumerate(zip(stored.cells, ran.cells, strict=True)):
        tags = cell.metadata.get("tags", [])
        if cell.cell_type != "code" or "varies" in tags:
            continue
        if not alike(outputs(cell), outputs(second), 0.05 if "trained" in tags else 1e-3):
            results.append(f"cell {at}:\n{outputs(cell)[:600]}\n--- now:\n{outputs(second)[:600]}")
    return results


def test_there_are_six():
    assert [path.stem[0] for path in NOTEBOOKS] == list("123456")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored(path):
    """Outputs are there, small, without an error or a path of the machine that made them; links
    lead somewhere."""
    book = read_notebook(path)
    text = path.read_text(encoding="utf-8")
    nbformat.validate(book)
    assert len(text) < MOST
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum(bool(cell.outputs) for cell in code) >= len(code) // 2
    for cell in code:
        assert all(output.output_type != "error" for output in cell.outputs)
        assert not MACHINE.search(re.sub(r'"[^"]*base64[^"]*"', "", str(cell.outputs))), cell.source
    words = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    assert "Question" in words or "Exercise" in words
    for target in re.findall(r"\]\(([\w-]+\.ipynb)\)", words):
        assert (path.parent / target).exists(), target


def test_a_changed_number_is_seen():
    assert alike("loss 1.2345 of 1,000", "loss  1.2346 of 1,000", 1e-3)
    assert not alike("loss 1.2345", "loss 1.2445", 1e-3)
    assert not alike("a 1", "b 1", 1e-3)
    assert not alike("1 2", "1", 1)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=() if p.stem in QUICK else pytest.mark.slow, id=p.stem)
        for p in NOTEBOOKS
    ],
)
def test_it_runs_and_gives_what_is_stored(path):
    result = differing(read_notebook(path), executed(path))
    assert not result, "\n\n".join(result) + (
        f"\n\nIf that is right: python tests/test_notebooks.py {path.stem}"
    )


if __name__ == "__main__":
    for path in NOTEBOOKS:
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            notebook = executed(path)
            nbformat.write(notebook, path)
            print(path.stem, path.stat().st_size)
