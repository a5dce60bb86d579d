"""Many tokens of one session: on a CPU, weights in the order its kernels read fastest, where memory
has room, and blocks in C over keys in pages (fused.py)."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..core.generation.session import Session
from ..core.memory import available_memory
from ..core.nn import Cache
from .fused import FusedStack, fuse, supports_model
from .page_pool import SearchPages
from .paged_rows import PagedRows
from .prepacked import View, prepack
from .prepacked import packable as packable


def prepare(session: Session, steps: int) -> None:
    """Set the session's ``view``, and before ``steps`` tokens after the prompt its ``paged`` rows.

    For a prompt only copies that an earlier session left are compared and used.
    """
    model, view = session.model, session.view
    if next(model.parameters()).device.type != "cpu":
        return
    exact = session.plain and supports_model(model)
    if not isinstance(view, View) or not view.complete:
        room = available_memory() if steps else 0
        view = prepack(model, None if room is None else room // 2, exact=exact)
    if steps and exact and session.paged is None:
        fused = fuse(view.model)
        if isinstance(fused.decoder, FusedStack):
            view = replace(view, model=fused)
            rows, pos = len(session.cache.layers[0][0].k), session.pos
            after = torch.full((rows,), session.cache.length) if pos is None else pos[:, 0]
            session.paged = PagedRows(
                fused,
                session.cache,
                after,
                steps,
                session.memory,
                session.source_of,
                SearchPages(model) if session.search else None,
            )
            session.cache, session.memory = Cache(model.config), None
    session.view = view
