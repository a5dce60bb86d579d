"""Our kernels beside llama.cpp's and oneDNN's: the same matrices, rows and bits in one process,
taking turns.

    pip install --target /tmp/llama --no-deps llama-cpp-python diskcache     # compiles llama.cpp: cmake, a C++ compiler
    python benchmarks/engine.py --llama /tmp/llama [--rows 1 8 128] [--repeats 15] [--threads 1]
    [--model]

A time is of the product with its quantizing of activations; weights are cold (as many copies as
fill 160 MB, one after the other). With one thread it is processor time, which neighbours on a
shared machine disturb least; with more, the clock's. A ratio is theirs / ours turn by turn: median,
and the range from the first to the third quarter. Beside it the share of the limit: of the memory's
speed, measured between turns, or of the cores' (fp32 products of oneDNN, times 1, 2, 4 for fp32,
bf16, int8), whichever is nearer. --model decodes as ``glassformer.generate`` does, a Llama of 1.1 B
parameters (--depth layers of its 22) or with --shape gpt2 GPT-2 124M, random weights, the same GGUF
files in both, 8 tokens a turn after a prompt of --prompt. On a busy machine: --threads 1.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SHAPES = ((2048, 5632), (4096, 4096))
TYPES = {"fp32": 0, "bf16": 30, "int8": 8, "int4": 2}
"""What llama.cpp calls them: F32, BF16, Q8_0, Q4_0."""
COLD = 160e6


class Ggml:
    """llama.cpp's own products by ctypes: a graph of one matrix times rows, on its CPU backend."""

    def __init__(self, folder: Path, threads: int) -> None:
        lib = folder / "llama_cpp" / "lib"
        self.base, self.cpu = (
            ctypes.CDLL(str(lib / f"lib{name}.so"), ctypes.RTLD_GLOBAL)
            for name in ("ggml-base", "ggml-cpu")
        )
        for library, names in (
            (self.base, BASE),
            (self.cpu, ("ggml_backend_cpu_init", "ggml_backend_cpu_reg")),
        ):
            for name in names:
                getattr(library, name).restype = ctypes.c_void_p
        self.backend = ctypes.c_void_p(self.cpu.ggml_backend_cpu_init())
        self.cpu.ggml_backend_cpu_set_n_threads(self.backend, threads)
        self.repacked = self._repacked()
        self.base.ggml_log_set(_QUIET, None)
        # what the last products lie in, and what frees it
        self.held: list[tuple[Any, ctypes.c_void_p]] = []

    def _repacked(self) -> ctypes.c_void_p | None:
        """Its memory for weights in an order of its own (Q4_0), where it has one: what a loaded
        model lies in."""
        reg = ctypes.c_void_p(self.cpu.ggml_backend_cpu_reg())
        ggml_backend_reg_get_proc_address = self.base.ggml_backend_reg_get_proc_address(
            reg, b"ggml_backend_dev_get_extra_bufts"
        )
        device = self.base.ggml_backend_reg_dev_get(reg, ctypes.c_size_t(0))
        extra = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(
            ggml_backend_reg_get_proc_address
        )(device)
        named = self.base.ggml_backend_buft_name
        named.restype = ctypes.c_char_p
        for place in range(8):
            if not extra or not extra[place]:
                return None
            if b"REPACK" in named(ctypes.c_void_p(extra[place])):
                return ctypes.c_void_p(extra[place])
        return None

    def products(self, kind: str, weight: Any, x: Any, copies: int) -> list[Callable[[], None]]:
        """Products of x (rows, C) fp32 with ``copies`` of weight (N, C) in its type."""
        (outputs, inputs), rows = weight.shape, len(x)
        packed = (ctypes.c_char * (weight.numel() * 4 + 64))()
        if kind == "fp32":
            ctypes.memmove(packed, weight.data_ptr(), weight.nbytes)
        elif kind == "bf16":
            half = weight.bfloat16()
            ctypes.memmove(packed, half.data_ptr(), half.nbytes)
        else:
            arguments = ctypes.c_int64(0), ctypes.c_int64(outputs), ctypes.c_int64(inputs), None
            self.base.ggml_quantize_chunk(
                TYPES[kind], ctypes.c_void_p(weight.data_ptr()), packed, *arguments
            )
        results = []
        while self.held:
            free, item = self.held.pop()
            free(item)
        for _ in range(copies):
            matrices, remaining = self._context(), self._context()
            matrix = self._tensor(matrices, TYPES[kind], inputs, outputs)
            row = self._tensor(remaining, 0, inputs, rows)
            y = ctypes.c_void_p(self.base.ggml_mul_mat(remaining, matrix, row))
            graph = ctypes.c_void_p(self.base.ggml_new_graph(remaining))
            self.base.ggml_build_forward_expand(graph, y)
            if kind == "int4" and self.repacked is not None:
                places = self.base.ggml_backend_alloc_ctx_tensors_from_buft(matrices, self.repacked)
            else:
                places = self.base.ggml_backend_alloc_ctx_tensors(matrices, self.backend)
            buffers = places, self.base.ggml_backend_alloc_ctx_tensors(remaining, self.backend)
            self.held += [(self.base.ggml_free, context) for context in (matrices, remaining)]
            self.held += [
                (self.base.ggml_backend_buffer_free, ctypes.c_void_p(buffer)) for buffer in buffers
            ]
            size = ctypes.c_size_t(self.base.ggml_nbytes(matrix))
            self.base.ggml_backend_tensor_set(matrix, packed, ctypes.c_size_t(0), size)
            present = ctypes.c_void_p(x.data_ptr())
            self.base.ggml_backend_tensor_set(
                row, present, ctypes.c_size_t(0), ctypes.c_size_t(x.nbytes)
            )
            results.append(
                lambda graph=graph: self.base.ggml_backend_graph_compute(self.backend, graph)
            )
        return results

    def _context(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.base.ggml_init(_Params(1 << 20, None, True)))

    def _tensor(self, context: ctypes.c_void_p, kind: int, *sizes: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(
            self.base.ggml_new_tensor_2d(context, kind, *map(ctypes.c_int64, sizes))
        )


_QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


class _Params(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


BASE = (
    *("ggml_init", "ggml_new_tensor_2d", "ggml_mul_mat", "ggml_new_graph", "ggml_nbytes"),
    *("ggml_backend_alloc_ctx_tensors", "ggml_backend_alloc_ctx_tensors_from_buft"),
    *("ggml_backend_reg_get_proc_address", "ggml_backend_reg_dev_get"),
)


def rounded(weight: Any, most: int) -> tuple[Any, Any]:
    """Whole numbers and scales of groups of 32, to the nearest."""
    groups = weight.unflatten(1, (-1, 32))
    scales = (groups.abs().amax(-1) / most).half()
    return (groups / scales[..., None].float()).round().clamp(-most - 1, most).flatten(
        1
    ).char(), scales


def our_products(kind: str, weight: Any, x: Any, copies: int) -> list[Callable[[], Any]]:
    """Our products."""
    from dataclasses import replace

    from glassformer.fast import kernels
    from glassformer.fast.kernels import shared_library

    if kind in ("int8", "int4"):
        pack = kernels.pack_int8 if kind == "int8" else kernels.pack_int4
        first = pack(*rounded(weight, 127 if kind == "int8" else 7))
    else:
        first = (kernels.pack_bf16 if kind == "bf16" else kernels.pack_fp32)(weight)
    x = x.to(first.data.dtype) if kind in ("bf16", "fp32") else x
    packed = [replace(first, data=shared_library.in_large_pages(first.data)) for _ in range(copies)]
    return [lambda item=item: kernels.matmul(x, item) for item in packed]


def onednn(kind: str, weight: Any, x: Any, copies: int) -> list[Callable[[], Any]]:
    """oneDNN's products by prepacked weights, of fp32 and bf16."""
    import torch

    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    reorder, product = (
        torch.ops.mkldnn._reorder_linear_weight,
        torch.ops.mkldnn._linear_pointwise.default,
    )
    x, packed = x.to(dtype), [reorder(weight.to(dtype), 32) for _ in range(copies)]
    return [lambda item=item: product(x, item, None, "none", [], "") for item in packed]


def turns(
    sides: list[list[Callable[[], Any]]], repeats: int, clock: Callable[[], float]
) -> list[list[float]]:
    """Seconds of each side's calls, the sides taking turns, the first to go changing."""
    for side in sides:
        for call in side[:2]:
            call()
    times: list[list[float]] = [[] for _ in sides]
    for turn in range(repeats):
        for which in sorted(range(len(sides)), key=lambda item: (item + turn) % len(sides)):
            call = sides[which][turn % len(sides[which])]
            start = clock()
            call()
            times[which].append(clock() - start)
    return times


def compared(actual: list[float], reference: list[float]) -> str:
    """theirs / ours."""
    ratios = sorted(b / a for a, b in zip(actual, reference, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"


def limits(threads: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Measures memory bandwidth in GB/s and GFLOP/s of a large fp32 product at this minute."""
    import torch

    numbers, square = torch.ones(1 << 25), torch.randn(1024, 1024)
    (ids, _), (multiply, _) = (
        (statistics.median(turn), None)
        for turn in turns([[numbers.sum], [lambda: square @ square]], 7, clock)
    )
    return numbers.nbytes / ids / 1e9, 2 * 1024**3 / multiply / 1e9


def matrices(args: argparse.Namespace) -> Iterator[str]:
    """A line for each shape, type and number of rows."""
    import torch

    clock = time.thread_time if args.threads == 1 else time.perf_counter
    ggml = Ggml(args.llama, args.threads) if args.llama else None
    yield (
        "| matrix | type | rows | ours, ms | llama.cpp / ours | oneDNN / ours | GB/s | GFLOP/s "
        "| of the limit |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for outputs, inputs in SHAPES:
        weight = torch.randn(outputs, inputs)
        for kind in args.types:
            for rows in args.rows:
                x = torch.randn(rows, inputs)
                size = (
                    outputs
                    * inputs
                    * {"fp32": 4, "bf16": 2, "int8": 8.5 / 8, "int4": 4.5 / 8}[kind]
                )
                copies = min(args.repeats, max(2, round(COLD / size)))
                sides = [our_products(kind, weight, x, copies)]
                sides += [ggml.products(kind, weight, x, copies)] if ggml else []
                sides += [onednn(kind, weight, x, copies)] if kind in ("fp32", "bf16") else []
                times = turns(sides, args.repeats, clock)
                ratios = [compared(times[0], second) for second in times[1:]]
                ratios = (
                    ([] if ggml else [""]) + ratios + ([] if kind in ("fp32", "bf16") else [""])
                )
                memory, cores = limits(args.threads, clock)
                best = statistics.median(times[0])
                speed, flops = size / best / 1e9, 2 * rows * outputs * inputs / best / 1e9
                most = {"fp32": 1, "bf16": 2, "int8": 4, "int4": 4}[kind]
                share = f"{max(speed / memory, flops / cores / most):.0%}"
                cells = (
                    f"{outputs} x {inputs}",
                    kind,
                    rows,
                    f"{best * 1e3:.3f}",
                    *ratios,
                    f"{speed:.1f}",
                    f"{flops:.0f}",
                )
                yield (
                    f"| {' | '.join(map(str, cells))} | {share} of {memory:.0f} GB/s, "
                    f"{cores * most:.0f} GFLOP/s |"
                )


def decoding(args: argparse.Namespace) -> Iterator[str]:
    """A line for each type: tokens a second of one sequence, and of its prompt."""
    import tempfile

    import torch
    from generate import shape

    from glassformer.core.generation.session import Session
    from glassformer.core.nn import build_model
    from glassformer.formats import gguf

    sys.path.insert(0, str(args.llama))
    import llama_cpp

    clock = time.thread_time if args.threads == 1 else time.perf_counter
    cfg = shape(args.shape, args.depth)
    described, vocab = gguf.recipe.write_fields, cfg.embed.vocab
    # without it llama.cpp asks
    nothing = {"tokenizer.ggml.model": "no_vocab", f"{args.shape}.vocab_size": vocab}
    gguf.recipe.write_fields = lambda cfg: (described(cfg)[0] | nothing, described(cfg)[1])
    draw = torch.Generator().manual_seed(0)
    prompt = torch.randint(vocab, (args.prompt,), generator=draw).tolist()
    yield (
        f"| {args.shape}, {cfg.decoder.depth} layers | ours, tokens/s | llama.cpp / ours, "
        "seconds a token | "
    ) + (f"ours, prompt of {args.prompt}, tokens/s | llama.cpp / ours | of the memory |")
    yield "|---|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as folder:
        for kind in (kind for kind in args.types if kind != "fp32"):
            path = Path(folder) / f"{kind}.gguf"
            model = build_model(cfg, seed=0).bfloat16()
            gguf.save(model, path, {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}[kind], None)
            model = gguf.load(path, torch.bfloat16 if kind == "bf16" else None).eval()
            sizes = {
                "n_ctx": args.prompt + 8 * (args.repeats + 8),
                "n_batch": 512,
                "n_ubatch": 512,
            }
            threads = {"n_threads": args.threads, "n_threads_batch": args.threads}
            llama = llama_cpp.Llama(str(path), verbose=False, **sizes, **threads)
            sessions = []

            def start(model: Any = model, sessions: list[Any] = sessions) -> None:
                sessions[:] = [Session(model)]
                sessions[0].prefill([prompt], None, 1)

            def step(sessions: list[Any] = sessions) -> None:
                for token in prompt[:8]:
                    sessions[0].decode(torch.tensor([token]))

            def prefill(second: Any = llama) -> None:
                second.reset()
                second.eval(prompt)

            def go(second: Any = llama) -> None:
                for token in prompt[:8]:
                    second.eval([token])

            start()
            sessions[0].prepare(1 << 10, steps=8)  # the copies, which later prompts read too
            prompts = turns([[start], [prefill]], 3, clock)
            sessions[0].prepare(1 << 10, steps=8 * (args.repeats + 4))
            times = turns([[step], [go]], args.repeats, clock)
            memory, _ = limits(args.threads, clock)
            speed = path.stat().st_size * 8 / statistics.median(times[0]) / 1e9
            text = f"{8 / statistics.median(times[0]):.1f} | {compared(*times)} | "
            text += f"{args.prompt / statistics.median(prompts[0]):.0f} | {compared(*prompts)}"
            yield f"| {kind} | {text} | {speed / memory:.0%} of {memory:.0f} GB/s |"
            del llama
            path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--llama", type=Path, help="the folder that llama-cpp-python was installed to"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=(1, 8, 128))
    parser.add_argument("--types", nargs="+", choices=TYPES, default=tuple(TYPES))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--shape", choices=("llama", "gpt2"), default="llama")
    parser.add_argument("--depth", type=int, default=22)
    parser.add_argument("--prompt", type=int, default=128)
    args = parser.parse_args()
    import torch

    from glassformer.fast import kernels

    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, kernels {kernels.path()}, {args.threads} threads")
    for line in (decoding if args.model else matrices)(args):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
