"""Generation on a CPU beside transformers: the same saved model in both, alternating; medians,
spread and ratio.

    python benchmarks/generate.py [--rows 6 7 8 9 12 13] [--repeats 3] [--tokens 256] [--threads 2]
    [--folder FOLDER]

Rows are those of the order: 6 one prompt with GPT-2's 124M shape in fp32 and bf16, 7 a Llama of 1.1
B parameters in bf16, 8 its prefill, 9 a batch of 32 prompts, 12 the cost of looking, 13 row 9 with
prompts of 35 to 128 tokens (which need a mask) beside transformers and beside our own even ones.
Weights are random: they take the same time as trained ones. Times are whole calls, the prompt
included, after one call to warm up (in which our weights are packed). The greedy tokens of both are
compared. FOLDER keeps the models for the next time. Exit 1 when a row is not met.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

ROWS = (6, 7, 8, 9, 12, 13)
PROMPT = 128


@dataclass
class Decoded:
    """A call of which only what came after every prompt's first token is counted."""

    seconds: float


@dataclass
class Contest:
    """Two ways to do the same work, and how far the first must be ahead (below 1: how little it may
    lag)."""

    name: str
    our_call: Callable[[], object]
    their_call: Callable[[], object]
    work: int  # tokens a call
    aim: float

    def run(self, repeats: int) -> bool:
        """Alternate, print a line, tell whether the aim was met."""
        repeated = agreement(self.our_call(), self.their_call())
        times: tuple[list[float], list[float]] = ([], [])
        memory = []
        for turn in range(repeats):
            memory.append(memory_speed())
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            for who in order:
                start = time.perf_counter()
                output = (self.our_call, self.their_call)[who]()
                full = time.perf_counter() - start
                times[who].append(output.seconds if isinstance(output, Decoded) else full)
        ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
        met = ratio >= self.aim
        pair = " | ".join(spread(self.work, seconds) for seconds in times)
        print(
            f"| {self.name} | {pair} | {ratio:.2f} | {self.aim:g} | {'yes' if met else 'NO'} "
            f"|{repeated}",
            flush=True,
        )
        pairs = zip(times[0], times[1], memory, strict=True)
        print(
            "  memory GB/s: ratio",
            ", ".join(f"{m:.0f}: {b / a:.2f}" for a, b, m in pairs),
            flush=True,
        )
        return met


def memory_speed() -> float:
    """GB/s at which all threads read memory now: decoding lives on it, and neighbours of a virtual
    machine share it."""
    import torch

    numbers, times = torch.ones(1 << 26), []
    for _ in range(6):
        start = time.perf_counter()
        numbers.sum()
        times.append(time.perf_counter() - start)
    return numbers.nbytes / statistics.median(times) / 1e9


def spread(work: int, seconds: list[float]) -> str:
    """Median tokens a second, and the slowest and fastest."""
    return (
        f"{work / statistics.median(seconds):.1f} ({work / max(seconds):.1f} to "
        f"{work / min(seconds):.1f})"
    )


def agreement(actual: object, reference: object) -> str:
    """Number of leading greedy tokens that agree, where both gave tokens."""
    if not isinstance(actual, list) or not isinstance(reference, list):
        return ""
    pair = list(zip(chain(*actual), chain(*reference), strict=True))
    repeated = next((place for place, (a, b) in enumerate(pair) if a != b), len(pair))
    return f" the first {repeated} of {len(pair)} greedy tokens agree"


def shape(name: str, depth: int = 22) -> Any:
    """The config of a model by its name here: GPT-2 of 124 M, a Llama of 1.1 B at 22 layers."""
    from glassformer.families import find, llama

    return (
        find("gpt2/124m")
        if name == "gpt2"
        else llama.WORDS.model(
            hidden_size=2048,
            num_hidden_layers=depth,
            num_attention_heads=32,
            num_key_value_heads=4,
            intermediate_size=5632,
            vocab_size=32_000,
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
        )
    )


def saved(name: str, dtype: Any, folder: Path) -> Path:
    """A folder with a random model of that shape, in the layout that both can read."""
    import glassformer
    from glassformer.core.nn import build_model

    target = folder / f"{name}-{str(dtype).removeprefix('torch.')}"
    if not (target / "config.json").exists():
        glassformer.save(build_model(shape(name), seed=0).to(dtype), target, layout="hf")
    return target


def pair(name: str, dtype: Any, folder: Path) -> tuple[Any, Any]:
    """The same saved model, ours and theirs."""
    import transformers

    import glassformer

    source = saved(name, dtype, folder)
    model, _ = glassformer.load(source)
    reference_model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype).eval()
    return model.eval(), reference_model


def we(model: Any, prompts: list[list[int]], new: int) -> Callable[[], list[list[int]]]:
    """Our greedy continuation."""
    import glassformer

    return lambda: (
        glassformer.generate(model, None, prompts, max_new=new, temperature=0, eos=()).run().tokens
    )


def padded(prompts: list[list[int]]) -> dict[str, Any]:
    """Inputs of transformers' generate for prompts of any lengths, padded on the left."""
    import torch

    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    present = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    return {"inputs": ids, "attention_mask": present, **options}


def they(model: Any, prompts: list[list[int]], new: int) -> Callable[[], list[list[int]]]:
    """Transformers' greedy continuation."""
    args = padded(prompts)
    return lambda: model.generate(**args, max_new_tokens=new)[:, args["inputs"].shape[1] :].tolist()


def we_decode(model: Any, prompts: list[list[int]], new: int) -> Callable[[], Decoded]:
    """Ours, from the first tokens on."""
    import glassformer

    def run() -> Decoded:
        steps = iter(glassformer.generate(model, None, prompts, max_new=new, temperature=0, eos=()))
        for _ in prompts:
            next(steps)
        start = time.perf_counter()
        for _ in steps:
            pass
        return Decoded(time.perf_counter() - start)

    return run


def they_decode(model: Any, prompts: list[list[int]], new: int) -> Callable[[], Decoded]:
    """Theirs, from the first tokens on."""
    args, times = padded(prompts), []

    def watch(ids: Any, scores: Any) -> Any:  # called before each token is chosen
        times.append(time.perf_counter())
        return scores

    def run() -> Decoded:
        times.clear()
        model.generate(**args, max_new_tokens=new, logits_processor=[watch])
        return Decoded(time.perf_counter() - times[0])

    return run


def prompts(count: int, length: int, vocab: int = 32000) -> list[list[int]]:
    """Random prompts, always the same ones."""
    import torch

    return torch.randint(
        vocab, (count, length), generator=torch.Generator().manual_seed(0)
    ).tolist()


def contests(rows: set[int], tokens: int, folder: Path) -> Iterator[Contest]:
    """The rows that were asked for; one pair of models is held at a time."""
    import torch

    if 6 in rows:
        for dtype in (torch.float32, torch.bfloat16):
            actual, reference = pair("gpt2", dtype, folder)
            text = prompts(1, PROMPT)
            name = f"6: 124M {str(dtype)[6:]}, {tokens} tokens after {PROMPT}"
            yield Contest(
                name, we(actual, text, tokens), they(reference, text, tokens), tokens, 2.5
            )
    if rows & {7, 8, 9, 13}:
        actual, reference = pair("llama", torch.bfloat16, folder)
        if 7 in rows:
            text, name = prompts(1, PROMPT), f"7: 1.1 B bf16, {tokens} tokens after {PROMPT}"
            yield Contest(
                name, we(actual, text, tokens), they(reference, text, tokens), tokens, 1.5
            )
        if 8 in rows:
            we(actual, prompts(1, PROMPT), 32)()  # packs, as any earlier answer of the model has
            for length in (128, 1024):
                text = prompts(1, length)
                yield Contest(
                    f"8: 1.1 B prefill of {length}",
                    we(actual, text, 1),
                    they(reference, text, 1),
                    length,
                    1.4,
                )
        if 9 in rows:
            new = max(2, tokens // 8)
            text, name = (
                prompts(32, PROMPT),
                (f"9: 1.1 B, 32 prompts of {PROMPT}, {new} tokens each, after the first"),
            )
            sides = we_decode(actual, text, new), they_decode(reference, text, new)
            yield Contest(name, *sides, 32 * (new - 1), 1.4)
        if 13 in rows:
            new = max(2, tokens // 8)
            even = prompts(32, PROMPT)
            text = [prompt[: PROMPT - 3 * row] for row, prompt in enumerate(even)]
            name, work = f"13: the same, prompts of {len(text[-1])} to {PROMPT}", 32 * (new - 1)
            yield Contest(
                name, we_decode(actual, text, new), they_decode(reference, text, new), work, 1.4
            )
            name += ", beside even ones of ours"
            yield Contest(
                name, we_decode(actual, text, new), we_decode(actual, even, new), work, 0.8
            )
    if 12 in rows:
        yield from looking(tokens // 4, folder)


@contextmanager
def blind() -> Iterator[None]:
    """Our library as if it had no tape at all."""
    from glassformer.core.nn import Flow

    names = ("look", "watches", "changes")
    saved = [getattr(Flow, name) for name in names]
    Flow.look = lambda flow, piece, name, x: x  # type: ignore[method-assign]
    Flow.watches = Flow.changes = lambda flow, piece, *names: False  # type: ignore[method-assign]
    try:
        yield
    finally:
        for name, method in zip(names, saved, strict=True):
            setattr(Flow, name, method)


def looking(tokens: int, folder: Path) -> Iterator[Contest]:
    """A generated token, and a training step, with the tape off and with every pattern recorded."""
    import torch

    import glassformer
    from glassformer.core.nn import Cache, Tape
    from glassformer.fast.prepacked import prepack

    model, _ = glassformer.load(saved("gpt2", torch.float32, folder))
    prompt, text = torch.tensor(prompts(1, PROMPT)), torch.tensor(prompts(2, 256))
    model.eval()

    def decode(patterns: tuple[str, ...]) -> list[list[int]]:
        cache, outputs, fast = Cache(model.config), [], prepack(model).model
        with torch.no_grad():
            logits = fast(prompt, cache=cache, logits="last").logits
            for _ in range(tokens):
                outputs.append(int(logits.argmax()))
                tape = Tape(*patterns) if patterns else None
                logits = fast(
                    torch.tensor([outputs[-1:]]), cache=cache, logits="last", tape=tape
                ).logits
        return [outputs]

    def train(patterns: tuple[str, ...]) -> None:
        model.zero_grad()
        tape = Tape(*patterns) if patterns else None
        logits = model(text, tape=tape).logits
        torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), text[:, 1:].flatten()
        ).backward()

    def blindly(call: Callable[[tuple[str, ...]], object]) -> Callable[[], object]:
        def run() -> object:
            with blind():
                return call(())

        return run

    for name, call, work in (("token", decode, tokens), ("step", train, text.numel())):
        yield Contest(
            f"12: a {name}, tape off, beside no tape",
            lambda c=call: c(()),
            blindly(call),
            work,
            0.98,
        )
        yield Contest(
            f"12: a {name}, patterns on, beside off",
            lambda c=call: c(("*.pattern",)),
            lambda c=call: c(()),
            work,
            1 / 1.3,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, {args.threads} "
        "threads"
    )
    print(
        "| row | ours, tokens/s | the other, tokens/s | ratio | aim | met "
        "|\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        met = [
            contest.run(args.repeats) for contest in contests(set(args.rows), args.tokens, folder)
        ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
