"""Training tokens a second of the Multi30k translation model beside OpenNMT-py's and
torch.nn.Transformer's.

    python benchmarks/translate.py [--onmt FOLDER] [--rounds 9] [--threads 2] [--clock cpu]

"ours 2017" is vaswani/tiny: 4 + 4 layers, 128 wide, 4 heads, 256 hidden, one table for both
languages and the head, Adam. The peers are that too, with the same words, dropout in the same
places, smoothed labels and clipping. "ours" is the model and the optimizer of runs/multi30k.toml.
Both of ours read the rows that our trainer packs; the peers read what they read otherwise, padded
pairs of alike length, up to 4,096 tokens a batch on the longer side, in fp32 and under bf16's
autocast. Only targets that are there are counted. Every contender is a process of its own that
stays up; they take turns. On a busy machine use --threads 1 --clock cpu: two threads wait for each
other there, and nothing is told. --onmt names a folder that holds the package `onmt` (3.5) with
pyonmttok, configargparse and pyahocorasick. Exit 1 when either of ours is not ahead of the best
peer by 1.5 times.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.training import train
from glassformer.fast.training.execution import choose_execution
from glassformer.runs import prepare, run_file
from glassformer.runs.run_plan import RunPlan, plan_run
from glassformer.tasks.encoded import Encoded

ROOT = Path(__file__).resolve().parents[1]
DEPTH, DIM, HEADS, HIDDEN, DROPOUT, SMOOTHING, CLIP = 4, 128, 4, 256, 0.3, 0.1, 1.0
RATE, BETAS = 5e-3, (0.9, 0.98)
# the words of both languages and four specials, of which "<pad>" is the first
VOCAB, PAD = 9712, 9708
PEERS = "OpenNMT fp32,OpenNMT bf16,nn.Transformer fp32,nn.Transformer bf16"
CHANGES = {
    "encoder.dropout": DROPOUT,
    "decoder.dropout": DROPOUT,
    "label_smoothing": SMOOTHING,
    "clip": CLIP,
    "schedule": {"type": "Constant"},
}
PLAIN = {"type": "AdamW", "lr": RATE, "betas": BETAS, "weight_decay": 0.0}
CHANGES_2017 = {**CHANGES, "recipe": "vaswani/tiny", "context": 64, "optimizer": PLAIN}

Steps = Iterator[tuple[int, float]]  # targets learned from, and their mean loss, step by step


def run_data(changes: dict[str, Any]) -> tuple[RunPlan, prepare.RunData]:
    """The plan of the run file with changes, and the data."""
    settings = run_file.read_run(ROOT / "runs" / "multi30k.toml", changes)
    resolved = plan_run(settings).with_tokenizer()
    assert resolved.tokenizer is not None and (resolved.tokenizer.size, resolved.tokenizer.pad) == (
        VOCAB,
        PAD,
    )
    return resolved, prepare.run_data(resolved)


def our_training(changes: dict[str, Any], dtype: str) -> tuple[str, Steps]:
    """Our trainer; ``dtype`` "auto" leaves the choice to it."""
    resolved, data = run_data({**changes, "dtype": dtype, "steps": 10**9, "compile": "no"})
    model, _ = prepare.build(resolved, torch.device("cpu"), fresh=True)
    options = resolved.settings.train
    plan = choose_execution(model, next(data.batches), options.objective, options)
    steps = train(model, data.batches, options.objective, options, execution=plan)
    message = f"{size(model)}, {data.batches.fill:.0%} full; {plan.why}"
    return message, ((step.tokens, step.loss) for step in steps)


def size(model: nn.Module) -> str:
    """Its number of weights, in words."""
    return f"{sum(weight.numel() for weight in model.parameters()):,} weights"


# --------------------------------------------------------------------------------------- the peers


def padded(encoded: Encoded, tokens: int) -> Iterator[tuple[Tensor, ...]]:
    """Source, input and target of pairs of alike length, each (rows, longest), PAD beyond the end;
    shuffled batches."""
    written, second_ids = encoded.sides
    columns = ((second_ids, "source"), (written, "tokens"), (written, "targets"))
    longest = np.maximum(written.sizes, second_ids.sizes)
    batches: list[list[int]] = [[]]
    widest = 0
    for item in np.lexsort((second_ids.sizes, written.sizes)):
        widest = max(widest, longest[item])
        if widest * (len(batches[-1]) + 1) > tokens:
            batches.append([])
            widest = longest[item]
        batches[-1].append(int(item))
    draw = np.random.default_rng(0)
    while True:
        for index in draw.permutation(len(batches)):
            sides = []
            for side, name in columns:
                rows = [
                    side.columns[name][side.starts[i] : side.starts[i + 1]] for i in batches[index]
                ]
                wide = np.full((len(rows), max(map(len, rows))), PAD, np.int64)
                for row, ids in zip(wide, rows, strict=True):
                    row[: len(ids)] = ids
                sides.append(torch.from_numpy(wide))
            yield tuple(sides)


def loop(
    model: nn.Module, logits: Callable[[Tensor, Tensor], Tensor], kind: str, tokens: int
) -> tuple[str, Steps]:
    """The plain loop around a peer's model: what ``logits`` makes of source and input, to the
    targets."""
    batches = padded(run_data(CHANGES)[1].batches.encoded, tokens)
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.xavier_uniform_(weight)
    optimizer = torch.optim.Adam(model.parameters(), RATE, BETAS, fused=True)
    model.train()

    def steps() -> Steps:
        for source, written, targets in batches:
            count = int((targets != PAD).sum())
            with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bf16"):
                scores = logits(source, written).flatten(0, 1).float()
                loss = F.cross_entropy(
                    scores, targets.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
                )
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            yield count, loss.item()

    return size(model), steps()


def opennmt(kind: str, tokens: int, folder: Path) -> tuple[str, Steps]:
    """OpenNMT-py's NMTModel."""
    sys.path.append(str(folder))
    # they prepare text, and ask for much that a model has no use for
    sys.modules["onmt.transforms"] = MagicMock()
    from onmt.decoders import TransformerDecoder
    from onmt.encoders import TransformerEncoder
    from onmt.models import NMTModel
    from onmt.modules import Embeddings

    tables = [
        Embeddings(DIM, VOCAB, PAD, position_encoding=True, dropout=DROPOUT) for _ in range(2)
    ]
    tables[1].word_lut.weight = tables[0].word_lut.weight
    encoder = TransformerEncoder(
        DEPTH, DIM, HEADS, HIDDEN, DROPOUT, DROPOUT, tables[0], 0, 0, add_qkvbias=True
    )
    shape = (DEPTH, DIM, HEADS, HIDDEN, False, "scaled-dot", DROPOUT, DROPOUT)
    decoder = TransformerDecoder(*shape, tables[1], 0, 0, False, False, 0, 0, add_qkvbias=True)
    model = NMTModel(encoder, decoder)
    for name, module in model.named_modules():
        if name.endswith("dropout_1"):  # within the feed-forward, where ours has none
            module.p = 0.0

    def logits(source: Tensor, written: Tensor) -> Tensor:
        # its forward leaves the last token out
        full = F.pad(written, (0, 1), value=PAD)[..., None]
        hidden, _ = model(source[..., None], full, (source != PAD).sum(1))
        return F.linear(hidden, tables[0].word_lut.weight)

    for weight in model.parameters():
        if weight.ndim == 1:
            nn.init.zeros_(weight)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.reset_parameters()
    return loop(model, logits, kind, tokens)


class Plain(nn.Module):
    """torch.nn.Transformer between one table and itself."""

    waves: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, DIM, padding_idx=PAD)
        self.body = nn.Transformer(DIM, HEADS, DEPTH, DEPTH, HIDDEN, DROPOUT, batch_first=True)
        for layer in (*self.body.encoder.layers, *self.body.decoder.layers):
            layer.dropout.p = 0.0  # within the feed-forward, where ours has none
        angle = torch.arange(512)[:, None] * 10_000 ** (-torch.arange(0, DIM, 2) / DIM)
        self.register_buffer("waves", torch.stack((angle.sin(), angle.cos()), -1).flatten(1))

    def embed(self, tokens: Tensor) -> Tensor:
        """Words and their places."""
        return F.dropout(
            self.table(tokens) * math.sqrt(DIM) + self.waves[: tokens.shape[1]], DROPOUT
        )

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        later = torch.ones(written.shape[1], written.shape[1], dtype=torch.bool).triu(1)
        nothing = source == PAD
        hidden = self.body(
            self.embed(source),
            self.embed(written),
            tgt_mask=later,  # what stands after a target's end is never looked at by it
            src_key_padding_mask=nothing,
            memory_key_padding_mask=nothing,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.table.weight)


def pytorch(kind: str, tokens: int) -> tuple[str, Steps]:
    """torch.nn.Transformer in a plain loop."""
    model = Plain()
    return loop(model, model, kind, tokens)


# -------------------------------------------------------------------------------------- the turns


def worker(args: argparse.Namespace) -> None:
    """One contender: reads how many targets to learn from, writes how many it did, how fast, and
    the last loss."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    who, _, kind = args.worker.rpartition(" ")
    result = {
        "ours": lambda: our_training(CHANGES, kind),
        "ours 2017": lambda: our_training(CHANGES_2017, kind),
        "OpenNMT": lambda: opennmt(kind, args.tokens, args.onmt),
        "nn.Transformer": lambda: pytorch(kind, args.tokens),
    }
    message, steps = result[who]()
    next(steps)
    print(json.dumps({"said": message}), flush=True)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    for line in sys.stdin:
        started, learned, loss = clock(), 0, 0.0
        while learned < int(line):
            count, loss = next(steps)
            learned += count
        print(json.dumps({"speed": learned / (clock() - started), "loss": loss}), flush=True)


class Contender:
    """A worker process and what it has said so far."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        command = [
            sys.executable,
            __file__,
            "--worker",
            name,
            "--threads",
            str(args.threads),
            "--clock",
            args.clock,
        ]
        command += ["--tokens", str(args.tokens)]
        command += ["--onmt", str(args.onmt)] if args.onmt else []
        environment = {"GLASSFORMER_DATA": str(ROOT.parent / "shared" / "data"), **os.environ}
        environment["OMP_NUM_THREADS"] = str(args.threads)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=pipe, stdout=pipe
        )
        self.name, self.speeds, self.loss = name, list[float](), 0.0
        print(f"  {name}: {self.answer()['said']}", flush=True)

    def answer(self) -> dict[str, Any]:
        """The next line it writes."""
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit(f"{self.name} failed.")
        data: dict[str, Any] = json.loads(line)
        return data

    def turn(self, targets: int, is_measured: bool) -> None:
        """Let it learn from so many targets."""
        assert self.process.stdin
        print(targets, file=self.process.stdin, flush=True)
        answer = self.answer()
        self.loss = answer["loss"]
        if is_measured:
            self.speeds.append(answer["speed"])

    @property
    def median(self) -> float:
        """Targets a second."""
        return statistics.median(self.speeds)


def ahead(item: Contender, second: Contender) -> float:
    """Speed ratio, turn by turn."""
    return statistics.median(a / b for a, b in zip(item.speeds, second.speeds, strict=True))


def compare(args: argparse.Namespace) -> int:
    """Turns, medians, ratios."""
    peers = [peer for peer in args.peers.split(",") if args.onmt or not peer.startswith("OpenNMT")]
    contenders = [Contender(name, args) for name in ("ours auto", "ours 2017 auto", *peers)]
    for turn in range(args.rounds + 1):
        for contender in contenders:
            contender.turn(args.targets, is_measured=turn > 0)
    local, reference = contenders[:2], contenders[2:]
    best = max(reference, key=lambda item: item.median)
    print(f"\n{'':22}{'targets/s':>10}{'range':>18}{'of the best peer':>18}{'last loss':>11}")
    for item in contenders:
        around = f"{min(item.speeds):,.0f} - {max(item.speeds):,.0f}"
        print(
            f"{item.name:22}{item.median:10,.0f}{around:>18}{ahead(item, best):18.2f}{item.loss:11.2f}"
        )
    slowest = min(ahead(item, best) for item in local)
    print(f"\nThe best peer is {best.name}; ours is at least {slowest:.2f} times as fast.")
    return 0 if slowest >= 1.5 else 1


def main() -> int:
    """Parse, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--onmt", type=Path, help="a folder with OpenNMT-py's package")
    parser.add_argument(
        "--peers", default=PEERS, help="which of them, in which number format (all)"
    )
    parser.add_argument(
        "--tokens", type=int, default=4096, help="tokens in a batch of theirs, at most (4096)"
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of each (9)")
    parser.add_argument("--targets", type=int, default=8000, help="targets a turn, at least (8000)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: on a machine that others use"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    return compare(args)


if __name__ == "__main__":
    raise SystemExit(main())
