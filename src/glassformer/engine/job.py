"""A request under way, and what an engine counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .continuation import Continuation
from .pages import PagePool
from .request import Handle, TokenLogprob, Usage
from .scheduler import Text

STATES = ("used", "cached", "free")  # of a page


@dataclass
class Stats:
    """What the engine is doing now (requests ``running`` and ``waiting``, pages), and what it has
    done so far.

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
        """The same with what these pools, whose pages have so many bytes, hold now."""
        counts = {f"pages_{name}": sum(getattr(pool, name) for pool, _ in pools) for name in STATES}
        share = sum(pool.used * size for pool, size in pools) / sum(
            len(pool.users) * size for pool, size in pools
        )
        return replace(self, **counts, used_share=share)


@dataclass(eq=False)
class Job:
    """A request under way: its continuations, those that begin once the prompt was read, and what
    was counted.

    ``begun``: its first text is being read, it waits no more.
    """

    handle: Handle
    rows: list[Continuation]
    texts: list[Text]
    later: list[int]  # indices into ``texts``
    open: int
    cached: int = 0
    generated: int = 0
    scores: dict[int, TokenLogprob] = field(default_factory=dict)  # of the prompt, by place
    begun: bool = False
    ended: bool = False

    @property
    def client(self) -> str:
        """Whose it is."""
        return self.handle.request.client

    @property
    def job(self) -> Job:
        """Itself, where a step works for requests rather than chunks."""
        return self

    @property
    def goes_on(self) -> bool:
        """Whether there is still something to be done for it."""
        return not self.ended

    @property
    def usage(self) -> Usage:
        """What it has taken."""
        return Usage(len(self.handle.request.tokens), self.cached, self.generated)
