"""Work that a hostile file could make endless: in a thread of its own, within a budget, so that
Ctrl-C is heard.

The `tokenizers` library gives Python's lock away while it encodes a batch, but looks at no signal
until it is done.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..errors import UserError

T = TypeVar("T")

LARGE = 1 << 14  # characters; what is smaller is done at once
SECONDS, RATE = 10.0, 50_000  # the budget: these, and a second for so many characters
TICK = 0.1  # seconds between two looks at the clock

_worker = threading.local()  # .abandoned: set once the thread's pool was left by an exception


def within_budget(work: Callable[[], T], characters: int) -> T:
    """Runs ``work`` on a text of so many characters and returns or raises as it does; UserError
    when its budget is spent.

    The budget is of processor time, so that a busy machine ends nothing. The work itself cannot be
    ended: it goes on in a thread that does not keep the process alive.
    """
    if characters < LARGE:
        return work()
    done, results, errors = threading.Event(), list[T](), list[BaseException]()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # the library's own panics are not Exceptions
            errors.append(error)
        done.set()

    abandoned: threading.Event = getattr(_worker, "abandoned", done)
    threading.Thread(target=run, daemon=True).start()
    wall, processor = time.monotonic(), time.process_time()
    budget = SECONDS + characters / RATE
    while not done.wait(TICK):
        spent = min(time.monotonic() - wall, time.process_time() - processor)
        if spent > budget or (abandoned is not done and abandoned.is_set()):
            raise UserError(
                f"This tokenizer needs over {budget:.0f} seconds for {characters:,} characters; "
                "give shorter texts, or "
                f"another tokenizer."
            )
    if errors:
        raise errors[0]
    return results[0]


@contextlib.contextmanager
def pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that share work out; left by an exception (Ctrl-C), it waits for none of them."""
    abandoned = threading.Event()
    threads = ThreadPoolExecutor(
        workers, initializer=setattr, initargs=(_worker, "abandoned", abandoned)
    )
    try:
        yield threads
    except BaseException:
        abandoned.set()
        threads.shutdown(wait=False, cancel_futures=True)
        raise
    threads.shutdown()
