"""State of a request under way, and the engine's statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .beams import BeamSearch
from .generated_sequence import GeneratedSequence
from .pages import PagePool
from .request import RequestHandle, TokenLogprob, Usage
from .scheduler import TokenSequence


@dataclass
class Stats:
    """Current numbers of an engine (requests ``running`` and ``waiting``, pages) and totals since
    its start.

    Pages of layers with windows are counted beside the others; ``used_share`` is of the memory of
    all.
    """

    running: int = 0
    waiting: int = 0
    pages: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    pages_free: int = 0
    used_share: float = 0.0
    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    preempted: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def of_pages(self, pools: Sequence[tuple[PagePool, int]]) -> Stats:
        """A copy with the page counts of these pools, each with the bytes of a page."""
        share = sum(pool.in_use * size for pool, size in pools) / sum(
            len(pool.users) * size for pool, size in pools
        )
        return replace(
            self,
            pages_used=sum(pool.in_use for pool, _ in pools),
            pages_cached=sum(pool.cached for pool, _ in pools),
            pages_free=sum(pool.free for pool, _ in pools),
            used_share=share,
        )


@dataclass(eq=False)
class RequestState:
    """A request under way: its continuations, the ``forks`` that start once the prompt is computed,
    and its counts.

    ``started``: its first sequence left the queue.
    """

    handle: RequestHandle
    rows: list[GeneratedSequence] = field(default_factory=list)
    sequences: list[TokenSequence] = field(default_factory=list)
    search: BeamSearch | None = None
    forks: list[int] = field(default_factory=list)  # indices into ``sequences``
    open: int = 1
    cached: int = 0
    generated: int = 0
    scores: dict[int, TokenLogprob] = field(default_factory=dict)  # of the prompt, by place
    started: bool = False
    ended: bool = False

    @property
    def client(self) -> str:
        return self.handle.request.client

    @property
    def state(self) -> RequestState:
        """Itself, where a step works for requests rather than chunks."""
        return self

    @property
    def is_open(self) -> bool:
        return not self.ended

    @property
    def usage(self) -> Usage:
        return Usage(len(self.handle.request.tokens), self.cached, self.generated)
