"""What every cell of the site finds: the library, torch, a trained model of ours, tables, pictures,
small trainings."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads do not live through a fork

import numpy as np
import torch

import glassformer
from glassformer import config
from glassformer import families as recipes
from glassformer.scale.cost import cost
from glassformer.sight.figures.charts import Curves, Heat

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"

# two pages are read at once; and the numbers are those of any machine's one thread
torch.set_num_threads(1)
torch.set_printoptions(precision=4, sci_mode=False, linewidth=110)


class Absent(Exception):
    """A cell needs something that is not here; the page says what, and goes on."""


def seed() -> None:
    """What a page begins with: the same draws, whichever page came before it."""
    torch.manual_seed(0)


def cache(make: Any) -> Any:
    """``functools.cache`` of what draws for itself: whoever asks first, the page's own draws stay
    where they are."""

    @functools.cache
    def made(*given: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            seed()
            return make(*given)

    return functools.wraps(make)(made)


@cache
def small() -> tuple[Any, Any]:
    """The model that the package ships (four blocks, trained on Shakespeare's plays), and its
    tokenizer."""
    from glassformer.serve.page.models import shipped

    return glassformer.load(shipped(), dtype=torch.float32)


@cache
def seen(text: str) -> Any:
    """The shipped model's trace of a text: the same one, and so one file of the site, on every page
    that asks."""
    return glassformer.trace(*small(), text)


@cache
def pretrained(name: str) -> tuple[Any, Any]:
    """A model of the data folder, as stories260K, and its tokenizer."""
    return glassformer.load(data(name), dtype=torch.float32)


def data(name: str) -> Path:
    """A folder beside the checkout that users download; Absent where it is not here."""
    return DATA / name if (DATA / name).exists() else refuse(name)


def refuse(name: str) -> Any:
    """What stands for the data folder where there is none."""
    raise Absent(f"the folder {name}")


@cache
def tokenizer_of(name: str) -> Any:
    """A published tokenizer of the data folder, as tok-llama3."""
    from glassformer.formats import tokenizer_files

    return tokenizer_files.open(data(name))


def worded(one: Any) -> bool:
    """Whether a cell holds words, not a number with what belongs to it (3 %, 1.2 to 1.4, -5)."""
    return isinstance(one, str) and not any(sign.isdigit() for sign in one[:3])


def spaced(text: str) -> str:
    """Percent as the pages write it: 34 %, which no line's end parts."""
    return re.sub(r"(?<=\d) ?%", "\N{NO-BREAK SPACE}%", text)


class Table:
    """A table that shows itself: columns of numbers to the right, of words to the left."""

    def __init__(self, heading: Sequence[Any], rows: Sequence[Sequence[Any]], digits: int) -> None:
        self.heading, self.rows, self.digits = heading, rows, digits

    def _said(self, one: Any) -> str:
        if isinstance(one, torch.Tensor):
            one = one.item()
        if isinstance(one, float):
            return f"{one:.{self.digits}f}"
        return escape(f"{one:,}" if type(one) is int else spaced(str(one)))

    def _repr_html_(self) -> str:
        text = [
            all(worded(row[at]) for row in self.rows if at < len(row))
            for at in range(len(self.heading))
        ]
        marks = [' class="words"' if one else "" for one in text] + [""] * max(
            map(len, self.rows), default=0
        )

        def line(tag: str, row: Sequence[Any]) -> str:
            return "".join(
                f"<{tag}{mark}>{self._said(one)}</{tag}>"
                for one, mark in zip(row, marks, strict=False)
            )

        head, body = (
            line("th", self.heading),
            "".join(f"<tr>{line('td', row)}</tr>" for row in self.rows),
        )
        whole = (
            f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        )
        return f'<div class="scroll" tabindex="0">{whole}</div>'


def table(heading: Sequence[Any], rows: Sequence[Sequence[Any]], digits: int = 4) -> Table:
    """Rows as a table; a tensor of one number is a number."""
    return Table(heading, rows, digits)


class Picture:
    """A chart that shows itself, with its title below, which also tells who does not see it."""

    def __init__(self, chart: Any, told: str) -> None:
        self.chart, self.told = chart, escape(told)

    def _repr_html_(self) -> str:
        drawn = self.chart.drawing().svg().replace("<svg ", '<svg aria-hidden="true" ', 1)
        figure = (
            '<div role="img" tabindex="0" '
            f'aria-label="{self.told}">{drawn}</div><figcaption>{self.told}</figcaption>'
        )
        return f'<figure class="picture">{figure}</figure>'


def heat(
    title: str,
    values: Any,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    signed: bool = False,
) -> Picture:
    """Numbers as colours (darker is more); ``signed`` has zero in the middle."""
    found = np.asarray(
        values.detach().float() if isinstance(values, torch.Tensor) else values, dtype=np.float64
    )
    return Picture(Heat("", found, list(rows), list(columns), signed=signed), title)


class Boxes:
    """Boxes in a row, an arrow between each two: the way through a model."""

    def __init__(self, boxes: Mapping[str, str]) -> None:
        self.boxes = boxes

    def drawing(self) -> Boxes:
        return self

    def svg(self) -> str:
        drawn, step = [], 150
        for at, (name, below) in enumerate(self.boxes.items()):
            x = at * step
            drawn.append(
                f'<rect x="{x + 1}" y="1" width="124" height="56" rx="6" fill="none" '
                f'stroke="currentColor"/><text x="{x + 63}" y="25" font-weight="bold">'
                f'{escape(name)}</text><text x="{x + 63}" y="44">{escape(below)}</text>'
            )
            if at:
                drawn.append(
                    f'<path d="M{x - 23} 29h20m-6 -5l6 5l-6 5" fill="none" stroke="currentColor"/>'
                )
        width = step * len(self.boxes) - 24
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 58" font-size="12" '
            f'text-anchor="middle" fill="currentColor" style="max-width:100%">{"".join(drawn)}</svg>'
        )


def flow(title: str, boxes: Mapping[str, str]) -> Picture:
    """The parts of a model in a row: name -> what it does."""
    return Picture(Boxes(boxes), title)


def curves(title: str, lines: Mapping[str, Sequence[float]], every: int = 1) -> Picture:
    """Lines over steps: name -> numbers, one for each step (or each ``every`` steps)."""
    drawn = {
        name: ([every * (at + 1) for at in range(len(line))], list(line))
        for name, line in lines.items()
    }
    return Picture(Curves("", drawn), title)


@cache
def lesson(vocab: int = 512, kilobytes: int = 400) -> tuple[Any, Any, Any]:
    """A small text for trainings on these pages, Python's own documentation: its tokenizer, to
    learn from, held out."""
    from glassformer import data as corpora
    from glassformer import tokenizer

    texts, size = [], 0
    for text in corpora.find("python-docs").texts():
        texts.append(text)
        size += len(text)
        if size > 1000 * kilobytes:
            break
    bpe = tokenizer.train("bpe", iter(texts), vocab)
    whole = "\n".join(texts)
    ids = bpe.encode(whole)
    return bpe, ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]


def rows_of_text(
    model: Any, batch: int = 8, seed: int = 0, ids: Any = None
) -> Callable[[], tuple[Any, Any]]:
    """What draws rows of the lesson's text (or of ``ids``) and the tokens that follow each."""
    ids, width = torch.tensor(lesson()[1]) if ids is None else ids, model.config.context
    draws = torch.Generator().manual_seed(seed)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        begins = torch.randint(len(ids) - width - 1, (batch,), generator=draws).tolist()
        rows = torch.stack([ids[begin : begin + width + 1] for begin in begins])
        return rows[:, :-1], rows[:, 1:]

    return draw


def trained(
    model: Any,
    draw: Any = None,
    steps: int = 150,
    rate: float = 3e-3,
    warmup: int = 0,
    balance: bool = False,
) -> list[float]:
    """The loss of each step of AdamW on what ``draw`` gives (None: text); the model is trained in
    place."""
    draw = draw or rows_of_text(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
    losses = []
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / warmup if warmup else 1.0)
        tokens, targets = draw()
        # a target and its source
        output = model(*tokens) if isinstance(tokens, tuple) else model(tokens)
        loss = torch.nn.functional.cross_entropy(
            output.logits.flatten(0, 1), targets.flatten(), ignore_index=-1
        )
        loss = loss + sum(output.aux.values()) if balance else loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses


@torch.no_grad()
def held_out(model: Any) -> float:
    """The mean loss a token on the lesson's held-out text."""
    _, _, rest = lesson()
    width = model.config.context
    ids = torch.tensor(rest[: (len(rest) - 1) // width * width + 1])
    logits = model(ids[:-1].view(-1, width)).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[1:]))


def model_of(
    changes: Mapping[str, Any] | None = None, shape: str = "decoder", seed: int = 0
) -> Any:
    """A decoder or encoder to train on a page: two blocks, 64 wide, 64 tokens; its settings changed
    by their path."""
    from glassformer.core.config.serial import change
    from glassformer.core.nn import build_model

    base = {"embed.vocab": 512, "dim": 64, "context": 64, f"{shape}.depth": 2}
    base |= {f"{shape}.pattern.attention.heads": 4, f"{shape}.pattern.feedforward.hidden": 256}
    if shape == "decoder":
        base["embed.previous_token_embeddings"] = 0
    recipe = recipes.find("glass/1m" if shape == "decoder" else "glass/encoder-1m")
    return build_model(change(recipe, {**base, **(changes or {})}), seed=seed)


def smooth(line: Sequence[float], over: int = 10) -> list[float]:
    """The mean of each ``over`` numbers and those before them."""
    return [float(np.mean(line[max(0, at - over + 1) : at + 1])) for at in range(len(line))]


__all__ = [
    "DATA",
    "config",
    "cost",
    "curves",
    "data",
    "flow",
    "glassformer",
    "heat",
    "held_out",
    "lesson",
    "math",
    "model_of",
    "np",
    "pretrained",
    "recipes",
    "rows_of_text",
    "seen",
    "small",
    "smooth",
    "table",
    "tokenizer_of",
    "torch",
    "trained",
]
