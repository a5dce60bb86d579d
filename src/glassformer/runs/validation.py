"""A corpus in order, for validation: each of its tokens is asked for once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..core.errors import UserError
from ..core.training.batches import Batch, CorpusRows, as_batch, check_sizes
from ..core.training.shards import Shards


def every_token_once(
    shards: Shards, batch: int, context: int, stride: int | None = None
) -> Iterator[Batch]:
    """Each token that has a predecessor in its document is a target exactly once.

    ``stride`` below ``context`` gives each target at least ``context - stride`` tokens to look back
    on (where there are so many). The last batch may be smaller; rows are shorter when the corpus
    is.
    """
    check_sizes(batch, context)
    if len(shards) < 2:
        raise UserError(
            f"{shards.name} holds fewer than two tokens, so nothing can be "
            "predicted; give more text."
        )
    rows = CorpusRows(shards, min(context, len(shards) - 1))
    step = min(stride or rows.context, rows.context)
    for start in range(0, rows.last, batch * step):
        low = np.arange(start, min(start + batch * step, rows.last), step)
        yield as_batch([rows.load(low, np.minimum(low + step, rows.last))])
