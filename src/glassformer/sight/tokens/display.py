"""Tokens and traces in plain words, for a terminal and for a page."""

from __future__ import annotations

from ...core.tokenizer.vocabulary import bytes_by_letter
from ..labels import printed
from .segmentation import Match, Merge, Path, WordTrace


def steps(trace: WordTrace) -> list[str]:
    """Steps that segment a word, one a line, without control characters."""
    return ["".join(map(printed, line)) for line in _steps(trace)]


def _steps(trace: WordTrace) -> list[str]:
    pieces = " | ".join(trace.pieces)
    lines = [f'"{_word(trace)}" -> {pieces}   ids {" ".join(map(str, trace.ids))}']
    merges = [step for step in trace.steps if isinstance(step, Merge)]
    wide = max((len(f"{step.left} + {step.right}") for step in merges), default=0)
    if trace.algorithm == "BPE" and len(trace.start) > 1:
        lines.append(f"  begins as   {' '.join(trace.start)}")
    best: float | None = None
    for number, step in enumerate(trace.steps, 1):
        if isinstance(step, Merge):
            pair = f"{step.left} + {step.right}"
            lines.append(f"  rank {step.rank:>6,}  {pair:<{wide}}  {' '.join(step.pieces)}")
        elif isinstance(step, Match):
            outcome = (
                "none is an entry: the whole word is unknown"
                if step.piece is None
                else f"longest: {step.piece}"
            )
            lines.append(f'  "{step.rest}"  {step.tried} tried, {outcome}')
        elif isinstance(step, Path):
            best = step.score if best is None else best
            rank = "best " if number == 1 else "rival"
            less = "" if number == 1 else f"  ({step.score - best:.3f})"
            lines.append(f"  {rank} {step.score:9.3f}  {' '.join(step.pieces)}{less}")
    if trace.whole and trace.steps:
        last = trace.steps[-1]
        come = (
            "agree"
            if isinstance(last, Merge) and last.pieces == (trace.word,)
            else "do not reach it"
        )
        lines.append(f"  the whole word is an entry and is taken at once; merges {come}")
    return lines


def _word(trace: WordTrace) -> str:
    """The word as it was read, where it is written in the byte alphabet."""
    table = bytes_by_letter()
    if trace.algorithm != "BPE" or not all(letter in table for letter in trace.word):
        return trace.word
    try:
        return bytes(table[letter] for letter in trace.word).decode()
    except UnicodeDecodeError:
        return trace.word
