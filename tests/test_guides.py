"""Pages that show another library's user, or one with a problem, what to type: every block runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import glassformer
from glassformer import cli
from glassformer.core.config.serial import change
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.families import find

DOCS = Path(__file__).parents[1] / "docs"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TEXT = "The cat sat on a house of glass and looked through its walls.\n" * 400


def fences(page):
    return FENCE.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))


def save(folder, name, shape, vocabulary=300):
    """A tiny model of a recipe, with random weights."""
    tokenizer = train_tokenizer("bpe", [TEXT], vocabulary)
    shape = {"embed.vocab": tokenizer.size, "context": 64, **shape}
    glassformer.save(build_model(change(find(name), shape), seed=0), folder, tokenizer)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.txt").write_text(TEXT)
    Path("short.txt").write_text("hello")


@pytest.mark.slow
def test_what_other_libraries_users_write_runs(workplace, capsys):
    """The blocks of docs/coming-from.md in order, by one interpreter, as a reader pastes them."""
    pytest.importorskip("transformers")
    sizes = {"dim": 32, "decoder.depth": 2, "decoder.pattern.attention.heads": 2}
    sizes |= {"decoder.pattern.feedforward.hidden": 128, "decoder.position.length": 64}
    save("gpt2", "gpt2/124m", sizes, 400)
    weights = {
        "transformer." + name.removeprefix("transformer."): value.T.contiguous()
        if re.search(r"c_\w+\.weight", name)
        else value
        for name, value in load_file("gpt2/model.safetensors").items()
    }
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    stated = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 64, "bias": True}
    torch.save(
        {"model": weights, "model_args": {**stated, "vocab_size": len(weights["lm_head.weight"])}},
        "ckpt.pt",
    )
    names = {}
    for kind, block in fences("coming-from"):
        if kind == "toml":
            Path("nano.toml").write_text(block.replace("= 200", "= 20"))
        elif kind == "python":
            exec(compile(block, "coming-from.md", "exec"), names)
            if "theirs" in block and "again" in block:
                assert capsys.readouterr().out.endswith("tensor(True)\nTrue\n")
        else:
            for line in block.splitlines():
                words = shlex.split(
                    re.sub(r"--steps 2[05]0", lambda m: f"--steps {m[0][-3:-1]}", line)
                )
                assert cli.main(words[1:]) == 0, line
    ids = torch.tensor([[1, 2, 3]])
    logits = [glassformer.load(name)[0](ids).logits for name in ("gpt2", "out/from-nano")]
    assert torch.allclose(*logits, atol=1e-6) and Path("out/tuned").is_dir()


def test_each_message_is_what_the_program_says(workplace, capsys, monkeypatch):
    """The commands of docs/troubleshooting.md, and the sentence below each."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("model.pt").write_bytes(b"no model")
    save("out/mine", "glass/200k", {})
    examples = [
        (command, expected.strip())
        for kind, block in fences("troubleshooting")
        for command, _, expected in (
            example.partition("\n") for example in block.split("$ glassformer ")[1:]
        )
    ]
    assert len(examples) > 10
    for command, expected in examples:
        cli.main(shlex.split(command))
        output = capsys.readouterr().err.replace(torch.__version__, "VERSION")
        assert expected in output, command
