"""``glassformer probe``: what a linear function of each layer says of a text's label, and its
direction."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..core.errors import need, note
from .common import is_terminal, new_file
from .options import Columns, ModelOptions
from .parsing import CommandOutput, Words
from .sources import read_examples

EXAMPLES = (
    "glassformer probe tiny labels.tsv",
    "glassformer probe tiny reviews.jsonl --columns text=review,label=stars --out stars.safetensors",
)


def run(
    options: ModelOptions,
    data: str,
    *,
    address: Words = (),
    columns: Columns | None = None,
    method: Literal["logistic", "ridge"] = "logistic",
    position: Literal["last", "mean"] | None = None,
    shuffles: int = 5,
    seed: int = 0,
    truncate: bool = False,
    out: Path | None = None,
) -> CommandOutput:
    """Fits linear probes of the labels of texts, beside the same fits on shuffled labels.

    data DATA: a file of texts and labels: TSV, CSV or JSONL
    address PATTERN: names of values to probe (the residual stream); may be repeated
    method METHOD: logistic or ridge regression, by scikit-learn (logistic)
    position WHERE: read the last token of a text or the mean of all (last; of an encoder mean)
    shuffles N: fits on shuffled labels
    out FILE.safetensors: save the probe with its directions, for --edit and serve --direction
    json: every number as JSON
    """
    from ..sight import probe
    from ..tasks.objectives import Classify

    path = out and new_file(out, data)
    need(not path or path.suffix == ".safetensors", f"--out {path} must end in .safetensors.")
    table = read_examples(data, None, Classify(), columns)
    need(
        all(example.second is None for example in table.examples),
        f"{table.name} has pairs of texts; a probe reads one text.",
    )
    texts = [example.first for example in table.examples]
    labels = [(table.labels or ())[int(example.label or 0)] for example in table.examples]
    model, tokenizer = options.load_with_tokenizer()
    options.note_untrained()
    result = probe(
        model,
        tokenizer,
        texts,
        labels,
        addresses=address,
        position=position,
        method=method,
        shuffles=shuffles,
        seed=seed,
        truncate=truncate,
        data=table.name,
        progress=is_terminal(),
    )
    if path:
        result.save(path)
        note(f"{path} holds the probe; its best address is {result.best}.")
    return CommandOutput(result.to_dict, [result.origin(), *result.table()])
