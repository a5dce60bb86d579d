"""Numbers below a thousand in words and digits, parted into learned and not: python numbers.py
FOLDER."""

import random
import sys
from pathlib import Path

BELOW_TEN = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = [
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
ONES = BELOW_TEN + TEENS
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
RUN = """[model]
recipe = "glass/pair-3m"
dim = 64
context = 32
encoder.depth = 2
decoder.depth = 2
encoder.dropout = 0.0
decoder.dropout = 0.0

[data]
type = "Examples"
train = "train.tsv"
valid = "valid.tsv"
tokenizer = "char"

[train]
objective = "Seq2Seq"
steps = 400
batch = 32
sample_every = 0
"""


def words(n: int) -> str:
    """412 -> four hundred twelve."""
    if n >= 100:
        return f"{ONES[n // 100]} hundred" + (f" {words(n % 100)}" if n % 100 else "")
    return ONES[n] if n < 20 else TENS[n // 10] + (f" {ONES[n % 10]}" if n % 10 else "")


folder = Path(sys.argv[1])
numbers = list(range(1000))
random.Random(0).shuffle(numbers)
for name, part in (("train", numbers[:850]), ("valid", numbers[850:900])):
    rows = "".join(f"{words(n)}\t{n}\n" for n in part)
    (folder / f"{name}.tsv").write_text(f"source\ttarget\n{rows}")
(folder / "test.en").write_text("".join(f"{words(n)}\n" for n in numbers[900:]))
(folder / "test.de").write_text("".join(f"{n}\n" for n in numbers[900:]))
(folder / "numbers.toml").write_text(RUN)
