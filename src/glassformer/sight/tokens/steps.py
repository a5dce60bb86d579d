"""A trace in plain words, a line a step."""

from __future__ import annotations

from ...core.tokenizer.detokenizer import byte_level
from ..labels import printed
from .segmentation import Match, Merge, Path, WordTrace


def steps(trace: WordTrace) -> list[str]:
    """Steps that segment a word, one a line, without control characters."""
    return ["".join(map(printed, line)) for line in _steps(trace)]


def _steps(trace: WordTrace) -> list[str]:
    word = trace.word
    if trace.algorithm == "BPE":  # as it was read, where it is written in the byte alphabet
        word = byte_level(word, False).decode(errors="replace")
    pairs = [f"{step.left} + {step.right}" for step in trace.steps if isinstance(step, Merge)]
    wide = max(map(len, pairs), default=0)
    lines = [f'"{word}" -> {" | ".join(trace.pieces)}   ids {" ".join(map(str, trace.ids))}']
    if trace.algorithm == "BPE" and len(trace.start) > 1:
        lines.append(f"  begins as   {' '.join(trace.start)}")
    best: float | None = None
    for step in trace.steps:
        match step:
            case Merge(rank, left, right, pieces):
                pair = f"{left} + {right}"
                lines.append(f"  rank {rank:>6,}  {pair:<{wide}}  {' '.join(pieces)}")
            case Match(rest, tried, piece):
                outcome = "none is an entry: the whole word is unknown"
                lines.append(
                    f'  "{rest}"  {tried} tried, {f"longest: {piece}" if piece else outcome}'
                )
            case Path(pieces, score):
                label, behind = (
                    ("best ", "") if best is None else ("rival", f"  ({score - best:.3f})")
                )
                best = score if best is None else best
                lines.append(f"  {label} {score:9.3f}  {' '.join(pieces)}{behind}")
    match trace:
        case WordTrace(whole=True, steps=(*_, Merge(pieces=(last,)))) if last == trace.word:
            lines.append("  the whole word is an entry and is taken at once; merges agree")
        case WordTrace(whole=True, steps=(_, *_)):
            lines.append(
                "  the whole word is an entry and is taken at once; merges do not reach it"
            )
    return lines
