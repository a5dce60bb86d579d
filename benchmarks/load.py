"""Loading beside transformers: the first token of a saved model, and the memory that loading takes.

    python benchmarks/load.py [--rows 10 11] [--repeats 5] [--threads 2] [--folder FOLDER]

Row 10: seconds from the start of the process to the first greedy token after 16, GPT-2's 124M shape
in fp32. Row 11: the highest resident memory of a process that loads a Llama of 1.1 B parameters in
bf16 and generates one token (which touches what was only mapped, as both sides do it), divided by
the weights; the whole process counts, and beside it what loading added. The files are in the
system's cache. The two alternate, a process for each. FOLDER keeps the models for the next time.
Exit 1 when a row is not met.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import generate

RESIDENT = (
    "import os\nbefore = int(open('/proc/self/statm').read().split()[1]) * "
    "os.sysconf('SC_PAGE_SIZE')\n"
)
OURS = """
import glassformer
model, _ = glassformer.load({folder!r})
print(next(iter(glassformer.generate(model, None, list(range(16)), temperature=0))).token)
"""
THEIRS = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({folder!r})
ids = torch.arange(16)[None]
mask = torch.ones_like(ids)
print(model.generate(ids, attention_mask=mask, max_new_tokens=1, do_sample=False, pad_token_id=0)[0, -1].item())
"""
OURS_LOADS = f"""
import glassformer
glassformer.load, glassformer.generate
{RESIDENT}
model, _ = glassformer.load({{folder!r}})
next(iter(glassformer.generate(model, None, list(range(16)), temperature=0)))
print(before)
"""
THEIRS_LOADS = f"""
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM
{RESIDENT}
model = AutoModelForCausalLM.from_pretrained({{folder!r}}, dtype=torch.bfloat16)
ids = torch.arange(16)[None]
model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False, pad_token_id=0)
print(before)
"""


def run(code: str, folder: Path, threads: int) -> tuple[str, float, int]:
    """Output of a process that runs ``code``, its seconds, and its peak resident bytes."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
    }
    command = [sys.executable, "-c", code.format(folder=str(folder))]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    message = process.stdout.readline().strip()
    seconds = time.perf_counter() - start
    _, status, in_use = os.wait4(process.pid, 0)
    process.returncode = status
    if status or not message:
        raise SystemExit(
            f"this process failed; run it to see why:\n{code.format(folder=str(folder))}"
        )
    return message, seconds, in_use.ru_maxrss * 1024


def first_token(folder: Path, repeats: int, threads: int) -> bool:
    """Row 10."""
    runs = [[run(code, folder, threads) for code in (OURS, THEIRS)] for _ in range(repeats + 1)][1:]
    repeated = len({message for pair in runs for message, _, _ in pair}) == 1
    actual, reference = ([pair[who][1] for pair in runs] for who in (0, 1))
    ratio = statistics.median(a / b for a, b in zip(actual, reference, strict=True))
    cells = " | ".join(
        f"{statistics.median(s):.2f} ({min(s):.2f} to {max(s):.2f}) s" for s in (actual, reference)
    )
    met = ratio <= 0.5 and repeated
    print(
        f"| 10: first token, 124M fp32 | {cells} | {ratio:.2f} | at most 0.5 | "
        f"{'yes' if met else 'NO'} |",
        flush=True,
    )
    return met


def memory(folder: Path, repeats: int, threads: int) -> bool:
    """Row 11."""
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    runs = [
        [run(code, folder, threads) for code in (OURS_LOADS, THEIRS_LOADS)] for _ in range(repeats)
    ]
    peaks = [statistics.median(pair[who][2] for pair in runs) for who in (0, 1)]
    before = [statistics.median(int(pair[who][0]) for pair in runs) for who in (0, 1)]
    loading = [(peak - base) / weights for peak, base in zip(peaks, before, strict=True)]
    cells = " | ".join(
        f"{peak / weights:.2f} x, {individual:.2f} x without {base / 2**20:.0f} MiB of imports"
        for peak, individual, base in zip(peaks, loading, before, strict=True)
    )
    met = peaks[0] <= 1.1 * weights and peaks[0] < peaks[1]
    ratio = peaks[0] / peaks[1]
    verdict = "yes" if met else "NO"
    print(
        f"| 11: peak while loading {weights / 2**30:.2f} GiB | {cells} | {ratio:.2f} | 1.1 x, "
        f"less | {verdict} |"
    )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", choices=(10, 11), default=(10, 11))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    import torch

    print("| row | ours | transformers | ratio | aim | met |\n|---|---|---|---|---|---|")
    met = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if 10 in args.rows:
            met.append(
                first_token(
                    generate.saved("gpt2", torch.float32, folder), args.repeats, args.threads
                )
            )
        if 11 in args.rows:
            met.append(
                memory(generate.saved("llama", torch.bfloat16, folder), args.repeats, args.threads)
            )
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
