"""A tiny RWKV-7 in the layout of its authors' files, and their logits of it.

``rwkv7.json`` is made by the class RWKV_x070 of the package rwkv (0.8.32), in fp32 on a CPU:

    pip install torch rwkv && python tests/families/rwkv7.py
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch

LAYERS, VOCAB, DIM, HEADS, HIDDEN, LENGTH = 3, 12, 8, 2, 16, 40
RANKS = {"w": 3, "a": 3, "v": 2, "g": 5}
FILE = Path(__file__).with_suffix(".json")


def draw(generator, *shape, center=0.0, spread=0.5):
    """Numbers that every machine draws alike: integers over 64."""
    high = int(64 * spread)
    return center + torch.randint(-high, high + 1, shape, generator=generator) / 64


def weights():
    """Tensors by the names of a published .pth, and a text."""
    generator = torch.Generator().manual_seed(7)
    tensors = {"emb.weight": draw(generator, VOCAB, DIM, spread=2.0)}

    def norm(name):
        tensors[f"{name}.weight"] = draw(generator, DIM, center=1.0, spread=0.4)
        tensors[f"{name}.bias"] = draw(generator, DIM, spread=0.4)

    norm("blocks.0.ln0")
    for layer in range(LAYERS):
        att, ffn = f"blocks.{layer}.att", f"blocks.{layer}.ffn"
        for name in (f"blocks.{layer}.ln1", f"blocks.{layer}.ln2", f"{att}.ln_x"):
            norm(name)
        for name in (*(f"{att}.x_{letter}" for letter in "rwkvag"), f"{ffn}.x_k"):
            tensors[name] = draw(generator, 1, 1, DIM, center=0.5)
        for letter, rank in RANKS.items():
            if letter == "v" and layer == 0:
                continue
            if letter != "g":
                tensors[f"{att}.{letter}0"] = draw(generator, 1, 1, DIM, spread=1.0)
            tensors[f"{att}.{letter}1"] = draw(generator, DIM, rank)
            tensors[f"{att}.{letter}2"] = draw(generator, rank, DIM)
        for name in ("k_k", "k_a"):
            tensors[f"{att}.{name}"] = draw(generator, 1, 1, DIM, center=1.0)
        tensors[f"{att}.r_k"] = draw(generator, HEADS, DIM // HEADS)
        for name in ("receptance", "key", "value", "output"):
            tensors[f"{att}.{name}.weight"] = draw(generator, DIM, DIM)
        tensors[f"{ffn}.key.weight"] = draw(generator, HIDDEN, DIM)
        tensors[f"{ffn}.value.weight"] = draw(generator, DIM, HIDDEN)
    norm("ln_out")
    tensors["head.weight"] = draw(generator, VOCAB, DIM)
    return tensors, torch.randint(0, VOCAB, (LENGTH,), generator=generator).tolist()


def make():
    os.environ |= {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "0"}
    from rwkv.model import RWKV

    tensors, tokens = weights()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(tensors, f"{folder}/tiny.pth")
        model = RWKV(model=f"{folder}/tiny", strategy="cpu fp32")
        full_logits, state, steps = model.forward(tokens, None, full_output=True)[0], None, []
        for token in tokens:
            logits, state = model.forward([token], state)
            steps.append(logits)
    rows = {"whole": full_logits, "steps": torch.stack(steps)}
    print("its two ways differ by", (rows["whole"] - rows["steps"]).abs().max().item())
    text = {name: [[round(x, 7) for x in row] for row in y.tolist()] for name, y in rows.items()}
    FILE.write_text(json.dumps(text, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make()
