"""Lab sheets to print: problems for pen and pocket calculator, drawn for each student, with the
solutions for staff.

A problem draws small numbers and computes its answers with PyTorch or this library's own blocks.
What a student gets depends on the seed, the problem and the student's name alone.
"""

from __future__ import annotations

import hashlib
import html
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from ..core.errors import UserError, nearest

Table: TypeAlias = tuple[Sequence[str], Sequence[Sequence[str | float]]]
"""A heading and rows."""


@dataclass(frozen=True)
class Problem:
    """A problem of one student: what is asked, and the answer to each question with its points."""

    text: str
    tables: tuple[Table, ...]
    answers: tuple[tuple[str, str, int], ...]  # the question, the answer, points

    @property
    def points(self) -> int:
        return sum(points for *_, points in self.answers)


def attention(draw: random.Random) -> Problem:
    """One head with a causal mask, three tokens, queries, keys and values of two numbers."""
    import torch

    q, k, v = (
        torch.tensor([[draw.randint(-1, 2) for _ in range(2)] for _ in range(3)]).float()
        for _ in range(3)
    )
    scores = q @ k.T
    hidden = (scores / 2**0.5).masked_fill(torch.ones(3, 3).triu(1).bool(), float("-inf"))
    shares = hidden.softmax(-1)
    heading = ("token", "query", "", "key", "", "value", "")
    rows = [(f"{at + 1}", *q[at].tolist(), *k[at].tolist(), *v[at].tolist()) for at in range(3)]
    return Problem(
        "One attention head reads three tokens. A token sees itself and the tokens before it. "
        "Queries and keys have two numbers, so scores are divided by the square root of 2.",
        ((heading, rows),),
        (
            ("Scores of token 3 (query 3 times each key), before the division", _row(scores[2]), 2),
            ("Attention weights of token 2", _row(shares[1]), 3),
            ("Attention weights of token 3", _row(shares[2]), 3),
            ("Output of token 3", _row((shares @ v)[2]), 2),
        ),
    )


def norms(draw: random.Random) -> Problem:
    """LayerNorm and RMSNorm of four numbers, without gain, bias and epsilon."""
    import torch

    x = torch.tensor(draw.sample(range(-6, 7), 4)).float()
    normed = torch.nn.functional.layer_norm(x, (4,), eps=0.0)
    rms = torch.nn.functional.rms_norm(x, (4,), eps=0.0)
    return Problem(
        "A hidden state has four numbers. Gain is 1, bias and epsilon are 0.",
        ((("x1", "x2", "x3", "x4"), [x.tolist()]),),
        (
            ("Mean", _row(x.mean()), 1),
            ("Variance (divide by 4)", _row(x.var(correction=0)), 1),
            ("LayerNorm of x", _row(normed), 2),
            ("Root mean square", _row(x.square().mean().sqrt()), 1),
            ("RMSNorm of x", _row(rms), 2),
        ),
    )


def positions(draw: random.Random) -> Problem:
    """The sinusoidal embedding of one position, and a rotary rotation; angles in radians."""
    import torch

    place, turn = draw.randint(1, 9), draw.randint(1, 5)
    pair = torch.tensor([float(draw.randint(1, 4)), float(draw.randint(-4, -1))])
    angles = place * torch.tensor([1.0, 0.01])
    wave = torch.stack((angles.sin(), angles.cos()), -1).flatten()
    sin, cos = torch.tensor(float(turn)).sin(), torch.tensor(float(turn)).cos()
    rotated = torch.stack((pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos))
    return Problem(
        f"Calculate in radians. The model is four wide, so the frequencies are 1 and 1/100. "
        f"Rotary positions turn the query ({pair[0]:g}, {pair[1]:g}) at position {turn} with "
        "frequency 1.",
        (),
        (
            (f"Sinusoidal embedding of position {place} (sin, cos, sin, cos)", _row(wave), 4),
            (f"The query turned by {turn}", _row(rotated), 2),
            ("Length of the query before and after", _row(pair.norm()), 1),
        ),
    )


def loss(draw: random.Random) -> Problem:
    """Cross-entropy of one token, its perplexity and its gradient."""
    import torch

    logits = torch.tensor([float(draw.randint(-2, 4)) for _ in range(4)], requires_grad=True)
    target = draw.randrange(4)
    value = torch.nn.functional.cross_entropy(logits[None], torch.tensor([target]))
    value.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    words = ("cat", "dog", "sat", "ran")
    return Problem(
        f'A vocabulary has four words. The next word is "{words[target]}".',
        ((words, [logits.tolist()]),),
        (
            ("Softmax of the logits", _row(logits.softmax(-1)), 2),
            ("Cross-entropy loss (natural logarithm)", _row(value), 1),
            ("Perplexity", _row(value.exp()), 1),
            ("Gradient of the loss by each logit", _row(logits.grad), 2),
        ),
    )


def merges(draw: random.Random) -> Problem:
    """Three merges of byte pair encoding over four words; no count is a tie."""
    stems = ("low", "new", "hug", "pun", "bun", "run", "sun", "lug", "mug", "pug")
    while True:
        words = [stem + draw.choice(("", "s", "er", "est")) for stem in draw.sample(stems, 4)]
        counts = {word: draw.randint(2, 12) for word in sorted(set(words))}
        pieces = {word: list(word) for word in counts}
        steps = [step for _ in range(3) if (step := _merge(pieces, counts))]
        if len(steps) == 3:
            break
    return Problem(
        "Byte pair encoding starts from letters and merges the most frequent pair of neighbours.",
        ((("word", "count"), [*counts.items()]),),
        (
            *(
                (f"Merge {at + 1}", f"{a} + {b} ({count} times)", 2)
                for at, (a, b, count) in enumerate(steps)
            ),
            (f"Pieces of {max(counts, key=len)!r} then", " ".join(pieces[max(counts, key=len)]), 1),
        ),
    )


def _merge(pieces: dict[str, list[str]], counts: dict[str, int]) -> tuple[str, str, int] | None:
    """The most frequent pair, merged in ``pieces``; None where two are as frequent."""
    pairs: Counter[tuple[str, str]] = Counter()
    for word, tokens in pieces.items():
        for pair in pairwise(tokens):
            pairs[pair] += counts[word]
    frequent = pairs.most_common(2)
    if len(frequent) < 2 or frequent[0][1] == frequent[1][1]:
        return None
    best, count = frequent[0]
    for tokens in pieces.values():
        at = 0
        while at < len(tokens) - 1:
            if (tokens[at], tokens[at + 1]) == best:
                tokens[at : at + 2] = ["".join(best)]
            at += 1
    return *best, count


def decoding(draw: random.Random) -> Problem:
    """Greedy search and beam search of two over two words; the likeliest text is not the greedy
    one."""
    words = ("the", "a", "one")
    while True:
        first, *second = ([draw.randint(1, 17) for _ in range(2)] for _ in range(4))
        if not all(sum(row) < 20 for row in (first, *second)):
            continue
        start, *rows = ([*row, 20 - sum(row)] for row in (first, *second))
        if len(set(start)) < 3 or any(len(set(row)) < 3 for row in rows):
            continue
        greedy = max(range(3), key=start.__getitem__)
        least = min(range(3), key=start.__getitem__)
        joint = {(i, j): start[i] * rows[i][j] for i in range(3) for j in range(3)}
        beams = sorted((n for (i, _), n in joint.items() if i != least), reverse=True)
        best = max((pair for pair in joint if pair[0] != least), key=joint.__getitem__)
        if best[0] != greedy and beams[0] != beams[1]:
            break
    reply = max(range(3), key=rows[greedy].__getitem__)
    heading = ("after", *words)
    table: list[tuple[str | float, ...]] = [
        (after, *(n / 20 for n in row))
        for after, row in zip(("(start)", *words), (start, *rows), strict=True)
    ]
    return Problem(
        "A model writes two words. The table has the probability of each next word.",
        ((heading, table),),
        (
            ("The text of greedy search", f"{words[greedy]} {words[reply]}", 1),
            ("Its probability", f"{joint[greedy, reply] / 400:.4f}", 1),
            ("The best text of beam search with two beams", " ".join(words[at] for at in best), 2),
            ("Its probability", f"{joint[best] / 400:.4f}", 1),
        ),
    )


PROBLEMS: dict[str, Callable[[random.Random], Problem]] = {
    function.__name__: function
    for function in (merges, positions, attention, norms, loss, decoding)
}
"""The problems by name, in the order of the course."""


def problem(name: str, student: str, seed: int) -> Problem:
    """Draws a problem for a student.

    Args:
        name: One of ``PROBLEMS``.
        student: The student's name as it stands on the sheet.
        seed: The class's seed; the same three give the same problem.

    Returns:
        The problem with its answers.

    Raises:
        UserError: There is no problem of this name.
    """
    if name not in PROBLEMS:
        raise UserError(
            f'There is no problem "{name}".{nearest(name, PROBLEMS)} There are {", ".join(PROBLEMS)}.'
        )
    digest = hashlib.sha256(f"{seed}\n{name}\n{student}".encode()).digest()
    return PROBLEMS[name](random.Random(int.from_bytes(digest[:8])))


def print_sheets(names: Sequence[str], students: Sequence[str], seed: int, solved: bool) -> str:
    """Lays the sheets out as one HTML page to print, a sheet of paper for each student.

    Args:
        names: The problems, in order.
        students: The students' names.
        seed: The class's seed.
        solved: Whether the answers stand on the sheet.

    Returns:
        The page. It needs no other file.
    """
    sheets = []
    for student in students:
        problems = [(name, problem(name, student, seed)) for name in names]
        total = sum(item.points for _, item in problems)
        sections = [
            f"<h1>{html.escape(student)}</h1><p>{total} points. Three decimals will do.</p>"
        ]
        sections += [
            _section(at + 1, name, item, solved) for at, (name, item) in enumerate(problems)
        ]
        sheets.append(f"<article>{''.join(sections)}</article>")
    title = "Lab sheets, solved" if solved else "Lab sheets"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style>{''.join(sheets)}</html>\n"
    )


STYLE = (
    "body{font:11pt/1.4 serif;max-width:18cm;margin:1cm auto}article{break-after:page}"
    "table{border-collapse:collapse;margin:.3cm 0}td,th{border:1px solid;padding:2px 10px}"
    "section{break-inside:avoid}.line{display:inline-block;min-width:7cm;border-bottom:1px solid}"
)


def _section(number: int, name: str, item: Problem, solved: bool) -> str:
    tables = "".join(
        f"<table><tr>{_cells('th', heading)}</tr>"
        + "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
        + "</table>"
        for heading, rows in item.tables
    )
    questions = "".join(
        f"<li>{html.escape(question)} ({points})<br>"
        f"<span class=line>{html.escape(answer) if solved else '&nbsp;'}</span></li>"
        for question, answer, points in item.answers
    )
    heading = f"<h2>{number}. {name.capitalize()} ({item.points})</h2>"
    return (
        f"<section>{heading}<p>{html.escape(item.text)}</p>{tables}<ol>{questions}</ol></section>"
    )


def _cells(tag: str, row: Sequence[str | float]) -> str:
    texts = (html.escape(cell) if isinstance(cell, str) else f"{cell:g}" for cell in row)
    return "".join(f"<{tag}>{text}</{tag}>" for text in texts)


def _row(values: object) -> str:
    """Numbers of a tensor as they stand in an answer."""
    import torch

    assert isinstance(values, torch.Tensor)
    return ", ".join(
        f"{value + 0.0:.3f}".replace("-0.000", "0.000") for value in values.flatten().tolist()
    )
