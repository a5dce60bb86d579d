"""Mutated model folders, seeded: each loads and answers in numbers, or is refused in one sentence,
soon and in bounds.

Each is tried in a forked process with a limit on its memory, so that what hangs or dies is one
finding. By hand:

    python tests/checkpoints/test_fuzz.py 2000 --seed 7        prints each finding with its seed, and keeps its folder
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from glassformer import UserError, generation
from glassformer.core.config.objective import LoRA
from glassformer.core.nn import build_model
from glassformer.core.nn.finite import must_be_finite
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import lora, store
from glassformer.formats.checkpoint import Checkpoint

SECONDS, MEMORY, LONGEST = 10, 6 << 30, 1500
NUMBERS: list[Any] = [
    0,
    1,
    -1,
    2,
    3,
    7,
    2**31,
    2**63,
    2**64,
    10**400,
    -(10**400),
    1e308,
    1e-308,
    0.5,
    1 << 20,
    10**6,
]
STRANGE: list[Any] = [
    None,
    True,
    False,
    "",
    "x",
    "none",
    [],
    {},
    [1],
    {"a": 1},
    [[]],
    float("nan"),
    float("inf"),
]
TEXTS = [
    "\x1b[2J",
    "\n\n",
    "x" * 5000,
    "../..",
    "/etc",
    ".",
    "\0",
    "é" * 300,
    "llama",
    "LlamaForCausalLM",
    "type",
]
JSON = (".json",)
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


def folders(home: Path) -> list[Path]:
    """Small models in both layouts, with tokenizers, in shards, as sentence encoder and as
    adapters."""
    tokenizer = train_tokenizer("char", ["the cat sat on the mat. 0123456789"], None)
    results = []
    for name in SHAPES:
        model = build_model(tiny.ALL[name], seed=1)
        for layout in ("hf", "glassformer"):
            folder = home / f"{name}-{layout}"
            try:
                store.save(
                    model, folder, tokenizer if name in ("gpt2", "bert") else None, layout=layout
                )  # type: ignore[arg-type]
            except UserError:
                continue
            results.append(folder)
    shard(home / "llama-hf", home / "shards")
    for name in ("llama", "gpt2"):
        model = build_model(tiny.ALL[name], seed=1)
        lora.tune(model, LoRA(rank=2, target_modules=("*.attn.q", "*.ffn.up")))
        store.save(model, home / f"adapter-{name}", base=str(home / f"{name}-hf"))
        store.save(model, home / f"peft-{name}", base=str(home / f"{name}-hf"))
        (home / f"peft-{name}" / "config.json").unlink()
        results += [home / f"adapter-{name}", home / f"peft-{name}"]
    return [*results, home / "shards"]


def shard(folder: Path, target: Path) -> None:
    """The model of one file in two, with their index."""
    from safetensors.torch import load_file, save_file

    target.mkdir()
    tensors = load_file(folder / "model.safetensors")
    placed = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for file in set(placed.values()):
        save_file(
            {name: tensor for name, tensor in tensors.items() if placed[name] == file},
            target / file,
        )
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
        "weight_map": placed,
    }
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copy(folder / "config.json", target)


# -------------------------------------------------------------------------------------- mutations


def mutate(folder: Path, draw: random.Random) -> str:
    """Change one or a few things in a folder; what was changed, in words."""
    outputs = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if not files:
            break
        pages = [path for path in files if path.suffix in JSON]
        path = draw.choice(pages if pages and draw.random() < 0.6 else files)
        change = (
            _json
            if path.suffix in JSON and draw.random() < 0.8
            else _header
            if path.suffix == ".safetensors"
            else _bytes
        )
        if path.suffix == ".safetensors" and draw.random() < 0.3:
            change = draw.choice((_bytes, _numbers))
        outputs.append(f"{path.name}: {change(path, draw, folder)}")
    return "; ".join(outputs)


def _value(draw: random.Random, old: Any, folder: Path) -> Any:
    kind = draw.random()
    if kind < 0.35:
        return draw.choice(NUMBERS)
    if kind < 0.55:
        return draw.choice(STRANGE)
    if kind < 0.7:
        return draw.choice([*TEXTS, str(folder)])
    if isinstance(old, int | float) and not isinstance(old, bool):
        return draw.choice(
            (old + 1, old - 1, old * 2, old * 1000, -old, str(old), [old], float(old))
        )
    if isinstance(old, str):
        return draw.choice((old[:-1], old.upper(), [old], {"type": old}, old + "\x1b[31m"))
    return draw.choice((str(old), [old], {"type": old}))


def _json(path: Path, draw: random.Random, folder: Path) -> str:
    try:
        tree = json.loads(path.read_bytes())
    except ValueError:
        return _bytes(path, draw, folder)
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key in (
            node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        ):
            places.append((node, key))
            visit(node[key])

    visit(tree)
    if not places:
        return _bytes(path, draw, folder)
    node, key = draw.choice(places)
    old, act = node[key], draw.random()
    if act < 0.15:
        del node[key]
        message = f"{key} away"
    elif act < 0.25 and isinstance(node, dict):
        new = draw.choice(
            ["type", "base", "model", "rope_scaling", "lora_alpha", "eos_token_id", "x\n"]
        )
        node[new] = _value(draw, old, folder)
        message = f"{new} added"
    else:
        node[key] = _value(draw, old, folder)
        message = f"{key}: {str(old)[:20]} -> {str(node[key])[:40]!a}"
    path.write_text(json.dumps(tree))
    return message


def _header(path: Path, draw: random.Random, folder: Path) -> str:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length])
    except ValueError:
        return _bytes(path, draw, folder)
    name = draw.choice([key for key in header if key != "__metadata__"] or ["x"])
    entry = header.get(name, {})
    act = draw.randrange(6)
    if act == 0:
        header.pop(name, None)
    elif act == 1:
        header[
            draw.choice(
                [name + "x", name[:-1], "\x1b[2J", name.replace("0", "9"), name.replace("A", "B")]
            )
        ] = header.pop(name, {})
    elif act == 2 and isinstance(entry.get("shape"), list):
        entry["shape"] = draw.choice(
            [entry["shape"][::-1], [*entry["shape"], 1], [_value(draw, 4, folder)], []]
        )
    elif act == 3:
        entry["dtype"] = draw.choice(["F16", "BF16", "I8", "F64", "F8_E4M3", 3, None, "\x1b"])
    elif act == 4 and isinstance(entry.get("data_offsets"), list):
        entry["data_offsets"][draw.randrange(2)] = _value(draw, 100, folder)
    else:
        header[name] = _value(draw, entry, folder)
    table = json.dumps(header).encode()
    path.write_bytes(len(table).to_bytes(8, "little") + table + content[8 + length :])
    return f"header, {name}, {act}"


def _bytes(path: Path, draw: random.Random, folder: Path) -> str:
    full = bytearray(path.read_bytes() if path.is_file() else b"{}")
    act = draw.randrange(4)
    if act == 0:
        full = full[: draw.randrange(len(full) + 1)]
    elif act == 1:
        path.unlink(missing_ok=True)
        return "removed"
    else:
        for _ in range(draw.choice((1, 3, 20))):
            if full:
                full[draw.randrange(min(len(full), draw.choice((16, 300, 1 << 30))))] = (
                    draw.randrange(256)
                )
    path.write_bytes(full)
    return f"bytes, {act}"


def _numbers(path: Path, draw: random.Random, folder: Path) -> str:
    full = bytearray(path.read_bytes())
    at = draw.randrange(max(len(full) - 4096, 0), len(full) - 4) // 4 * 4
    full[at : at + 4] = draw.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f"))
    path.write_bytes(full)
    return "a number that is none"


# ---------------------------------------------------------------------------------------- trying


def use(folder: Path) -> str:
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


def attempt(folder: Path) -> str:
    """``use`` in a process of its own: answered, refused, or what is wrong with it."""
    ids, write = os.pipe()
    child = os.fork()
    if not child:
        message = "died"
        try:
            os.close(ids)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            message = use(folder)
        except UserError as error:
            words = str(error)
            good = len(words) <= LONGEST and words.isprintable() and len(words) > 10
            message = "refused" if good else f"WORDS {words[:200]!a}"
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            actual = [
                f"{Path(f.filename).name}:{f.lineno}" for f in frames if "glassformer" in f.filename
            ]
            message = (
                f"TRACEBACK {type(error).__name__}: {str(error)[:120]!a} at {' '.join(actual[-3:])}"
            )
        finally:
            os.write(write, message.encode()[:2000])
            os._exit(0)
    os.close(write)
    until, status = time.monotonic() + SECONDS, None
    while status is None and time.monotonic() < until:
        done, code = os.waitpid(child, os.WNOHANG)
        status = code if done else None
        time.sleep(0 if done else 0.002)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(ids, "rb") as pipe:
        message = pipe.read().decode(errors="replace")
    return f"OVER {SECONDS} s" if status is None else message or f"DIED of {status}"


def fuzz(home: Path, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Try ``count`` mutated folders: how many ended how, and each finding."""
    torch.set_num_threads(1)  # a forked process has no threads of its parent's
    originals, outcomes, findings = folders(home), Counter[str](), []
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        original, folder = draw.choice(originals), home / "mutant"
        shutil.copytree(original, folder)
        output = mutate(folder, draw)
        message = attempt(folder)
        outcomes[message.split()[0]] += 1
        if message not in ("answered", "refused"):
            findings.append(f"{seed} {number} {original.name}: {output}: {message}")
            shutil.copytree(folder, home / f"finding-{number}")
        shutil.rmtree(folder)
    return outcomes, findings


@pytest.mark.slow
def test_mutated_folders_answer_or_are_refused(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        outcomes, findings = fuzz(tmp_path, 1000, 11)
    finally:
        torch.set_num_threads(threads)
    assert not findings, "\n".join(findings)
    assert min(outcomes["answered"], outcomes["refused"]) > 80, outcomes


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    tried = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    totals, failures = fuzz(
        folder, tried, int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 0
    )
    print(*failures, sep="\n")
    print(dict(totals), "kept in", folder)
