"""The Python API: `help` of each public name says all, and every example runs."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest

import glassformer
import tiny
from glassformer.core import config as c
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats.tokenizer_files import open as open_tokenizer

EXCEPTIONS = {"UserError", "__version__"}
NAMES = sorted({*glassformer.__all__} - EXCEPTIONS)
OF_RUNS = {
    "head_history",
    "influence",
    "replay",
    "training_log",
    "update_texts",
    "weight_history",
}
TEXT = "Ann saw Rome . Once upon a time two dogs run on the beach . Paris is in the film . " * 4
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def sections(name):
    """The parts of a docstring by their headings, the first under ""."""
    doc = inspect.getdoc(getattr(glassformer, name)) or ""
    pieces = re.split(r"^(Args|Attributes|Returns|Yields|Raises|Example):$", doc, flags=re.M)
    return {"": pieces[0], **dict(zip(pieces[1::2], pieces[2::2], strict=True))}


@pytest.mark.parametrize("name", NAMES)
def test_help_says_all(name):
    value, doc = getattr(glassformer, name), sections(name)
    heading = "Attributes" if dataclasses.is_dataclass(value) else "Args"
    entries = re.findall(r"^    (\*{0,2}\w[\w, *]*):", doc.get(heading, ""), flags=re.M)
    named = [entry.strip() for line in entries for entry in line.replace("*", "").split(",")]
    signature = inspect.signature(value)
    assert named == [*signature.parameters], "each parameter has its line, in order"
    assert doc[""].strip().split("\n\n")[0].endswith(".")
    if signature.return_annotation not in ("None", inspect.Signature.empty):
        assert inspect.isclass(value) or doc.keys() & {"Returns", "Yields"}
    assert inspect.isclass(value) or "Raises" in doc
    assert "glassformer." in doc["Example"]


def model_for(name):
    """A model that the verb takes, with its tokenizer."""
    heads = {
        "classify": {"pool": c.Pool("first", labels=2)},
        "tag": {"token_head": c.TokenHead(2)},
    }
    if name in heads:
        cfg = replace(tiny.ALL["bert"], **heads[name])
    elif name == "fill":
        cfg = tiny.ALL["bert"]
    elif name in ("translate", "convert"):
        cfg = tiny.ALL["t5" if name == "translate" else "llama"]
    else:
        return glassformer.load("tiny")
    if name in ("translate", "convert"):
        tokenizer = train_tokenizer("bpe", [TEXT], 300)
    else:
        words = [*SPECIALS, *dict.fromkeys(TEXT.lower().split())]
        Path("vocab.txt").write_text("\n".join(words), encoding="utf-8")
        tokenizer = open_tokenizer(Path())
    embed = replace(cfg.embed, vocab=tokenizer.size)
    return tiny.model(replace(cfg, embed=embed)), tokenizer


RUN = """
[model]
recipe = "glass/1m"
decoder.depth = {depth}
dim = 32
[data]
train = "text.txt"
tokenizer = "char"
[train]
steps = 2
batch = 2
context = 16
evaluate_every = 2
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files that the examples name."""
    monkeypatch.chdir(tmp_path)
    text = Path("text.txt")
    text.write_text("\n".join([TEXT] * 20))
    Path("held-out.txt").write_text(TEXT)
    for name, depth in (("a", 1), ("b", 2)):
        Path(f"{name}.toml").write_text(RUN.format(depth=depth))
    Path("runs").mkdir()
    Path("runs/demo.toml").write_text(RUN.format(depth=1))
    Path("mixer.py").write_text("import glassformer\n")
    return tmp_path


# a hub of this machine takes what is pushed in formats/test_hub.py
@pytest.mark.parametrize("name", [name for name in NAMES if name != "push"])
def test_every_example_runs(name, folder):
    model, tokenizer = model_for(name)
    if "out/mine" in sections(name)["Example"]:
        if name in OF_RUNS:
            glassformer.train("a.toml", out="out/mine")
        else:
            glassformer.save(model, "out/mine", tokenizer)
    namespace = {"glassformer": glassformer, "model": model, "tokenizer": tokenizer}
    source = sections(name)["Example"].replace("minutes=5", "tokens=64")
    for example in doctest.DocTestParser().get_examples(source):
        exec(compile(example.source, name, "single"), namespace)
