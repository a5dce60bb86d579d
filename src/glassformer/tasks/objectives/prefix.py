"""The second part of each document, after a first part that is seen both ways.

text     Thank you for inviting|me to your party last week        targets  me to your party last week
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.config.serial import frozen
from ...core.errors import need
from .documents import SomeTokens, documents

if TYPE_CHECKING:
    from .documents import Batch


@frozen
class Prefix(SomeTokens):
    """The second part of each document, after a first part that is seen both ways (Raffel et al.
    2020, 3.2.1).

    Where it is cut is drawn anew each time, between the shares ``least`` and ``most`` of the
    document.
    """

    least: float = 0.1  # smallest share of a document that its prefix is
    most: float = 0.9  # largest share of a document that its prefix is

    def __post_init__(self) -> None:
        need(
            0 < self.least <= self.most < 1,
            "Prefix.least and most are shares between 0 and 1, least first.",
        )

    def prepare(self, batch: Batch, random: np.random.Generator, tokenizer: Any = None) -> Batch:
        """Cut each document in two: ``prefix`` before, targets only after. The prefix's last token
        predicts too."""
        import torch

        batch_documents = documents(batch)
        shares = random.uniform(self.least, self.most, len(batch_documents.lengths))
        cut = np.clip(
            np.rint(shares * batch_documents.lengths).astype(np.int64),
            1,
            np.maximum(batch_documents.lengths - 1, 1),
        )
        inside, place = batch_documents.of >= 0, batch_documents.place
        prefix = torch.from_numpy(inside & (place < cut[batch_documents.of]))
        has_target = torch.from_numpy(inside & (place >= cut[batch_documents.of] - 1))
        return dataclasses.replace(
            batch, prefix=prefix, targets=torch.where(has_target, batch.targets, -1)
        )
