"""What `glassformer verify` takes of a 124M: seconds by kind of check, beside the processor's own.

python benchmarks/sight_verify.py [--model gpt2/124m] [--threads 2] [--tokens 16]
"""

from __future__ import annotations

import argparse
import time

import torch

import glassformer


def main() -> None:
    """One line a kind of check, then the whole."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="gpt2/124m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = glassformer.load(args.model)
    start, busy = time.monotonic(), time.process_time()
    kinds: dict[str, list[float]] = {}
    last, failed = (start, busy), 0
    for check in glassformer.verify(model, tokenizer, new=args.tokens, compile=args.compile):
        now = time.monotonic(), time.process_time()
        stored = kinds.setdefault(check.kind, [0, 0.0, 0.0])
        kinds[check.kind] = [
            stored[0] + 1,
            stored[1] + now[0] - last[0],
            stored[2] + now[1] - last[1],
        ]
        last, failed = now, failed + (check.status == "FAIL")
    print(f"{'kind':14} {'checks':>6} {'seconds':>8} {'of processor':>12}")
    for kind, (count, wall, cpu) in kinds.items():
        print(f"{kind:14} {count:6} {wall:8.1f} {cpu:12.1f}")
    wall, cpu = time.monotonic() - start, time.process_time() - busy
    print(
        f"{'all':14} {sum(int(kind[0]) for kind in kinds.values()):6} {wall:8.1f} {cpu:12.1f}  "
        f"{failed} failed"
    )


if __name__ == "__main__":
    main()
