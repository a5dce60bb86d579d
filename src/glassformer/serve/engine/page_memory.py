"""Memory that an engine for a model needs and may take, checked before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ...core.errors import need
from ...core.memory import available_memory, gibibytes
from ...core.nn import Cache, Memory, Model
from ...core.nn.cache import KV, MixerState
from ...core.nn.model import inference
from ...fast import kernels
from ...fast.batch_invariant_moe import batch_invariant_moe
from ...fast.fused import fuse
from ...fast.kernels import PAGE
from ...fast.paged import PagedCache
from ...fast.prepacked import prepack
from ...formats.mapped import check_now
from .runner import PagedRunner, StateRunner
from .scheduler import PagePool, Windows

PROBED_TOKENS = 16  # more than any convolution of a mixer reaches back


@dataclass
class MemoryPlan:
    """The longest ``context``, the pages of ``pool`` (``size`` tokens each; a recurrent state is
    one), and their bytes.

    The ``first`` tokens of a sequence go into one forward pass; ``rewinds``: wrong guesses can be
    taken back.
    """

    model: Model  # its products by prepacked weights, where they pay
    context: int
    sequences: int
    pool: PagePool
    source_pages: int
    size: int
    nbytes: int
    first: int = 0
    copied: int = 0  # bytes of prepacked weights
    windows: Windows | None = None
    page_bytes: tuple[int, int] = (1, 0)  # of a page, and of its part in layers with windows

    @property
    def pools(self) -> list[tuple[PagePool, int]]:
        """Pools whose pages take memory, each with the bytes of a page."""
        windows = [] if self.windows is None else [(self.windows.pool, self.page_bytes[1])]
        return [(pool, size) for pool, size in [(self.pool, self.page_bytes[0]), *windows] if size]

    @property
    def rewinds(self) -> bool:
        """True where computed tokens can be dropped: pages can, recurrent states cannot."""
        return self.size == PAGE

    def __str__(self) -> str:
        counts = (
            [f"{len(self.pool.users)} pages of {self.size} tokens"] if self.page_bytes[0] else []
        )
        if self.windows is not None:
            count = len(self.windows.pool.users)
            span = self.windows.span
            counts.append(f"{count} of layers with windows of {span}")
        contents = " and ".join(counts) if self.rewinds else "a state a text"
        texts = f"at most {self.sequences} texts of {self.context:,} tokens at once"
        copied = f" and {gibibytes(self.copied)} for prepacked weights" if self.copied else ""
        return f"{gibibytes(self.nbytes)} for {contents}{copied}; {texts}."

    def runner(self) -> PagedRunner | StateRunner:
        """A runner of the model over these pages."""
        if not self.rewinds:
            return StateRunner(self.model)
        cfg = self.model.config
        pages = (len(self.pool.users), self.source_pages)
        near = None if self.windows is None else len(self.windows.pool.users)
        cache = PagedCache(cfg, self.context, *pages, page_dtype(self.model), near)
        return PagedRunner(self.model, cache, self.source_pages, self.windows)


def by_kernels(model: Model) -> bool:
    """True where the C kernels compute for this model: on a CPU."""
    return next(model.parameters()).device.type == "cpu"


def page_dtype(model: Model) -> torch.dtype:
    """Dtype of cached keys and values."""
    dtype = next(model.parameters()).dtype
    return dtype if dtype == torch.bfloat16 else torch.float32


def page_bytes(model: Model) -> tuple[int, int, int]:
    """``PagedCache.page_bytes`` of a model."""
    cfg = model.config
    return PagedCache.page_bytes(cfg, page_dtype(model))


def prepacked_view(model: Model) -> tuple[Model, int]:
    """A view of the model that reads prepacked weights, in a quarter of the free memory, and the
    bytes that it takes.

    By our own kernels where they are compiled: then a row's bits depend on no other row. Raises
    UserError for weights that are not finite.
    """
    if model.training:
        return model, 0
    check_now(model)  # a hook that waits at a block would keep it from being fused
    if not by_kernels(model):
        return model, 0
    free = available_memory()
    compiled = kernels.path() != "torch"
    room = None if free is None else free // 4
    view = prepack(model, room, exact=compiled)
    taken = sum(packed.group.nbytes for packed in view.packed)
    if not compiled:
        return fuse(view.model), taken
    exact, more = batch_invariant_moe(view.model, None if room is None else room - taken)
    return fuse(exact), taken + more


def plan_memory(
    model: Model,
    context: int | None,
    sequences: int,
    memory: int | None,
    step_tokens: int = 512,
) -> MemoryPlan:
    """The room that so many texts of that length at once need, or as much of it as ``memory``
    (bytes) holds.

    Layers with windows get pages of their own where they need fewer than all, read ``step_tokens``
    at a time.
    """
    cfg = model.config
    most = model.context
    need(sequences >= 1, f"max_sequences is {sequences}; give 1 or more.")
    need(context is None or 1 <= context <= most, f"max_context is {context}; give 1 to {most}.")
    context = context or most
    model, copied = prepacked_view(model)
    stack: Any = cfg.stacks.get("decoder")
    attentions = stack.attentions if stack else []
    first = max((attention.mask.prefix_length for attention in attentions), default=0)
    if not _has_pages(model):
        text_bytes = 0 if cfg.is_encoder else state_bytes(model, context, first)
        sequences = _fit_states(context, sequences, text_bytes, memory, model)
        size, nbytes = context + 1, sequences * text_bytes
        plan = MemoryPlan(model, context, sequences, PagePool(sequences), 0, size, nbytes)
        return replace(plan, first=first, copied=copied, page_bytes=(text_bytes or 1, 0))
    crosses = [block.cross for block in stack.pattern if block.cross is not None]
    dims = [attention.width(cfg.dim) for attention in (*attentions, *crosses)]
    need(
        not any(dim % 2 for dim in dims),
        "The engine needs heads of an even width; use glassformer.generate for this model.",
    )
    full_bytes, window_bytes, cross_bytes = page_bytes(model)
    span = max((attention.mask.lookback or 0 for attention in attentions), default=0)
    needs = page_needs(context, sequences, span, max(step_tokens, first, sequences))
    least, least_window_pages, most_window_pages = needs
    if not window_bytes or least_window_pages == least:
        full_bytes = full_bytes + window_bytes
        window_bytes = 0
        least_window_pages = 0
    if memory is None:
        free = available_memory(next(model.parameters()).device)
        usual_bytes = (
            full_bytes + cross_bytes
        ) * least * sequences + window_bytes * most_window_pages
        memory = usual_bytes if free is None else free // 2
    sources = 0
    if cross_bytes:
        sequences = min(sequences, max(1, memory // 2 // (cross_bytes * least)))
        sources = least * sequences
    memory_left = memory - sources * cross_bytes
    pages, window_pages = fit_pages(needs, sequences, full_bytes, window_bytes, memory_left)
    need(
        pages >= least and window_pages >= least_window_pages,
        f"One text of {context:,} tokens needs "
        f"{gibibytes((full_bytes + cross_bytes) * least + window_bytes * least_window_pages)}, "
        f"and {gibibytes(memory)} are there for it; give a smaller max_context, or more memory.",
    )
    pool = PagePool(pages)
    return MemoryPlan(
        model,
        context,
        sequences,
        pool,
        sources,
        PAGE,
        nbytes=pages * full_bytes + window_pages * window_bytes + sources * cross_bytes,
        first=first,
        copied=copied,
        windows=Windows(pool, PAGE, span, window_pages) if window_bytes else None,
        page_bytes=(full_bytes, window_bytes),
    )


def state_bytes(model: Model, context: int, first: int) -> int:
    """Bytes that a cache of one text of ``context`` tokens takes at most, states and buffers, as two
    passes over a few tokens leave them. What grows from one to the other grows with every token."""
    device = next(model.parameters()).device
    count = max(first, 1, min(PROBED_TOKENS, context // 2))
    tokens = torch.zeros(1, count, dtype=torch.long, device=device)
    cache = Cache(model.config)
    sizes = list[tuple[int, int]]()
    extras: dict[str, Memory] = {}
    with inference(model):
        if model.config.has_source:
            extras["memory"] = model.encode(tokens)
        for _ in range(2 if 2 * count <= context else 1):
            last = torch.tensor([count - 1], device=device)
            model(tokens, cache=cache, logits=last, **extras)
            states = [state for state, _ in cache.layers if isinstance(state, MixerState)]
            held_bytes = sum(tensor.nbytes for state in states for tensor in state.tensors)
            sizes.append((cache.length, held_bytes))
    (length, held_bytes) = sizes[0]
    (longer, more) = sizes[-1]
    growth = (more - held_bytes) / max(1, longer - length)
    total = more + max(0.0, growth) * (context - longer)
    for kv, cross in cache.layers:
        if isinstance(kv, KV) and kv.k.ndim == 4:
            buffers = kv.k.nbytes + kv.v.nbytes
            # a buffer doubles when it is full
            total += buffers if kv.slots.ring else buffers / kv.k.shape[2] * 2 * context
        if cross.kv is not None:
            total += sum(x.nbytes for x in cross.kv) / count * context
    total += sum(memory.hidden.nbytes for memory in extras.values()) / count * context
    return int(total)


def _fit_states(
    context: int, sequences: int, text_bytes: int, memory: int | None, model: Model
) -> int:
    """Number of texts whose states of ``text_bytes`` bytes fit. Raises UserError where not even one does."""
    if memory is None:
        free = available_memory(next(model.parameters()).device)
        memory = sequences * text_bytes if free is None else free // 2
    need(
        text_bytes <= memory,
        f"The state of one text of {context:,} tokens needs {gibibytes(text_bytes)}, and "
        f"{gibibytes(memory)} are there for it; give a smaller max_context, or more memory.",
    )
    return min(sequences, memory // text_bytes) if text_bytes else sequences


def _has_pages(model: Model) -> bool:
    """True where all that a decoder keeps of a text are keys and values, which our kernels read:
    on a CPU."""
    stack = model.config.stacks.get("decoder")
    if stack is None or not by_kernels(model):
        return False
    attentions = stack.attentions
    readable = all(getattr(attention, "has_pages", True) for attention in attentions)
    return readable and len(attentions) == len(stack.pattern)


def page_needs(context: int, sequences: int, span: int, step: int) -> tuple[int, int, int]:
    """Pages that a sequence of ``context`` tokens needs at most; window pages that it needs, where
    a token sees ``span`` and at most ``step`` are computed at a time; and those that all sequences
    can use, with a surplus that keeps prompts which begin alike."""
    each = -(-context // PAGE)
    reach = span + PAGE - 3  # of n tokens anywhere at most (n - 2) // PAGE + 2 pages hold some
    window_pages = min(each, (reach + step) // PAGE + 1)
    return (
        each,
        window_pages,
        min(sequences * each, 2 * (sequences * (reach // PAGE + 2) + step // PAGE)),
    )


def fit_pages(
    needs: tuple[int, int, int],
    sequences: int,
    page_nbytes: int,
    window_page_nbytes: int,
    memory: int,
) -> tuple[int, int]:
    """Numbers of pages of ``page_nbytes`` and of window pages of ``window_page_nbytes``: equally many,
    until all window pages fit."""
    each, window_pages, most_window_pages = needs
    most = each * sequences
    if not window_page_nbytes:
        return min(most, memory // page_nbytes), 0
    window_pages = max(
        window_pages, min(most_window_pages, memory // (page_nbytes + window_page_nbytes))
    )
    if not page_nbytes:  # a page is a number
        return most + window_pages, min(window_pages, memory // window_page_nbytes)
    if (memory - window_pages * window_page_nbytes) // page_nbytes < each:
        window_pages = (memory - each * page_nbytes) // window_page_nbytes
    return min(most, (memory - window_pages * window_page_nbytes) // page_nbytes), window_pages
