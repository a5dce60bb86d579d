"""What a comparison found: a row of figures for each run, the mean and spread over seeds, a table, a picture."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .eval import number


def log(folder: Path) -> list[dict[str, Any]]:
    """A run's log."""
    from ..training.hooks import read_log

    return read_log(folder / "log.jsonl")


def facts(folder: Path) -> dict[str, Any]:
    """A run's figures: at its best validation, of which the checkpoint is kept, and over all."""
    from .. import config
    from ..config import serial
    from ..cost import cost

    lines = log(folder)
    seen = [line for line in lines if "valid" in line]
    best = min(seen, key=lambda line: line["valid"])
    tokens, seconds, curve = 0, 0.0, []
    losses: list[float] = []  # since the last validation
    for line in lines:
        tokens, seconds = tokens + line.get("tokens", 0), seconds + line.get("seconds", 0.0)
        losses += [line["loss"]] if "loss" in line else []
        if "valid" in line:
            curve.append((tokens, seconds, line["valid"], statistics.fmean(losses) if losses else None))
            losses = []
    figures = {name.removeprefix("valid_"): value for name, value in best.items() if name.startswith("valid")}
    said = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    whole = cost(serial.from_dict(config.Model, said["model"]))
    return {
        "valid": {"loss": figures.pop("valid"), **figures},
        "parameters": whole.total,
        "tokens": tokens,
        "seconds": seconds,
        "plan": said["plan"]["dtype"] + (", compiled" if said["plan"]["compile"] else ""),
        "curve": curve,
    }


def together(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row for several seeds: means, ``spread`` (standard deviations), the most memory; each run under ``seeds``."""

    def merged(values: Sequence[Any], what: Callable[[Sequence[float]], float]) -> Any:
        if isinstance(values[0], Mapping):
            return {key: merged([value[key] for value in values], what) for key in values[0]}
        return what(values) if isinstance(values[0], float) else values[0]

    figures = [{key: run[key] for key in ("valid", "test", "seconds") if key in run} for run in runs]
    row: dict[str, Any] = {"name": name, **runs[0], **merged(figures, statistics.fmean), "seeds": list(runs)}
    row["spread"] = merged([{"valid": one["valid"], "test": one.get("test", {})} for one in figures], statistics.stdev)
    return {**row, "name": name, "peak": max(run["peak"] for run in runs)}


def table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """One row a run, the best validation first."""
    ordered = sorted(results, key=lambda result: result["valid"]["loss"])
    rows = []
    for result in ordered:
        row, spread = {"run": result["name"]}, result.get("spread", {"valid": {}, "test": {}})
        for name, value in result["valid"].items():
            if isinstance(value, float):
                show, factor = (number, 100.0) if name == "accuracy" else ("{:.4f}".format, 1.0)
                row[f"valid {name}"] = cell(value, spread["valid"].get(name), show, factor)
        for name, value in result.get("test", {}).items():
            if name == "by length":
                apart = spread["test"].get(name, {})
                for group, figures in value.items():
                    row[f"bleu {group}"] = cell(figures["bleu"], apart.get(group, {}).get("bleu"))
            elif name != "texts":
                row[f"test {name}"] = cell(value, spread["test"].get(name))
        row["parameters"] = f"{result['parameters']:,}"
        row["tokens"] = f"{result['tokens']:,}"
        row["seconds"] = f"{result['seconds']:,.0f}"
        row["format"] = result.get("plan", "-")
        row["MiB"] = f"{result['peak'] / 2**20:,.0f}"
        rows.append(row)
    kinds = ("run", "valid", "test", "bleu")
    found = dict.fromkeys(name for row in rows for name in row)
    names = sorted(found, key=lambda name: kinds.index(name.split()[0]) if name.split()[0] in kinds else len(kinds))
    lines = [names, *([row.get(name, "-") for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]


def cell(value: float, spread: float | None, show: Callable[[float], str] = number, factor: float = 1.0) -> str:
    """A figure, with its standard deviation over seeds where there are several."""
    shown = show(value * factor)
    return shown if spread is None else f"{shown} ±{show(spread * factor)}"


def draw(results: Sequence[Mapping[str, Any]], picture: Path) -> str:
    """Validation by tokens and by seconds, and the test's figure by length; one sentence on what became of it."""
    try:
        import matplotlib
    except ImportError:
        return "No picture of the curves: pip install matplotlib."
    matplotlib.use("Agg")
    from matplotlib import pyplot

    from .. import files

    lengths = [result for result in results if "by length" in result.get("test", {})]
    figure, panels = pyplot.subplots(1, 3 if lengths else 2, figsize=(14 if lengths else 10, 4.5), layout="tight")
    for colour, result in enumerate(result for result in results if result["curve"]):
        for seed, run in enumerate(result.get("seeds", [result])):
            tokens, seconds, valid, train = zip(*run["curve"], strict=True)
            look: dict[str, Any] = {"color": f"C{colour}", "linewidth": 1, "markersize": 3}
            for axes, x, what in ((panels[0], tokens, "tokens"), (panels[1], seconds, "seconds")):
                axes.plot(x, valid, "o-", label=None if seed else result["name"], **look)
                axes.plot(x, [math.nan if loss is None else loss for loss in train], ".:", alpha=0.6, **look)
                axes.set(xlabel=what, ylabel="loss (nats): validation, and dotted training")
    for result in lengths:
        groups = result["test"]["by length"]
        panels[2].plot(list(groups), [figures["bleu"] for figures in groups.values()], "o-", label=result["name"])
        panels[2].set(xlabel="words of the source", ylabel="BLEU")
    if panels[0].lines:
        panels[0].legend()
    files.write(picture, lambda beside: figure.savefig(beside, format="png", dpi=120))
    pyplot.close(figure)
    return f"The curves are in {picture}."
