"""``glassformer probe``: what a linear function of each layer says of a text's label, and its
direction."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..core.errors import need, note
from .common import CommandOutput, is_terminal, new_file, progress_counter
from .options import Columns, Edits, ModelOptions, read_text
from .parsing import Whole, Words
from .sources import read_examples

EXAMPLES = (
    "glassformer probe tiny labels.tsv",
    "glassformer probe tiny reviews.jsonl --columns text=review,label=stars --out stars.safetensors",
    'glassformer probe tiny "A dull film." --read stars.safetensors',
)


def run(
    options: ModelOptions,
    data: str,
    *,
    address: Words = (),
    columns: Columns | None = None,
    method: Literal["logistic", "ridge"] = "logistic",
    position: Literal["last", "mean"] | None = None,
    penalty: float = 1.0,
    shuffles: int = 5,
    seed: int = 0,
    truncate: bool = False,
    out: Path | None = None,
    read: Path | None = None,
    toward: str | None = None,
    terms: Whole = 8,
    edit: Edits = (),
) -> CommandOutput:
    """Fits linear probes of the labels of texts, beside the same fits on shuffled labels.

    data DATA: a file of texts and labels (TSV, CSV or JSONL); with --read: a text
    address PATTERN: names of values to probe (the residual stream); may be repeated
    method METHOD: logistic or ridge regression, by scikit-learn (logistic)
    position WHERE: read the last token of a text or the mean of all (last; of an encoder mean)
    penalty P: weight of the squared coefficients (1)
    shuffles N: fits on shuffled labels
    out FILE.safetensors: save the probe with its directions, for --edit and serve --direction
    json: every number as JSON

    a saved probe: the score that it gives to a text, as the sum of its terms
    read FILE.safetensors: read the text DATA by this probe
    toward LABEL: the score of this label (the likeliest)
    terms N: show the N largest terms
    """
    from ..sight import Probe, probe

    if read is not None:
        need(out is None, "--read prints a score; leave --out out.")
        need(len(address) < 2, "--read takes one --address.")
        saved = Probe.load(read)
        model, tokenizer = options.load_with_tokenizer()
        at = address[0] if address else None
        score = saved.score(model, tokenizer, read_text(data), at=at, toward=toward, edits=edit)
        return CommandOutput(score.to_dict, score.lines(terms))
    need(not edit and toward is None, "--edit and --toward read a text by a saved probe: --read.")
    from ..tasks.objectives import Classify

    path = None if out is None else new_file(out, data)
    need(
        path is None or path.suffix == ".safetensors",
        f"--out {path} is no .safetensors; give a name that ends in it.",
    )
    table = read_examples(data, None, Classify(), columns)
    need(
        all(example.second is None for example in table.examples),
        f"{table.name} has pairs of texts; a probe reads one text.",
    )
    texts = [example.first for example in table.examples]
    labels = [(table.labels or ())[int(example.label or 0)] for example in table.examples]
    model, tokenizer = options.load_with_tokenizer()
    options.note_untrained()
    count = progress_counter("texts")
    result = probe(
        model,
        tokenizer,
        texts,
        labels,
        addresses=address,
        position=position,
        method=method,
        penalty=penalty,
        shuffles=shuffles,
        seed=seed,
        truncate=truncate,
        data=table.name,
        progress=is_terminal() or (lambda done, _: count(done)),
    )
    if path is not None:
        result.save(path)
        note(f"{path} holds the probe; its best address is {result.best}.")
    return CommandOutput(result.to_dict, [result.origin(), *result.table()])
