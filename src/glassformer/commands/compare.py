"""``glassformer compare``: several run files on the same data under one budget, one table and one
picture.

DIR/  NAME/ (a run folder each)   comparison.json   comparison.png
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import need, note
from ..inspection import tables
from . import eval as evaluate
from .common import add_device_options, print_json
from .parsing import Parser
from .train import write_sample
from .words import learn_labels

EXAMPLES = ("glassformer compare a.toml b.toml --minutes 5",)
EPILOG = "The runs are trained one after the other; what is finished is not done again."
BAG = "bag-of-words"


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN.toml", help="run files with the same data and objective")
    add(
        "--minutes",
        type=float,
        metavar="M",
        help="train each for about so long, validation not counted",
    )
    add(
        "--tokens", type=int, metavar="N", help="train each on so many tokens, rows counted as full"
    )
    add(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=V,...",
        help="each run with each value; may be repeated",
    )
    add(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="each N times, seeds counting on: mean and spread",
    )
    add("--bag", action="store_true", help="beside them, for labels: a bag of words (TF-IDF)")
    add("--out", default="out/compare", metavar="DIR", help="where the runs go (out/compare)")
    add("--json", action="store_true", help="the figures as JSON")
    add_device_options(parser)
    test = parser.add_argument_group(
        "a test set, read by the best checkpoint of each run: BLEU, or accuracy"
    ).add_argument
    test("--test", metavar="FILE", help="examples, or their sources")
    test("--target", metavar="FILE", help="the file with the right targets, line by line")
    test("--beams", type=int, default=5, metavar="K", help="width of the beam search (5)")
    test(
        "--lengths",
        type=evaluate.parse_lengths,
        default=[10, 15, 20],
        metavar="N,...",
        help="BLEU by length (10,15,20)",
    )


def run(args: argparse.Namespace) -> int | None:
    need(
        args.minutes is None or args.tokens is None,
        "Give --minutes or --tokens, not both: one budget for all.",
    )
    need(
        args.minutes is None or 0 < args.minutes < math.inf,
        f"--minutes is {args.minutes}; give more than 0.",
    )
    need(args.tokens is None or args.tokens > 0, f"--tokens is {args.tokens}; give more than 0.")
    need(bool(args.out), "--out is empty; name a folder.")
    need(
        args.target is None or args.test is not None,
        "--target goes with --test; name the file of the sources.",
    )
    need(args.seeds > 0, f"--seeds is {args.seeds}; give 1 or more.")
    from ..training import compare as training

    common = {name: value for name in ("device", "dtype") if (value := getattr(args, name))}
    arms = training.read_arms(args.runs, args.vary, common)
    settings = arms[0].settings
    check_test_set(args, settings)
    bag = [{"name": BAG, **bag_of_words(settings.data, args.test)}] if args.bag else []
    results: dict[str, list[dict[str, Any]]] = {}
    budget = {"minutes": args.minutes, "tokens": args.tokens}
    for ended in training.compare(
        arms, Path(args.out), **budget, seeds=args.seeds, sample=write_sample
    ):
        if ended.signal:
            return 128 + ended.signal
        if args.test is not None:
            evaluate_test_set(args, settings, ended)
        row = {"name": ended.name, **training.figures(ended.folder), **ended.record}
        results.setdefault(ended.arm.name, []).append(row)
    rows = [
        runs[0] if len(runs) == 1 else training.over_seeds(name, runs)
        for name, runs in results.items()
    ] + bag
    picture = draw_curves(rows, Path(args.out) / "comparison.png")
    if args.json:
        print_json(rows)
    else:
        print("\n".join(table_lines(rows)))
        note(picture)
    return None


def check_test_set(args: argparse.Namespace, settings: Any) -> None:
    """Refuse, before anything is trained, a test set or a bag of words that does not fit the runs
    or cannot be read."""
    from ..data import examples, registry
    from ..evaluation import metrics
    from ..training.objectives import Classify, Tag

    for name in (args.test, args.target):
        need(
            name is None or registry.locate(name).is_file(),
            f"{name} is not a file; give a file of examples.",
        )
    objective, data = settings.train.objective, settings.data
    bags = (
        isinstance(objective, Classify) and not objective.regression and isinstance(data.train, str)
    )
    fits = bags and isinstance(data.valid, str)
    need(fits or not args.bag, "--bag is for two files of texts and labels; leave it out.")
    need(
        objective.labelled or "target" in objective.example_fields or args.test is None,
        "--test is for translations and labels; leave it out.",
    )
    if (args.test is not None or args.bag) and not isinstance(objective, Tag):
        metrics.installed("sklearn" if isinstance(objective, Classify) else "sacrebleu")
    if args.test is not None and objective.labelled:
        examples.read_examples(args.test, objective, columns=data.columns)


def evaluate_test_set(args: argparse.Namespace, settings: Any, ended: Any) -> None:
    """Adds the test set's figures to the run's record, as ``glassformer eval`` computes them,
    unless it has them."""
    data = settings.data
    words = ["--data", args.test, "--json", *(["--before", data.prefix] if data.prefix else [])]
    columns = ",".join(f"{field}={column}" for field, column in data.columns.items())
    words += ["--columns", columns] if columns else []
    if "target" in settings.train.objective.example_fields:
        words += ["--target", args.target] if args.target else []
        words += [
            "--beams",
            str(args.beams),
            "--figures",
            "bleu",
            "--lengths",
            ",".join(map(str, args.lengths)),
        ]
        if data.tokenizer == "words":  # texts that were parted before, perhaps into pieces
            words += ["--tokenised", "--whole-words"]
    for name in ("device", "dtype"):
        words += [f"--{name}", value] if (value := getattr(args, name)) else []
    command = " ".join(words)
    if ended.record.get("asked") != command:
        eval_parser = Parser(prog="glassformer eval")
        evaluate.options(eval_parser)
        ended.record["test"] = evaluate.measure(eval_parser.parse_args([str(ended.folder), *words]))
        ended.record["asked"] = command


def bag_of_words(data: Any, test: str | None) -> dict[str, Any]:
    """A bag of words that learned the same labels, as a row like the others', without a curve."""
    from ..training.memory import peak_memory, reset_peak_memory

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
    """Returns the lines of the table, one row a run, the best validation first."""
    rows = []
    for result in sorted(results, key=lambda result: result["valid"]["loss"]):
        row, spread = {"run": result["name"]}, result.get("spread", {"valid": {}, "test": {}})
        for name, value in result["valid"].items():
            if isinstance(value, float):
                show, factor = (
                    (evaluate.format_number, 100.0)
                    if name == "accuracy"
                    else ("{:.4f}".format, 1.0)
                )
                row[f"valid {name}"] = format_cell(value, spread["valid"].get(name), show, factor)
        for name, value in result.get("test", {}).items():
            if name == "by length":
                apart = spread["test"].get(name, {})
                for group, figures in value.items():
                    row[f"bleu {group}"] = format_cell(
                        figures["bleu"], apart.get(group, {}).get("bleu")
                    )
            elif name != "texts":
                row[f"test {name}"] = format_cell(value, spread["test"].get(name))
        row["parameters"] = f"{result['parameters']:,}"
        row["tokens"] = f"{result['tokens']:,}"
        row["seconds"] = f"{result['seconds']:,.0f}"
        row["processor s"] = f"{result['processor']:,.0f}" if "processor" in result else "-"
        row["format"] = result.get("precision", "-")
        row["MiB"] = f"{result['peak'] / 2**20:,.0f}"
        rows.append(row)
    kinds = ("run", "valid", "test", "bleu")
    columns = dict.fromkeys(name for row in rows for name in row)
    names = sorted(
        columns,
        key=lambda name: kinds.index(name.split()[0]) if name.split()[0] in kinds else len(kinds),
    )
    return tables.lines(([row.get(name, "-") for name in names] for row in rows), names)


def format_cell(
    value: float,
    spread: float | None,
    show: Callable[[float], str] = evaluate.format_number,
    factor: float = 1.0,
) -> str:
    """A figure, with its standard deviation over seeds where there are several."""
    figure = show(value * factor)
    return figure if spread is None else f"{figure} ±{show(spread * factor)}"


def draw_curves(results: Sequence[Mapping[str, Any]], picture: Path) -> str:
    """Validation by tokens and by seconds, and the test's figure by length; one sentence on what
    became of it."""
    try:
        import matplotlib
    except ImportError:
        return "No picture of the curves: pip install matplotlib."
    matplotlib.use("Agg")
    from matplotlib import pyplot

    from .. import files

    lengths = [result for result in results if "by length" in result.get("test", {})]
    figure, panels = pyplot.subplots(
        1, 3 if lengths else 2, figsize=(14 if lengths else 10, 4.5), layout="tight"
    )
    for colour, result in enumerate(result for result in results if result["curve"]):
        for seed, run in enumerate(result.get("seeds", [result])):
            tokens, seconds, valid, train = zip(*run["curve"], strict=True)
            look: dict[str, Any] = {"color": f"C{colour}", "linewidth": 1, "markersize": 3}
            for axes, x, label in ((panels[0], tokens, "tokens"), (panels[1], seconds, "seconds")):
                axes.plot(x, valid, "o-", label=None if seed else result["name"], **look)
                axes.plot(
                    x,
                    [math.nan if loss is None else loss for loss in train],
                    ".:",
                    alpha=0.6,
                    **look,
                )
                axes.set(xlabel=label, ylabel="loss (nats): validation, and dotted training")
    for result in lengths:
        groups = result["test"]["by length"]
        panels[2].plot(
            list(groups),
            [figures["bleu"] for figures in groups.values()],
            "o-",
            label=result["name"],
        )
        panels[2].set(xlabel="words of the source", ylabel="BLEU")
    if panels[0].lines:
        panels[0].legend()
    files.write(picture, lambda beside: figure.savefig(beside, format="png", dpi=120))
    pyplot.close(figure)
    return f"The curves are in {picture}."
