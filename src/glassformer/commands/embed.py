"""``glassformer embed``: one vector for each text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .common import (
    computing,
    counted,
    counting,
    editing,
    edits_of,
    emit,
    model_and_tokenizer,
    reading,
    texts,
    truncating,
)

EXAMPLES = (
    'glassformer embed out/encoder "a cat" "a dog" "a train"',
    "glassformer embed out/encoder --prompts texts.txt --out vectors.safetensors",
)


def options(one: argparse.ArgumentParser) -> None:
    reading(one)
    one.add_argument(
        "--out",
        metavar="FILE",
        help='save the vectors as "vectors" (texts, width) in a .safetensors file; - is standard '
        "output",
    )
    truncating(one)
    editing(one)
    computing(one)
    one.add_argument("--json", action="store_true", help="the vectors as JSON, a text a line")


def run(given: argparse.Namespace) -> None:
    from .. import files, generation
    from ..errors import need

    read = texts(given, given.text)
    need(given.batch >= 1, f"batch is {given.batch}; give 1 or more.")
    edits = edits_of(given)
    model, tokenizer = model_and_tokenizer(given)
    told = {
        "truncate": given.truncate,
        "batch": given.batch,
        "progress": counting("texts"),
        "edits": edits,
    }
    vectors = generation.embed(model, tokenizer, read, **told)
    if given.out:
        from safetensors.torch import save

        content = save({"vectors": vectors.contiguous()})
        if given.out == "-":
            sys.stdout.buffer.write(content)
            return
        files.write(Path(given.out), content)
        print(f"{counted(len(read), 'vector')} of {vectors.shape[1]} numbers in {given.out}")
    elif given.json:
        for text, vector in zip(read, vectors.tolist(), strict=True):
            emit({"text": text, "vector": vector})
    else:
        import torch

        unit = torch.nn.functional.normalize(vectors, dim=-1)
        for text, row, vector in zip(read, (unit @ unit.T).tolist(), vectors.tolist(), strict=True):
            print(text)
            print(f"  {len(vector)} numbers: {' '.join(f'{x:.4f}' for x in vector[:6])} ...")
            if len(read) > 1:
                print(f"  cosine with each text: {' '.join(f'{x:.4f}' for x in row)}")
