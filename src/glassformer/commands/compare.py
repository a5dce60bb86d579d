"""``glassformer compare``: several run files on the same data under one budget, one table and one
picture.

DIR/  NAME/ (a run folder each)   comparison.json   comparison.png
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import need
from .common import text_table
from .eval import Evaluation, Lengths, format_number
from .options import DeviceOptions, ModelOptions
from .parsing import CommandOutput, Count, Words
from .train import write_sample
from .words import learn_labels

if TYPE_CHECKING:
    from ..sight.figures.charts import Curves

EXAMPLES = ("glassformer compare a.toml b.toml --minutes 5",)
EPILOG = "The runs train one after the other. Finished runs are not repeated."
BAG = "bag-of-words"


def run(
    runs: Words,
    options: DeviceOptions,
    *,
    minutes: float | None = None,
    tokens: Count | None = None,
    vary: Words = (),
    seeds: Count = 1,
    bag: bool = False,
    out: str = "out/compare",
    test: str | None = None,
    target: str | None = None,
    beams: int = 5,
    lengths: Lengths = (10, 15, 20),
) -> CommandOutput | int:
    """Trains several models on the same data under one budget.

    runs RUN.toml: run files with the same data and objective
    minutes M: train each model for about M minutes, validation not counted
    tokens N: train each model on N tokens, every row counted as full
    vary NAME=V,...: train each run with each value; may be repeated
    seeds N: train each N times with consecutive seeds, for mean and spread
    bag: add a bag of words (TF-IDF) as a baseline, for labels
    out DIR: the folder of the runs
    json: the figures as JSON

    a test set, read by the best checkpoint of each run: BLEU, or accuracy
    test FILE: examples, or only their sources
    target FILE: the reference targets, line by line
    beams K: width of the beam search
    lengths N,...: BLEU by length (10,15,20)
    """
    from ..runs.report import draw

    try:
        rows = compare(
            runs,
            minutes=minutes,
            tokens=tokens,
            vary=vary,
            seeds=seeds,
            bag=bag,
            out=out,
            test=test,
            target=target,
            beams=beams,
            lengths=lengths,
            device=options.device,
            dtype=options.dtype,
        )
    except Stopped as stopped:
        return stopped.code
    picture = draw(curves(rows), Path(out) / "comparison.png")
    return CommandOutput(rows, str(rows).split("\n"), ending=picture)


class Stopped(SystemExit):
    """A signal ended the training of a comparison; the same call goes on with it."""

    code: int


class Comparison(list[dict[str, Any]]):
    """The figures of each run. They print as a table, the best validation first."""

    def __str__(self) -> str:
        return "\n".join(table_lines(self))


def compare(
    runs: Sequence[str],
    *,
    minutes: float | None = None,
    tokens: int | None = None,
    vary: Sequence[str] = (),
    seeds: int = 1,
    bag: bool = False,
    out: str = "out/compare",
    test: str | None = None,
    target: str | None = None,
    beams: int = 5,
    lengths: Sequence[int] = (10, 15, 20),
    device: str | None = None,
    dtype: str | None = None,
) -> Comparison:
    """Trains several models on the same data under one budget, one after the other.

    Args:
        runs: Run files with the same data and objective.
        minutes: Train each for about so long, validation not counted.
        tokens: Train each on so many tokens, in place of ``minutes``.
        vary: Settings to vary, such as ``"decoder.depth=2,4"``: each run with each value.
        seeds: Train each so many times, seeds counting on.
        bag: Add a bag of words (TF-IDF) as a row, where the runs learn labels.
        out: The folder of the runs. What is finished there is not done again.
        test: A test set, read by the best checkpoint of each run.
        target: The file with its right targets, line by line.
        beams: Width of the beam search on the test set.
        lengths: Borders, in words, of the groups of sources whose BLEU is shown.
        device: The device of all runs; None as each run file says.
        dtype: The dtype of all runs; None as each run file says.

    Returns:
        A row of figures for each run: validation and test, parameters, tokens, seconds.

    Raises:
        UserError: The runs differ in data or objective, or ``out`` holds another comparison.

    Example:
        >>> print(glassformer.compare(["a.toml", "b.toml"], minutes=5))
    """
    need(
        minutes is None or tokens is None,
        "Give --minutes or --tokens, not both: all runs share one budget.",
    )
    need(
        minutes is None or 0 < minutes < math.inf,
        f"--minutes is {minutes}; give more than 0.",
    )
    need(bool(out), "--out is empty; name a folder.")
    need(
        target is None or test is not None,
        "--target goes with --test; name the file of the sources.",
    )
    from ..runs import compare as training

    device_options = {
        name: value for name, value in (("device", device), ("dtype", dtype)) if value
    }
    arms = training.read_arms(runs, vary, device_options)
    settings = arms[0].settings
    check_test_set(settings, test, target, bag)
    bags = [{"name": BAG, **bag_of_words(settings.data, test)}] if bag else []
    evaluation = None if test is None else test_evaluation(settings, test, target, beams, lengths)
    request = f"{evaluation} {device_options}"
    budget = {
        name: value
        for name, value in (("minutes", minutes), ("tokens", tokens))
        if value is not None
    }
    results: dict[str, list[dict[str, Any]]] = {}
    for arm, folder, record, signal in training.compare(
        arms, Path(out), budget, seeds=seeds, sample=write_sample
    ):
        if signal:
            raise Stopped(128 + signal)
        # the test set's figures, unless the run's record has them
        if evaluation is not None and record.get("asked") != request:
            model = ModelOptions(str(folder), **device_options)
            figures = evaluation.measure(*model.load_with_tokenizer(), model.run_objective())
            record.update(test=figures.value, asked=request)
        row = {"name": folder.name, **training.figures(folder), **record}
        results.setdefault(arm, []).append(row)
    rows = (
        runs[0] if len(runs) == 1 else training.over_seeds(name, runs)
        for name, runs in results.items()
    )
    return Comparison([*rows, *bags])


def check_test_set(settings: Any, test: str | None, target: str | None, bag: bool) -> None:
    """Refuse, before anything is trained, a test set or a bag of words that does not fit the runs
    or cannot be read."""
    from ..formats.data import catalog
    from ..tasks import examples
    from ..tasks.evaluation import metrics
    from ..tasks.objectives import Classify, Tag

    for name in (test, target):
        need(
            name is None or catalog.locate(name).is_file(),
            f"{name} is not a file; give a file of examples.",
        )
    objective, data = settings.train.objective, settings.data
    bags = (
        isinstance(objective, Classify) and not objective.regression and isinstance(data.train, str)
    )
    fits = bags and isinstance(data.valid, str)
    need(fits or not bag, "--bag is for two files of texts and labels; leave it out.")
    need(
        objective.labelled or "target" in objective.example_fields or test is None,
        "--test is for translations and labels; leave it out.",
    )
    if (test is not None or bag) and not isinstance(objective, Tag):
        metrics.installed("sklearn" if isinstance(objective, Classify) else "sacrebleu")
    if test is not None and objective.labelled:
        examples.read_examples(test, objective, columns=data.columns)


def test_evaluation(
    settings: Any, test: str, target: str | None, beams: int, lengths: Sequence[int]
) -> Evaluation:
    """Returns the evaluation of the test set, as ``glassformer eval`` computes it."""
    data = settings.data
    evaluation = Evaluation(data=test, before=data.prefix, columns=dict(data.columns))
    if "target" in settings.train.objective.example_fields:
        # texts that were parted before, perhaps into pieces
        parted = data.tokenizer == "words"
        return replace(
            evaluation,
            target=target,
            beams=beams,
            figures=("bleu",),
            lengths=tuple(lengths),
            tokenised=parted,
            whole_words=parted,
        )
    return evaluation


def bag_of_words(data: Any, test: str | None) -> dict[str, Any]:
    """A bag of words that learned the same labels, as a row like the others', without a curve."""
    from ..fast.training.allocator import peak_memory, reset_peak_memory

    reset_peak_memory()
    valid, *tests = (
        learn_labels(data.train, name, data.columns)[1] for name in (data.valid, test) if name
    )
    row = {
        "valid": {"loss": valid["loss"], "accuracy": valid["accuracy"] / 100},
        "parameters": valid["parameters"],
        "tokens": valid["read"],
        "seconds": valid["seconds"],
        "processor": valid["processor"],
        "peak": peak_memory(),
        "curve": [],
    }
    for figures in tests:
        scores = {name: figures[name] for name in ("accuracy", "f1", "matthews") if name in figures}
        row["test"] = {"texts": figures["examples"], **scores}
    return row


# ------------------------------------------------------------------------- the table, the picture


def table_lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the lines of the table, one row a run, the best validation first; a figure with its
    standard deviation over seeds where there are several."""
    rows = []
    for result in sorted(results, key=lambda result: result["valid"]["loss"]):
        row = {"run": result["name"]}
        spread = dict(table_figures(result.get("spread", {})))
        for name, figure in table_figures(result):
            plain = name.startswith("valid") and name != "valid accuracy"
            show = "{:.4f}".format if plain else format_number
            row[name] = show(figure) + (f" ±{show(spread[name])}" if name in spread else "")
        row["parameters"] = f"{result['parameters']:,}"
        row["tokens"] = f"{result['tokens']:,}"
        row["seconds"] = f"{result['seconds']:,.0f}"
        row["processor s"] = f"{result['processor']:,.0f}" if "processor" in result else "-"
        row["format"] = result.get("precision", "-")
        row["MiB"] = f"{result['peak'] / 2**20:,.0f}"
        rows.append(row)
    kinds = ("run", "valid", "test", "bleu")
    names = sorted(
        dict.fromkeys(name for row in rows for name in row),
        key=lambda name: (*kinds, name.split()[0]).index(name.split()[0]),
    )
    return text_table.lines(([row.get(name, "-") for name in names] for row in rows), names)


def table_figures(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The figures of validation and test by the names of their columns; accuracies in percent."""
    for name, value in result.get("valid", {}).items():
        if isinstance(value, float):
            yield f"valid {name}", value * (100 if name == "accuracy" else 1)
    for name, value in result.get("test", {}).items():
        if name == "by length":
            for group, figures in value.items():
                yield f"bleu {group}", figures["bleu"]
        elif name != "texts":
            yield f"test {name}", value


def curves(results: Sequence[Mapping[str, Any]]) -> Iterator[Curves]:
    """Validation, and training since the validation before, by tokens and by seconds; the test's
    figure by length."""
    from ..sight.figures.charts import Curves

    trained = [
        (result["name"] + (f" {seed}" if seed else ""), run["curve"])
        for result in results
        for seed, run in enumerate(result.get("seeds", [result]))
        if run["curve"]
    ]
    for loss, column in (("validation", 2), ("training", 3)):
        for x, unit in enumerate(("tokens", "seconds")):
            lines = {
                name: ([row[x] for row in curve], [row[column] for row in curve])
                for name, curve in trained
                if all(row[column] is not None for row in curve)
            }
            yield Curves(f"{loss} loss, nats", lines, unit, tuple(lines))
    lengths = {
        result["name"]: [group["bleu"] for group in result["test"]["by length"].values()]
        for result in results
        if "by length" in result.get("test", {})
    }
    if lengths:
        lines = {name: (list(range(1, len(bleu) + 1)), bleu) for name, bleu in lengths.items()}
        yield Curves("BLEU", lines, "group of source lengths, from the shortest", tuple(lines))
