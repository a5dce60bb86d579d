"""What a look inside costs those who do not look: a crowd beside one request, which is inspected or
not, in turns.

    python benchmarks/serve_inspect.py [MODEL] [--crowd 8] [--tokens 96] [--repeats 15] [--wish
    PATTERN ...]

The engine runs in this process; another thread makes each part of the answer with its JSON, as the
server does. Shown are medians of the pairs' ratios with the least and the greatest: the crowd's
seconds, and the seconds of processor of the engine's own thread, which a busy machine moves less.
That the crowd's tokens and log-probabilities are the same bits both times is asserted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from glassformer.core.generation.sample import Sampling
from glassformer.serve.asgi.replies import to_json
from glassformer.serve.engine import Request, RequestHandle
from glassformer.serve.inspecting import Inspector, with_inspection
from glassformer.serve.loading import open_models
from glassformer.serve.page.models import shipped
from glassformer.serve.schemas import CompletionRequest
from glassformer.serve.served_models import EngineLimits, ServedModel


def processor(thread: int) -> float:
    """Seconds of processor of one thread of this process (Linux)."""
    pieces = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return (int(pieces[11]) + int(pieces[12])) / os.sysconf("SC_CLK_TCK")


def tell(
    served: ServedModel, query: CompletionRequest, handle: RequestHandle, sent: list[int]
) -> None:
    """Every part of what is seen, as a stream sends it."""
    inspector = Inspector(served, query, handle)
    for event in handle:
        inspector.push(event)
        sent.append(len(to_json(inspector.drain())) if query.inspect else 0)


def turn(
    served: ServedModel, crowd: int, tokens: int, wishes: list[str] | None
) -> tuple[float, float, Any, int]:
    """The crowd's seconds, those of the engine's thread, the crowd's answers, bytes told to the one
    that looks."""
    engine, encode = served.engine, served.tokenizer.encode
    options: dict[str, Any] = {"sampling": Sampling(0), "max_new": tokens, "stop_tokens": ()}
    query = CompletionRequest.model_validate(
        {"prompt": "a", "inspect": wishes, "positions": "new"} if wishes else {"prompt": "a"}
    )
    thread, sent = engine._thread.native_id or 0, list[int]()
    start, in_use = time.perf_counter(), processor(thread)
    handle = engine.submit(
        with_inspection(
            served, query, Request(encode("A look inside: there was a king and a queen"), **options)
        )
    )
    handles = [
        engine.submit(Request(encode(f"Story {number}: once upon"), **options))
        for number in range(crowd)
    ]
    looker = threading.Thread(target=tell, args=(served, query, handle, sent))
    looker.start()
    completions = [handle.result().completions for handle in handles]
    took = time.perf_counter() - start
    looker.join()
    return took, processor(thread) - in_use, completions, sum(sent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=str(shipped()))
    parser.add_argument("--crowd", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--wish", nargs="+", default=["*.2.attn.pattern", "*.2.resid", "top_tokens"]
    )
    args = parser.parse_args()
    (served,) = open_models([args.model], EngineLimits()).entries.values()
    served.engine.lookup = False  # guesses that turn out right would count as speed
    for side in (None, args.wish):
        turn(served, args.crowd, 8, side)
    walls, cores = [], []
    for number in range(args.repeats):
        result = {}
        for side in (None, args.wish) if number % 2 == 0 else (args.wish, None):
            result[side is not None] = turn(served, args.crowd, args.tokens, side)
        assert result[True][2] == result[False][2], "the crowd's answers changed"
        walls.append(result[True][0] / result[False][0])
        cores.append(result[True][1] / result[False][1])
    print(
        f"load of the machine {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores; "
        f"{' '.join(args.wish)}"
    )
    print(
        f"{result[True][3] / 1024:.0f} KiB told of {args.tokens} tokens, a crowd of "
        f"{args.crowd} beside it"
    )
    for name, ratios in (("the crowd's seconds", walls), ("the engine's thread", cores)):
        print(f"{name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    served.engine.close()


if __name__ == "__main__":
    main()
