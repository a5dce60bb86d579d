"""The routing of tokens to experts: counted while the held-out batches are read, a line a mixture
in routing.jsonl."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.files import JsonObject
from ..core.nn import Model, Tape
from ..core.nn.experts import MoE

TOP_TOKENS = 8  # tokens of an expert in the log


@dataclass
class Routes:
    """Counts of (token, expert) pairs in a mixture: ``pair`` (P,) is token * experts + expert,
    ``times`` (P,)."""

    experts: int
    top_k: int
    pair: Tensor
    times: Tensor

    def top_tokens(self, limit: int = TOP_TOKENS) -> list[JsonObject]:
        """For each expert its "share" of all choices, and its most over-represented "tokens", at
        most ``limit``.

        A token is (id, times it was sent to this expert, share of its occurrences that were). They
        are sorted by observed minus expected times, expected being the token's choices times the
        expert's share of all.
        """
        token, expert, times = (
            self.pair // self.experts,
            self.pair % self.experts,
            self.times.double(),
        )
        load = times.new_zeros(self.experts).index_add(0, expert, times) / times.sum()
        chose = times.new_zeros(int(token.max()) + 1).index_add(0, token, times)[token]
        beyond = times - chose * load[expert]
        experts: list[JsonObject] = []
        for index in range(self.experts):
            rows = ((expert == index) & (beyond > 0)).nonzero().flatten()
            rows = rows[beyond[rows].argsort(descending=True, stable=True)][:limit]
            share = (times / chose)[rows] * self.top_k
            tokens = list(
                zip(token[rows].tolist(), self.times[rows].tolist(), share.tolist(), strict=True)
            )
            experts.append({"share": float(load[index]), "tokens": tokens})
        return experts


class RouteCounts(dict[str, Routes]):
    """Each mixture's routes by its path; while ``paused``, what the model does is not counted."""

    paused = False


@contextlib.contextmanager
def count_routes(
    model: Model, gather: Callable[[bytes], list[bytes]] = lambda counts: [counts]
) -> Iterator[RouteCounts]:
    """While entered, every call of ``model`` is watched; then what was given holds each mixture's
    routes by its path. Where several processes share the texts, ``gather`` returns the counts of
    each.

    Padding does not count. Nothing is watched in a model without mixtures.
    """
    routes = RouteCounts()
    mixtures = {module.path: module.cfg for module in model.modules() if isinstance(module, MoE)}
    if not mixtures:
        yield routes
        return
    pairs_by_path: dict[str, list[Tensor]] = {path: [] for path in mixtures}
    tape = Tape(*(f"{path}.chosen" for path in mixtures))

    def after(_: Any, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        for path, cfg in mixtures.items():
            tokens, pos = args[0], named.get("pos")
            if "source" in named and path.startswith("encoder."):
                tokens, pos = named["source"], named.get("source_pos")
            chosen = tape.records.pop(f"{path}.chosen", None)
            if routes.paused or chosen is None:  # another stage of a pipeline has it
                continue
            pairs = tokens.flatten()[:, None] * cfg.experts + chosen.flatten(0, 1)
            if pos is not None:
                pairs = pairs[(pos >= 0).expand(tokens.shape).flatten()]
            pairs_by_path[path].append(pairs.flatten())

    first = model.register_forward_pre_hook(
        lambda _, args, named: (args, {**named, "tape": tape}), with_kwargs=True
    )
    with first, model.register_forward_hook(after, with_kwargs=True):
        yield routes
    for path, cfg in mixtures.items():
        none = torch.zeros(0, dtype=torch.long)
        pairs = torch.cat([none, *(pairs.cpu() for pairs in pairs_by_path[path])])
        counts = torch.stack(pairs.unique(return_counts=True)).numpy().tobytes()  # type: ignore[no-untyped-call]
        shards = [
            torch.frombuffer(bytearray(content), dtype=torch.long).view(2, -1)
            for content in gather(counts)
            if content
        ]
        if shards:
            every = torch.cat(shards, 1)
            pair, place = every[0].unique(return_inverse=True)  # type: ignore[no-untyped-call]
            times = torch.zeros_like(pair).index_add_(0, place, every[1])
            routes[path] = Routes(cfg.experts, cfg.top_k, pair, times)
