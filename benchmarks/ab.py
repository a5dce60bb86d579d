"""Two trees of Glassformer side by side, on what users wait for: seconds of the processor, one
thread, taking turns.

    git worktree add ../before COMMIT
    python benchmarks/ab.py ../before . [--rows step strided ...] [--turns 9] [--clock wall]

Each row runs in two processes that stay up, one with each tree on its path; they take turns, the
first to go changing each time, so that both meet the same weather. The ratio is second tree / first
tree, turn by turn: median and range; beside it the ratio of the fastest turns, which a busy machine
disturbs least. Snippets use the names of both: of today, and of trees from before rooms were
renamed. Exit 1 where the second tree is more than --limit slower by both figures; two processes of
one tree may differ by a tenth through where their memory lies, so run such a row again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

DATA = Path(
    os.environ.get("GLASSFORMER_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)
START = """
import torch
from glassformer import config, nn, training
try:
    from glassformer.core.config import run
    from glassformer.families import find
    from glassformer.fast.training.execution import choose_execution
except ImportError:  # a tree from before core and rooms
    from glassformer.config import run
    from glassformer.recipes import find
    choose_execution = training.choose_execution
Cache, build_model, train = nn.Cache, nn.build_model, training.train
Batch, Causal = training.Batch, training.Causal
torch.set_num_threads(1)

def train_steps(cfg, rows, length, dtype="float32"):
    draw = torch.Generator().manual_seed(0)
    feed = (Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) for ids in
            iter(lambda: torch.randint(cfg.embed.vocab, (rows, length + 1), generator=draw), None))
    model = build_model(cfg, seed=0)
    how = run.Train(steps=10**9, batch=rows, schedule=run.Constant(), dtype=dtype, compile="no")
    decided = choose_execution(model, next(feed), Causal(), how)
    return train(model, feed, settings=how, execution=decided)

def decoder(depth, heads, dim, context, feedforward, mask=None, norm=None):
    attention = config.Attention(heads) if mask is None else config.Attention(heads, **mask)
    block = config.Block(attention, feedforward, norm or config.RMSNorm())
    return config.Decoder(dim, context, config.Embed(65), config.Stack(depth, (block,), config.Rotary()))

def mask(rule):
    return {"mask": rule}
"""
STRIDED = (
    "steps = train_steps(decoder(4, 4, 128, 2048, config.GatedMLP(384), "
    "mask(config.Strided(64))), 1, 2048, {!r})"
)
EXPERTS = """
experts = config.MoE(8, 2, config.MLP(512, "gelu"), balance_loss=0.01, z_loss=0.001)
steps = train_steps(decoder(8, 8, 128, 64, experts, norm=config.LayerNorm(bias=False)), 32, 64, {!r})
"""
COPIED = """
cfg = config.EncoderDecoder(128, 64, config.Embed(65), config.Recurrent(1, causal=False),
    config.Recurrent(1, cross=config.Additive(128)), config.Head())
draw = torch.Generator().manual_seed(0)
model, pos = build_model(cfg, seed=0), torch.arange(40).repeat(32, 1)
pos[pos >= torch.randint(8, 41, (32, 1), generator=draw)] = -1
given = torch.randint(65, (32, 40), generator=draw)

def learn():
    model(given, given, pos=pos, source_pos=pos).logits.sum().backward()
"""
PAGES = """
try:
    from glassformer.fast.kernels import Pages, paged_attention
except ImportError:  # a tree from before core and rooms
    from glassformer.nn.kernels import Pages, paged_attention

def attention(heads, kv_heads, dtype, texts, keys, queries):  # of the last tokens of each text
    each = -(-keys // 32)
    pages = Pages.empty(texts * each, kv_heads, 64, dtype)
    tables, places = torch.arange(texts * each, dtype=torch.int32).view(texts, each), torch.arange(keys)
    slots = (tables[:, places // 32].long() * 32 + places % 32).flatten()
    pages.write(*(torch.randn(texts * keys, kv_heads, 64).to(dtype) for _ in range(2)), slots)
    rows = torch.arange(texts, dtype=torch.int32).repeat_interleave(queries)
    lengths = (places[-queries:] + 1).int().repeat(texts)
    return torch.randn(texts * queries, heads, 64).to(dtype), pages, tables, rows, lengths, 0.125
"""
PROMPT = """
try:
    from glassformer.serve.engine import Engine, Request
    from glassformer.core.generation import Sampling
except ImportError:
    from glassformer.engine import Engine, Request
    from glassformer.generation import Sampling
model = build_model(find("gpt2/124m"), seed=0).bfloat16().eval()
engine, draw = Engine(model, lookup=False, max_sequences=2), torch.Generator().manual_seed(0)

def first():  # of another prompt each time: pages that were read are kept
    prompt = torch.randint(50000, (1000,), generator=draw).tolist()
    engine.submit(Request(prompt, sampling=Sampling(0), max_new=1, stop_tokens=())).result()
"""
SMALL = START + (
    "model = build_model(decoder(6, 6, 384, 1024, config.GatedMLP(1024)), seed=0).eval()\n"
)
ROWS = {  # name: what it is, what is run once, what a turn repeats, how often
    "step": (
        "a step of glass/1m, 16 x 256",
        START + 'steps = train_steps(find("glass/1m"), 16, 256)',
        "next(steps)",
        3,
    ),
    "strided": (
        "a step of strided attention, 1 x 2,048",
        START + STRIDED.format("float32"),
        "next(steps)",
        2,
    ),
    "strided-bf16": ("the same in bf16", START + STRIDED.format("bfloat16"), "next(steps)", 2),
    "experts": (
        "a step of 8 experts, 8 layers 128 wide, 32 x 64",
        START + EXPERTS.format("float32"),
        "next(steps)",
        2,
    ),
    "experts-bf16": ("the same in bf16", START + EXPERTS.format("bfloat16"), "next(steps)", 3),
    "recurrent": (
        "gradients of a GRU that attends, 32 x 8 to 40 words",
        START + COPIED,
        "learn()",
        3,
    ),
    "decode": (
        "128 tokens by a decoder of 6 layers 384 wide",
        SMALL + "from glassformer.core.generation import generate",
        "generate(model, None, [1, 2, 3], max_new=128, temperature=0, eos=()).run()",
        2,
    ),
    "prefill": (
        "its first token after 512",
        SMALL + "from glassformer.core.generation import generate",
        "generate(model, None, [5] * 512, max_new=1, temperature=0, eos=()).run()",
        4,
    ),
    "pages": (
        "attention over pages, 12 heads, a prompt of 1,024 in bf16",
        START + PAGES + "given = attention(12, 12, torch.bfloat16, 1, 1024, 1024)",
        "paged_attention(*given)",
        20,
    ),
    "pages-grouped": (
        "the same, 32 heads over 4",
        START + PAGES + "given = attention(32, 4, torch.bfloat16, 1, 1024, 1024)",
        "paged_attention(*given)",
        8,
    ),
    "pages-fp32": (
        "12 heads in fp32",
        START + PAGES + "given = attention(12, 12, torch.float32, 1, 1024, 1024)",
        "paged_attention(*given)",
        20,
    ),
    "pages-short": (
        "32 prompts of 32, 12 heads in fp32",
        START + PAGES + "given = attention(12, 12, torch.float32, 32, 32, 32)",
        "paged_attention(*given)",
        100,
    ),
    "pages-token": (
        "a token of 32 texts after 512, 32 heads over 4 in bf16",
        START + PAGES + "given = attention(32, 4, torch.bfloat16, 32, 512, 1)",
        "paged_attention(*given)",
        100,
    ),
    "prompt": (
        "GPT-2's 124M in bf16: the first token after 1,000, by the engine",
        START + PROMPT,
        "first()",
        1,
    ),
    "forward": (
        "a forward pass of it over 8 x 128 tokens, no cache",
        SMALL + "tokens = torch.randint(65, (8, 128))\nno_grad = "
        "torch.no_grad()\nno_grad.__enter__()",
        "model(tokens)",
        4,
    ),
    "tokens": (
        "400 documents by a byte-level BPE of 4,096",
        """
from glassformer.core.tokenizer import train
from pathlib import Path
texts = Path("DATA/tinystories/val.txt").read_text().split("<|endoftext|>")[:1200]
tokenizer = train("bpe", texts[400:], 4096)
""",
        "tokenizer.encode_batch(texts[:400])",
        4,
    ),
    "import": (
        "a process that imports the package, a model and training",
        "import subprocess, sys",
        'subprocess.run([sys.executable, "-c", "import glassformer.core.training, '
        'glassformer.core.generation"], check=True)',
        1,
    ),
    "help": (
        "glassformer --help",
        "import subprocess, sys",
        'subprocess.run([sys.executable, "-m", "glassformer", "--help"], check=True, '
        "stdout=subprocess.DEVNULL)",
        5,
    ),
}
WORKER = """
import resource, sys, time
def clock():
    if "CLOCK" == "wall":
        return time.perf_counter()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
for _ in range(2):  # warm: caches, kernels, copies of weights
    turn()
print("ready", flush=True)
for _ in sys.stdin:
    begun = clock()
    for _ in range(TIMES):
        turn()
    print((clock() - begun) / TIMES, flush=True)
"""


class Worker:
    """A process with one tree on its path, which repeats a row's work when told to."""

    def __init__(self, tree: Path, row: str, clock: str) -> None:
        _, setup, work, times = ROWS[row]
        code = f"{setup}\ndef turn():\n    {work}\n{WORKER}".replace("DATA", str(DATA)).replace(
            "TIMES", str(times)
        )
        code = code.replace("CLOCK", clock)
        saved = {
            **os.environ,
            "PYTHONPATH": str(tree / "src"),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code], env=saved, text=True, **pipes
        )
        self.seconds: list[float] = []
        assert self.answer() == "ready"

    def answer(self) -> str:
        """The next line it writes."""
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit("a worker failed; its message stands above")
        return line

    def turn(self) -> None:
        """One turn, its seconds kept."""
        print(file=self.process.stdin, flush=True)
        self.seconds.append(float(self.answer()))


def compare(trees: list[Path], row: str, turns: int, limit: float, clock: str) -> bool:
    """Print a row of the table; whether the second tree is fast enough."""
    workers = [Worker(tree, row, clock) for tree in trees]
    for turn in range(turns):
        for worker in workers if turn % 2 == 0 else workers[::-1]:
            worker.turn()
    for worker in workers:
        worker.process.stdin.close()
        worker.process.wait()
    first, second = (worker.seconds for worker in workers)
    ratios = [b / a for a, b in zip(first, second, strict=True)]
    middle, best = statistics.median(ratios), min(second) / min(first)
    times = " | ".join(f"{1e3 * statistics.median(seconds):.1f}" for seconds in (first, second))
    around = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(
        f"| {row} | {ROWS[row][0]} | {times} | {middle:.3f} | {around} | {best:.3f} |", flush=True
    )
    return min(middle, best) <= 1 + limit


def main() -> int:
    """One line for each row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "trees",
        type=Path,
        nargs=2,
        metavar="TREE",
        help="before and after: checkouts with a src folder",
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--turns", type=int, default=9, help="turns of each (9)")
    parser.add_argument(
        "--clock", choices=("processor", "wall"), default="processor", help="what a turn takes"
    )
    parser.add_argument(
        "--limit", type=float, default=0.03, help="how much slower is too slow (0.03)"
    )
    args = parser.parse_args()
    trees = [tree.resolve() for tree in args.trees]
    print(
        "| row | what | first, ms | second, ms | ratio | range | of the fastest "
        "|\n|---|---|---|---|---|---|---|"
    )
    met = [compare(trees, row, args.turns, args.limit, args.clock) for row in args.rows]
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
