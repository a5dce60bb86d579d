"""Mutated model folders, seeded: each loads and answers in numbers, or is refused in one sentence,
soon and in bounds.

Each is tried in a process of its own (fuzzing.py).
"""

from __future__ import annotations

import contextlib
import math
import random
import shutil
from collections import Counter

import pytest
import torch

import tiny
from fuzzing import damaged, damaged_json, outcome
from glassformer import UserError, generation
from glassformer.core.config.objective import LoRA
from glassformer.core.nn import build_model
from glassformer.core.nn.finite import must_be_finite
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import store, tuning
from glassformer.formats.checkpoint import Checkpoint

ROOM = 6 << 30  # bytes of memory beyond what is there
VALUES = [0, 1, -1, 2, 3, 7, 2**31, 2**63, 2**64, 10**400, -(10**400), 1e308, 1e-308]
VALUES += [0.5, 1 << 20, None, True, False, [], {}, [1], {"a": 1}, [[]], math.nan, math.inf]
VALUES += ["", "x", "none", "\x1b[2J", "\n\n", "x" * 5000, "../..", "/etc", ".", "\0", "é" * 300]
VALUES += ["llama", "LlamaForCausalLM", "type"]
SHAPES = [
    "gpt2",
    "llama",
    "qwen3",
    "mixtral",
    "longrope",
    "phi2",
    "gemma2",
    "bert",
    "t5",
    "alibi",
    "glass",
    "gru",
]


def folders(home):
    """Small models in both layouts, with tokenizers, in shards, as sentence encoder and as
    adapters."""
    tokenizer = train_tokenizer("char", ["the cat sat on the mat. 0123456789"], None)
    results = []
    for name in SHAPES:
        model = build_model(tiny.ALL[name], seed=1)
        words = tokenizer if name in ("gpt2", "bert") else None
        for layout in ("hf", "glassformer"):
            with contextlib.suppress(UserError):
                store.save(model, home / f"{name}-{layout}", words, layout=layout)
                results.append(home / f"{name}-{layout}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.tensorfiles, "SHARD", 40_000)
        store.save(build_model(tiny.ALL["llama"], seed=1), home / "shards", layout="hf")
    for name in ("llama", "gpt2"):
        model = build_model(tiny.ALL[name], seed=1)
        tuning.tune(model, LoRA(rank=2, target_modules=("*.attn.q", "*.ffn.up")))
        for kind in ("adapter", "peft"):
            store.save(model, home / f"{kind}-{name}", base=str(home / f"{name}-hf"))
            results.append(home / f"{kind}-{name}")
        (home / f"peft-{name}" / "config.json").unlink()
    return [*results, home / "shards"]


# -------------------------------------------------------------------------------------- mutations


def mutate(folder, draw):
    """Change one or a few things in a folder; the names of the files."""
    names = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        pages = [path for path in files if path.suffix == ".json"]
        if not files:
            break
        path = draw.choice(pages if pages and draw.random() < 0.6 else files)
        act = draw.random()
        data = path.read_bytes()
        names.append(path.name)
        if act < 0.05:
            path.unlink()
        elif act < 0.8 and path.suffix == ".json":
            path.write_bytes(damaged_json(data, draw, [*VALUES, str(folder)]))
        elif act < 0.5 and path.suffix == ".safetensors":
            end = 8 + int.from_bytes(data[:8], "little")
            header = damaged_json(data[8:end], draw, VALUES)
            path.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])
        elif act < 0.7 and path.suffix == ".safetensors":  # a number that is none, or huge
            at = draw.randrange(max(len(data) - 4096, 0), max(len(data) - 4, 1)) // 4 * 4
            number = draw.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f"))
            path.write_bytes(data[:at] + number + data[at + 4 :])
        else:
            path.write_bytes(damaged(data, draw))
    return ", ".join(names)


def use(folder):
    """Load a folder and let it answer; what came of it."""
    model, tokenizer = store.load(folder)
    assert isinstance(Checkpoint.open(folder).labels, tuple)
    ids = [1, 2, 3]
    if model.config.embed.vocab <= 3 or model.config.context < 4:
        return "answered"
    if hasattr(model, "decoder"):
        start = 1 if hasattr(model, "encoder") else None
        output = generation.generate(model, None, [ids], max_new=2, temperature=0, start=start)
        assert all(-1e6 < value < 1e-3 for value in output.run().logprobs[0]), "no log-probability"
    else:
        with torch.no_grad():
            hidden = model(torch.tensor([ids])).hidden
        must_be_finite(model, hidden)
    if tokenizer is not None:
        tokenizer.decode(tokenizer.encode("the cat"))
    return "answered"


def fuzz(home, count, seed):
    """Try ``count`` mutated folders: how many ended how, and each finding."""
    originals = folders(home)
    outcomes = Counter[str]()
    findings = []
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        original = draw.choice(originals)
        folder = home / "mutant"
        shutil.copytree(original, folder)
        names = mutate(folder, draw)
        message = outcome(lambda folder=folder: use(folder), ROOM)
        outcomes[message.split()[0]] += 1
        if message not in ("answered", "refused"):
            findings.append(f"{seed} {number} {original.name}: {names}: {message}")
            shutil.copytree(folder, home / f"finding-{number}")
        shutil.rmtree(folder)
    return outcomes, findings


@pytest.mark.slow
def test_mutated_folders_answer_or_are_refused(tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked process has no threads of its parent's
    try:
        outcomes, findings = fuzz(tmp_path, 1000, 11)
    finally:
        torch.set_num_threads(threads)
    assert not findings, "\n".join(findings)
    assert min(outcomes["answered"], outcomes["refused"]) > 80, outcomes
