"""``glassformer embed``: one vector for each text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .common import (
    add_device_options,
    add_edit_option,
    add_text_options,
    add_truncate_option,
    count_noun,
    load_model_and_tokenizer,
    parse_edits,
    print_json,
    progress_counter,
    texts,
)

EXAMPLES = (
    'glassformer embed out/encoder "a cat" "a dog" "a train"',
    "glassformer embed out/encoder --prompts texts.txt --out vectors.safetensors",
)


def options(parser: argparse.ArgumentParser) -> None:
    add_text_options(parser)
    parser.add_argument(
        "--out",
        metavar="FILE",
        help='save the vectors as "vectors" (texts, width) in a .safetensors file; - is standard '
        "output",
    )
    add_truncate_option(parser)
    add_edit_option(parser)
    add_device_options(parser)
    parser.add_argument("--json", action="store_true", help="the vectors as JSON, a text a line")


def run(args: argparse.Namespace) -> None:
    from .. import files, generation
    from ..errors import need

    inputs = texts(args, args.text)
    need(args.batch >= 1, f"batch is {args.batch}; give 1 or more.")
    edits = parse_edits(args)
    model, tokenizer = load_model_and_tokenizer(args)
    options = {
        "truncate": args.truncate,
        "batch": args.batch,
        "progress": progress_counter("texts"),
        "edits": edits,
    }
    vectors = generation.embed(model, tokenizer, inputs, **options)
    if args.out:
        from safetensors.torch import save

        content = save({"vectors": vectors.contiguous()})
        if args.out == "-":
            sys.stdout.buffer.write(content)
            return
        files.write(Path(args.out), content)
        print(f"{count_noun(len(inputs), 'vector')} of {vectors.shape[1]} numbers in {args.out}")
    elif args.json:
        for text, vector in zip(inputs, vectors.tolist(), strict=True):
            print_json({"text": text, "vector": vector})
    else:
        import torch

        unit = torch.nn.functional.normalize(vectors, dim=-1)
        for text, row, vector in zip(
            inputs, (unit @ unit.T).tolist(), vectors.tolist(), strict=True
        ):
            print(text)
            print(f"  {len(vector)} numbers: {' '.join(f'{x:.4f}' for x in vector[:6])} ...")
            if len(inputs) > 1:
                print(f"  cosine with each text: {' '.join(f'{x:.4f}' for x in row)}")
