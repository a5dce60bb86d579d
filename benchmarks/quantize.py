"""Perplexity and size of a model in 16, 8 and 4 bits, beside llama.cpp's files of the same weights.

    python benchmarks/quantize.py out/wikitext-llama --text wikitext-2-raw/wiki.test.raw \\
        --calibrate wikitext-2-raw/wiki.valid.raw --llama build/bin --llama-python
        llama_cpp_python-0.3.36

Every model reads the same windows of its context, spread over the text; a window's tokens but the
first are predicted. llama.cpp quantizes an F32 file written here (its own C function) and reads
what it made: `--llama` is the folder of its libraries, `--llama-python` that of llama-cpp-python,
whose bindings are used. Its files are also read by this library.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import glassformer
from glassformer.core.nn.model import inference
from glassformer.fast import rounding
from glassformer.fast.quantize import Text, quantize_model
from glassformer.fast.quantized import QuantizedLayout, quantize_weights
from glassformer.formats import gguf
from glassformer.formats.checkpoint import Checkpoint
from glassformer.formats.data.catalog import find
from glassformer.formats.data.tokenising import tokenise

FTYPES = {"Q8_0": 7, "Q4_0": 2}
TABLE = {"Q6_K (its own choice)": None, "Q8_0": 8}  # ggml's number of the type


def windows(text: str, tokenizer: Any, context: int, count: int) -> list[torch.Tensor]:
    """Windows (1, context), evenly over the text."""
    tokens = tokenise(find(text), tokenizer).tokens
    present = len(tokens) // context
    places = [number * present // min(count, present) for number in range(min(count, present))]
    return [
        torch.from_numpy(tokens[at * context : (at + 1) * context].astype("int64"))[None]
        for at in places
    ]


def perplexity(model: Any, rows: list[torch.Tensor]) -> float:
    """Perplexity of the tokens of each window but its first."""
    nats = 0.0
    with inference(model):
        for row in rows:
            nats += float(
                F.cross_entropy(model(row).logits[0, :-1].float(), row[0, 1:], reduction="sum")
            )
    return math.exp(nats / sum(row.numel() - 1 for row in rows))


def size(model: Any) -> int:
    """Bytes of all weights."""
    return sum(weight.nbytes for weight in model.parameters())


def our_formats(args: argparse.Namespace, rows: list[torch.Tensor]) -> Iterator[dict[str, Any]]:
    """This library's ways to hold the model."""
    for dtype in ("float32", "bfloat16"):
        model, _ = glassformer.load(args.model, dtype=dtype)
        yield {"what": dtype, "bytes": size(model), "perplexity": perplexity(model, rows)}
    for bits in (8, 4):
        for name in ("nearest", "searched")[: 1 + (bits == 4)]:
            model, _ = glassformer.load(args.model, dtype="bfloat16")
            round_ = getattr(rounding, name)
            quantize_weights(model, QuantizedLayout(bits), lambda _, w, b, g, r=round_: r(w, b, g))
            yield {
                "what": f"int{bits}, {name}",
                "bytes": size(model),
                "perplexity": perplexity(model, rows),
            }
    opened = Checkpoint.open(args.model)
    model, tokenizer = opened.model(dtype="bfloat16"), opened.tokenizer()
    assert tokenizer is not None
    text = Text.of(tokenise(find(args.calibrate), tokenizer), opened.config, args.tokens, 512)
    quantize_model(model, QuantizedLayout(4), text)
    yield {"what": "int4, calibrated", "bytes": size(model), "perplexity": perplexity(model, rows)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ours.gguf"
        gguf.save(model, path, "F32", tokenizer)
        if args.llama:
            result = Llama(args).perplexity(path, rows)
            yield {
                "what": "int4, calibrated: written as GGUF, read by llama.cpp",
                "bytes": None,
                "perplexity": result,
            }


class Llama:
    """llama.cpp by its own C interface."""

    def __init__(self, args: argparse.Namespace) -> None:
        os.environ["LLAMA_CPP_LIB_PATH"] = args.llama
        sys.path[:0] = [args.llama_python]
        import llama_cpp

        self.library = llama_cpp
        self.quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()

    def quantize(self, source: Path, target: Path, kind: str, table: int | None) -> None:
        """A file of the kind made of another; ``table``: the type of the embedding and the head."""
        params = self.library.llama_model_quantize_default_params()
        params.ftype, params.nthread = FTYPES[kind], 1
        if table is not None:
            params.token_embedding_type = params.output_tensor_type = table
        failed = self.library.llama_model_quantize(
            str(source).encode(), str(target).encode(), ctypes.byref(params)
        )
        assert not failed, f"llama.cpp could not quantize {source}"

    def perplexity(self, path: Path, rows: list[torch.Tensor]) -> float:
        """``perplexity``, computed by llama.cpp."""
        lib = self.library
        model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = rows[0].numel()
        params.n_threads = params.n_threads_batch = 1
        context = lib.llama_init_from_model(model, params)
        width, nats = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)), 0.0
        for row in rows:
            ids = row[0].tolist()
            lib.llama_memory_clear(lib.llama_get_memory(context), True)
            batch = lib.llama_batch_init(len(ids), 0, 1)
            batch.n_tokens = len(ids)
            for at, id in enumerate(ids):
                batch.token[at], batch.pos[at], batch.n_seq_id[at] = id, at, 1
                batch.seq_id[at][0], batch.logits[at] = 0, 1
            assert lib.llama_decode(context, batch) == 0
            raw = lib.llama_get_logits(context)
            logits = torch.from_numpy(np.ctypeslib.as_array(raw, (len(ids), width)).copy())
            nats += float(F.cross_entropy(logits[:-1], row[0, 1:], reduction="sum"))
            lib.llama_batch_free(batch)
        lib.llama_free(context)
        lib.llama_model_free(model)
        return math.exp(nats / sum(row.numel() - 1 for row in rows))


def llama_cpp_formats(
    args: argparse.Namespace, rows: list[torch.Tensor]
) -> Iterator[dict[str, Any]]:
    """llama.cpp's files of the same weights, read by itself and by this library."""
    llama, opened = Llama(args), Checkpoint.open(args.model)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "f32.gguf"
        gguf.save(opened.model(dtype="float32"), source, "F32", opened.tokenizer())
        yield {"what": "llama.cpp F32", "bytes": None, "perplexity": llama.perplexity(source, rows)}
        for kind in FTYPES:
            for message, table in TABLE.items():
                if kind == "Q8_0" and table is None:
                    continue  # the same
                target = Path(folder) / f"{kind}-{table}.gguf"
                llama.quantize(source, target, kind, table)
                model = gguf.load(target, None)
                second_kind = f"llama.cpp {kind}, embedding and head {message}"
                weights = sum(
                    place.end - place.start for place in gguf.GGUF(target).places.values()
                )
                line = {
                    "what": second_kind,
                    "bytes": weights,
                    "perplexity": llama.perplexity(target, rows),
                }
                yield {**line, "read here": perplexity(model, rows)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--text", required=True)
    parser.add_argument("--calibrate", required=True)
    parser.add_argument("--windows", type=int, default=128)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=65_536, help="to calibrate with")
    parser.add_argument("--llama", default="")
    parser.add_argument("--llama-python", default="")
    args = parser.parse_args()
    opened = Checkpoint.open(args.model)
    rows = windows(
        args.text, opened.tokenizer(), min(args.context, opened.config.context), args.windows
    )
    print(
        f"{args.model}: {len(rows)} windows of {rows[0].numel()} tokens of {args.text}",
        flush=True,
    )
    first = None
    for line in chain(our_formats(args, rows), llama_cpp_formats(args, rows) if args.llama else ()):
        first = first or line["perplexity"]
        print(json.dumps({**line, "change": round(line["perplexity"] / first - 1, 5)}), flush=True)


if __name__ == "__main__":
    main()
