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
    asked = argparse.ArgumentParser()
    asked.add_argument("--model", default="gpt2/124m")
    asked.add_argument("--threads", type=int, default=2)
    asked.add_argument("--tokens", type=int, default=16)
    asked.add_argument("--compile", action="store_true")
    given = asked.parse_args()
    torch.set_num_threads(given.threads)
    model, tokenizer = glassformer.load(given.model)
    begun, busy = time.monotonic(), time.process_time()
    kinds: dict[str, list[float]] = {}
    last, failed = (begun, busy), 0
    for check in glassformer.verify(model, tokenizer, new=given.tokens, compile=given.compile):
        now = time.monotonic(), time.process_time()
        held = kinds.setdefault(check.kind, [0, 0.0, 0.0])
        kinds[check.kind] = [held[0] + 1, held[1] + now[0] - last[0], held[2] + now[1] - last[1]]
        last, failed = now, failed + (check.status == "FAIL")
    print(f"{'kind':14} {'checks':>6} {'seconds':>8} {'of processor':>12}")
    for kind, (count, wall, cpu) in kinds.items():
        print(f"{kind:14} {count:6} {wall:8.1f} {cpu:12.1f}")
    wall, cpu = time.monotonic() - begun, time.process_time() - busy
    print(
        f"{'all':14} {sum(int(one[0]) for one in kinds.values()):6} {wall:8.1f} {cpu:12.1f}  "
        f"{failed} failed"
    )


if __name__ == "__main__":
    main()
