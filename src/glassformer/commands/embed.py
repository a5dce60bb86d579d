"""``glassformer embed``: one vector for each text."""

from __future__ import annotations

import argparse
from pathlib import Path

from .common import MODEL, counted, counting, emit, reader, standard_input

HELP = "One vector for each text, and how alike the texts are."
EXAMPLES = (
    'glassformer embed out/encoder "a cat" "a dog" "a train"',
    "glassformer embed out/encoder --prompts texts.txt --out vectors.safetensors",
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("text", nargs="+", metavar="TEXT", help="one or several; - reads standard input, a text a line")
    one.add_argument(
        "--out", metavar="FILE", help='save the vectors as "vectors" (texts, width) in a .safetensors file'
    )
    one.add_argument("--batch", type=int, default=32, metavar="N", help="texts at once (32)")
    one.add_argument("--json", action="store_true", help="the vectors as JSON, a text a line")


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import files, generation

    texts: list[str] = []
    for text in given.text:
        texts += standard_input().splitlines() if text == "-" else [text]
    model, tokenizer = reader(given.model)
    vectors = generation.embed(model, tokenizer, texts, batch=given.batch, progress=counting("texts"))
    if given.out:
        from safetensors.torch import save_file

        files.write(Path(given.out), lambda beside: save_file({"vectors": vectors.contiguous()}, beside))
        print(f"{counted(len(texts), 'vector')} of {vectors.shape[1]} numbers in {given.out}")
    elif given.json:
        for text, vector in zip(texts, vectors.tolist(), strict=True):
            emit({"text": text, "vector": vector})
    else:
        import torch

        unit = torch.nn.functional.normalize(vectors, dim=-1)
        for text, row, vector in zip(texts, (unit @ unit.T).tolist(), vectors.tolist(), strict=True):
            print(text)
            print(f"  {len(vector)} numbers: {' '.join(f'{x:.4f}' for x in vector[:6])} ...")
            if len(texts) > 1:
                print(f"  cosine with each text: {' '.join(f'{x:.4f}' for x in row)}")
