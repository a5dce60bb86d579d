"""Documents side by side in rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .data import Array, Batch


def side_by_side(
    sources: Sequence[Sequence[Array]], targets: Sequence[Sequence[Array]], start: int, context: int
) -> Batch:
    """Sources in rows of ``context`` and their targets, given to the decoder after ``start`` and as narrow as fits."""
    written = [[np.append(start, target[:-1]) for target in row] for row in targets]
    step = max(8, context // 16)  # few different widths
    width = -(-max(sum(map(len, row)) for row in targets) // step) * step
    pos, document_ids = _numbered(targets, width)
    source_pos, source_document_ids = _numbered(sources, context)
    return Batch(
        _padded(written, width, 0),
        _padded(targets, width, -1),
        pos,
        document_ids,
        _padded(sources, context, 0),
        source_pos,
        source_document_ids,
    )


def _padded(rows: Sequence[Sequence[Array]], width: int, fill: int) -> torch.Tensor:
    """Rows of documents side by side (B, width)."""
    whole = np.full((len(rows), width), fill, np.int64)
    for row, parts in zip(whole, rows, strict=True):
        at = 0
        for part in parts:
            row[at : at + len(part)] = part
            at += len(part)
    return torch.from_numpy(whole)


def _numbered(rows: Sequence[Sequence[Array]], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The positions and the document numbers of such rows."""
    pos = [[np.arange(len(part)) for part in row] for row in rows]
    document_ids = [[np.full(len(part), number) for number, part in enumerate(row)] for row in rows]
    return _padded(pos, width, -1), _padded(document_ids, width, -1)
