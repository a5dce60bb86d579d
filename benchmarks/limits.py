"""What the machine allows: the products of one pass without a model around them, attention of a
prompt, the memory.

    python benchmarks/limits.py [--threads 2] [--repeats 5]

Matrices of GPT-2's 124M for one token (fp32 and bf16) and of the Llama of 1.1 B for prompts of 128
and 1,024 tokens (bf16), as they lie and packed; a layer's causal attention in bf16 by PyTorch's
fused kernel, by ours, and by the kernel over pages that an engine has.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.nn import Mask
from glassformer.core.nn.attention import ENGINES, AttentionInputs
from glassformer.fast.kernels import PAGE, Pages, paged_attention

SMALL = [(2304, 768), (768, 768), (3072, 768), (768, 3072)] * 12 + [(50257, 768)]
LARGE = [(2560, 2048), (2048, 2048), (11264, 2048), (2048, 5632)] * 22


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """The median of a call, after two to warm up."""
    times = []
    for turn in range(repeats + 2):
        start = time.perf_counter()
        work()
        if turn > 1:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def products(shapes: list[tuple[int, int]], rows: int, dtype: torch.dtype, repeats: int) -> None:
    """A line: the time of all products of a pass, as the matrices lie and packed."""
    weights = [torch.randn(shape).mul_(0.02).to(dtype) for shape in shapes]
    inputs = {width: torch.randn(rows, width).to(dtype) for _, width in shapes}
    plain = milliseconds(lambda: [F.linear(inputs[w.shape[1]], w) for w in weights], repeats)
    copies: list[tuple[Tensor, int]] = [
        (torch.ops.mkldnn._reorder_linear_weight(w, 32), w.shape[1]) for w in weights
    ]
    linear = torch.ops.mkldnn._linear_pointwise.default
    packed = milliseconds(
        lambda: [linear(inputs[k], copy, None, "none", [], "") for copy, k in copies], repeats
    )
    size, flops = sum(w.nbytes for w in weights), 2 * rows * sum(w.numel() for w in weights)
    name = f"{len(shapes)} matrices, {rows} rows, {str(dtype)[6:]}"
    fast = f"{size / packed / 1e6:.0f} GB/s, {flops / packed / 1e9:.2f} TFLOP/s packed"
    print(f"{name:36} {plain:8.1f} ms as they lie {packed:8.1f} ms packed   {fast}", flush=True)


def attention(heads: int, shared: int, length: int, repeats: int) -> None:
    """A line: one layer's attention of a prompt."""
    q, k, v = (torch.randn(1, h, length, 64).bfloat16() for h in (heads, shared, shared))
    options = {"is_causal": True, "scale": 0.125, "enable_gqa": heads != shared}
    fused = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v, **options), repeats)
    pos = torch.arange(length)[None]
    inputs = AttentionInputs(q, k, v, Mask(pos, pos, causal=True, contiguous=True), None, 0.125)
    actual = milliseconds(lambda: ENGINES["prefill"].run(inputs), repeats)
    pages, slots = Pages.empty(-(-length // PAGE), shared, 64, torch.bfloat16), torch.arange(length)
    pages.write(k[0].transpose(0, 1), v[0].transpose(0, 1), slots)
    rows, observed = torch.zeros(length, dtype=torch.int32), (slots + 1).int()
    output = (
        q[0].transpose(0, 1).contiguous(),
        pages,
        torch.arange(-(-length // PAGE)).int()[None],
        rows,
        observed,
        0.125,
    )
    paged = milliseconds(lambda: paged_attention(*output), repeats)
    name = f"attention {heads}/{shared} x 64, {length} tokens"
    print(
        f"{name:36} {fused:8.2f} ms fused       {actual:8.2f} ms ours, {paged:8.2f} ms in pages",
        flush=True,
    )


def main() -> None:
    """All lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    numbers, square = torch.ones(1 << 26), torch.randn(2048, 2048).bfloat16()
    print(f"memory {numbers.nbytes / milliseconds(numbers.sum, 8) / 1e6:.0f} GB/s", end=", ")
    print(
        f"bf16 2048^3 {2 * 2048**3 / milliseconds(lambda: square @ square, 20) / 1e9:.2f} TFLOP/s"
    )
    for dtype in (torch.float32, torch.bfloat16):
        products(SMALL, 1, dtype, 4 * args.repeats)
    for rows in (128, 1024):
        products(LARGE, rows, torch.bfloat16, args.repeats)
    for shape in ((32, 4, 128), (32, 4, 1024), (12, 12, 1024)):
        attention(*shape, args.repeats)


if __name__ == "__main__":
    with torch.no_grad():
        main()
