"""What the host knows of rows that hold several documents: a device that were asked would be waited
for.

    tokens   a a a b b -      borders   0 3 5 6      of each row its documents, then its padding; some are empty
             c c d e e e                9 12 ..

B rows, T tokens, S stretches of a row: so many in each row.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class Packing:
    """Positions (B, T) and ``document_ids`` (B, T) in the host's memory, of rows whose tokens lie
    on a ``device``.

    ``borders`` (S + 1,) there, int32, say where stretches begin in all rows end to end: what varlen
    attention takes. None where they cannot say it: documents of a row that are not numbered in
    order, or whose positions do not count on. Both sides of packed pairs have theirs alike.
    """  # no tuple and no dataclass: FSDP2 would move what is in them to the device

    def __init__(
        self, pos: Tensor, document_ids: Tensor | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.pos, self.document_ids = pos, document_ids
        borders = None if document_ids is None else _borders(pos, document_ids)
        self.borders = None if borders is None else borders.to(device, non_blocking=True)


def _borders(pos: Tensor, document_ids: Tensor) -> Tensor | None:
    padding = (pos < 0) | (document_ids < 0)
    # a power of two: few shapes to compile for
    width = 1 << int(document_ids.max() + 1).bit_length()
    rows = torch.arange(len(pos))[:, None] * width
    stretch = rows + torch.where(padding, width - 1, document_ids)
    within = (stretch.diff() == 0) & ~padding[:, 1:]
    if (stretch.flatten().diff() < 0).any() or (pos.diff()[within] != 1).any():
        return None
    return F.pad(
        torch.bincount(stretch.flatten(), minlength=len(pos) * width).cumsum(0), (1, 0)
    ).int()
