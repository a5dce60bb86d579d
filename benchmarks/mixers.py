"""Token mixers with a state beside transformers' own CPU path: forward and backward of one model's weights.

    python benchmarks/mixers.py [qwen3_next mamba2 lfm2 rwkv] [--threads 1] [--turns 9] [--rows 4] [--length 256]

transformers makes each model small and random, of blocks with that mixer alone, and Glassformer loads
it: both compute the loss of the same tokens and the gradients of all weights, in fp32. They take
turns, the first to go changing each time. A turn's ratio is theirs / ours: median, and the range from
the first to the third quarter. The losses agree, or nothing is timed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

VOCAB = 512
SHAPES: dict[str, dict[str, Any]] = {  # of four blocks, each 256 wide
    "qwen3_next": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 4,
        "intermediate_size": 512,
        "mlp_only_layers": [0, 1, 2, 3],
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    "mamba2": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_heads": 8,
        "head_dim": 64,
        "state_size": 64,
        "n_groups": 1,
    },
    "lfm2": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "layer_types": ["conv"] * 4,
        "intermediate_size": 512,
        "block_auto_adjust_ff_dim": False,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
    "rwkv": {"hidden_size": 256, "num_hidden_layers": 4, "context_length": 4096},
}


def models(kind: str) -> tuple[Any, Any]:
    """Ours and theirs, with one model's weights."""
    import torch
    import transformers

    from glassformer.formats import store

    torch.manual_seed(0)
    special: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model(kind, vocab_size=VOCAB, **special, **SHAPES[kind])
    reference = transformers.AutoModelForCausalLM.from_config(config).float()
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        model, _ = store.load(folder, dtype="float32")
    return model.train(), reference.train()


def step(model: Any, ids: Any, **options: Any) -> Callable[[], float]:
    """A forward and a backward pass, which returns the loss."""
    from torch.nn import functional as F

    def run() -> float:
        model.zero_grad()
        logits = model(ids, **options).logits[:, :-1]
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        loss.backward()
        return loss.item()

    return run


def seconds(run: Callable[[], float]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Times each mixer and prints a line for it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", default=list(SHAPES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    args = parser.parse_args()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    for kind in args.kinds:
        pair = models(kind)
        ids = torch.randint(3, VOCAB, (args.rows, args.length))
        runs = [step(pair[0], ids), step(pair[1], ids, use_cache=False)]
        losses = [run() for run in runs]
        assert abs(losses[0] - losses[1]) < 1e-4, f"{kind}: losses {losses} differ"
        times: list[list[float]] = [[], []]
        for turn in range(args.turns):
            for side in (0, 1) if turn % 2 else (1, 0):
                times[side].append(seconds(runs[side]))
        ratios = [
            reference_time / own_time for own_time, reference_time in zip(*times, strict=True)
        ]
        low, middle, high = statistics.quantiles(ratios, n=4)
        own_time, reference_time = (1e3 * statistics.median(side) for side in times)
        print(
            f"{kind:12} ours {own_time:7.1f} ms, transformers {reference_time:7.1f} ms: "
            f"{middle:.2f} times as fast ({low:.2f} to {high:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
