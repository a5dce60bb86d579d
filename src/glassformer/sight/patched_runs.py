"""Many patched runs at once: a row of a batch for each value that is patched.

Rows begin at the block that they change. Where tokens see what came before them alone, rows also
begin at the position that they change, and read the keys and values before it from the corrupted
run, in which they are the same; a patch of what is equal in both runs, or of what nobody reads any
more, is not computed at all.

R rows, T tokens, H heads, C model dim, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core import config
from ..core.errors import UserError, need
from ..core.nn import KV, CrossKV, Flow, Memory, Model, Tape
from ..core.nn.cache import Slots
from ..core.nn.layers import Head, Projection
from . import streams
from .looking import Text
from .reading import one_token

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

TOKENS = 1024  # computed at once: rows times their tokens
ONLY_HERE = ("resid", "mid", "mid_cross", "write", "z", "hidden", "pre", "gate", "up")
"""Values that attention of their own block does not read: in the last block they act at their own
position alone."""


@dataclass(frozen=True)
class Job:
    """One patch: of a part of a block, of one of its heads or all, at one position or (None) all of
    them."""

    component: str
    layer: int
    head: int | None
    position: int | None

    @property
    def start(self) -> int:
        """The first block to compute."""
        return self.layer + (self.component == "resid")


class RunPair:
    """The two runs, and what patched ones have in common with the corrupted one."""

    def __init__(self, model: Model, side: str, runs: list[streams.Read], at: int) -> None:
        self.model = model
        self.side = side
        self.runs = runs
        self.at = at
        self.cfg: config.Stack = getattr(model.config, side)
        self.stack: Any = getattr(model, side)
        # a token's values depend on those before it alone
        self.alone = side == "decoder" and self.cfg.causal
        # tokens that see each other all the same
        self.ahead = max(
            (attention.mask.prefix_length for attention in self.cfg.attentions), default=0
        )
        beside = side != model.config.main_body
        self.tokens = torch.cat([run.inputs[-1] if beside else run.tokens for run in runs])
        if self.alone:
            self.tokens = self.tokens[:, : max(at + 1, self.ahead)]
        self.length = self.tokens.shape[1]
        differ = (self.tokens[0] != self.tokens[1]).nonzero().flatten().tolist()
        # until there all is equal
        self.first = differ[0] if differ and self.alone and differ[0] >= self.ahead else 0
        self.clean: dict[str, Tensor] = {}
        self.corrupted: dict[str, Tensor] = {}

    @classmethod
    def of(
        cls,
        model: Model,
        tokenizer: Tokenizer | None,
        clean: Text,
        corrupted: Text,
        source: Any,
        at: int | None,
    ) -> RunPair:
        """The texts read; UserError where they do not correspond."""
        streams.needs_head(model, "give one that does.")
        need(
            not config.recurrent(model.config),
            "A recurrent model has no blocks to patch one by one; use edits.patch with its own "
            "values.",
        )
        need(
            all(
                len(stack.attentions) == len(stack.pattern)
                for stack in config.stacks(model.config).values()
            ),
            "A block without attention has no keys and values to patch; use edits.patch with "
            "another value.",
        )
        pair = isinstance(source, tuple)
        sources = source if pair else (source, source)
        need(
            len(sources) == 2,
            f"source holds {len(sources)} texts; give one, or a pair: clean and corrupted.",
        )
        texts = zip((clean, corrupted), sources, strict=True)
        runs = [streams.prepare(model, tokenizer, text, beside) for text, beside in texts]
        sizes = [[ids.shape[1] for ids in run.inputs] for run in runs]
        for side, first, second in zip(("texts", "sources"), *sizes, strict=False):
            need(
                first == second,
                f"The {side} have {first} and {second} tokens; patching needs as many in both: see "
                "them with glassformer tokens.",
            )
        place = streams.place(at, runs[0].tokens, tokenizer)
        return cls(model, "encoder" if pair else model.config.main_body, runs, place)

    def columns(self, positions: str | Sequence[int]) -> list[int | None]:
        """The positions patched one by one; [None] for all at once."""
        if positions == "all":
            return [None]
        if isinstance(positions, str):
            need(positions == "each", f'positions is "{positions}"; give "each", "all" or numbers.')
            return list(range(self.length))
        return list(streams.places(list(positions), self.length))

    def jobs(self, components: Sequence[str], positions: str | Sequence[int]) -> list[Job]:
        """Every patch that is asked for; UserError for a part that no block has."""
        shapes = {path: tuple(value.shape) for path, value in one_token(self.model).items()}
        jobs = []
        for component in components:
            layers = [
                layer for layer in range(self.cfg.depth) if self.path(component, layer) in shapes
            ]
            if not layers or component in ("cross.k", "cross.v"):  # whose tokens are the source's
                prefix = f"{self.side}.blocks."
                known_components = dict.fromkeys(
                    path.split(".", 3)[3] for path in shapes if path.startswith(prefix)
                )
                raise UserError(
                    f'No block has a part "{component}"; there are {", ".join(known_components)}.'
                )
            for layer in layers:
                shape = shapes[self.path(component, layer)]
                many = len(shape) == 4 and component.startswith(("attn.", "cross."))
                heads: Sequence[int | None] = range(shape[1]) if many else [None]
                jobs += [
                    Job(component, layer, head, at)
                    for head in heads
                    for at in self.columns(positions)
                ]
        return jobs

    def path(self, component: str, layer: int) -> str:
        """The value's path."""
        return f"{self.side}.blocks.{layer}.{component}"

    def acts(self, job: Job) -> bool:
        """True if a patch can change anything where the answer is read."""
        if not self.alone or job.position is None:
            return True
        late = job.layer == self.cfg.depth - 1 and job.component.rpartition(".")[2] in ONLY_HERE
        return job.position >= self.first and not (late and job.position != self.at)

    def begins(self, job: Job) -> int:
        """The first position that a patch changes."""
        if not self.alone:
            return 0
        start = self.first if job.position is None else job.position
        return start if start >= self.ahead else 0

    def batches(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """Patches that can change anything, together where they begin at one block and at about
        one position, as many as are computed at once."""
        acting = sorted(filter(self.acts, jobs), key=lambda job: (job.start, -self.begins(job)))
        for _, group in groupby(acting, key=lambda job: job.start):
            batch: list[Job] = []
            for job in group:
                size = self.length - self.begins(job)
                wide = batch and size > 1.5 * (self.length - self.begins(batch[0])) + 4
                if batch and (wide or (len(batch) + 1) * size > TOKENS):
                    yield batch
                    batch = []
                batch.append(job)
            yield batch

    def run(self, ids: Sequence[int], paths: Sequence[str]) -> tuple[float, float]:
        """Both runs: what the clean one's values are, what the corrupted one's parts have in
        common; both answers."""
        names = ("embed", "blocks.*.resid", "blocks.*.attn.[kv]", "blocks.*.cross.[kv]")
        common = [f"{self.side}.{name}" for name in names]
        answers = []
        for number, patterns in enumerate((paths, common)):
            run = self.runs[number]
            tape = Tape(*patterns, *([] if run.source is None else ["encoder.out"]))
            if self.side == "decoder":
                run = replace(run, tokens=self.tokens[number : number + 1])
            hidden = run.run(self.model, tape).hidden
            answers.append(self.answers(hidden[:, self.at], ids)[0])
            self.clean = self.corrupted
            self.corrupted = tape.records
        return answers[0], answers[1]

    def answers(self, hidden: Tensor, ids: Sequence[int]) -> list[float]:
        """hidden (R, C) -> the answer's logit, less the wrong one's."""
        head: Any = self.model.head
        if type(head) is Head and type(head.proj) is Projection:  # these rows of the table alone
            bias = None if head.proj.bias is None else head.proj.bias[list(ids)]
            logits = F.linear(
                head.prepare(hidden), head.table(self.model.embed)[list(ids)], bias
            ).float()
            if head.softcap is not None:
                logits = head.softcap * torch.tanh(logits / head.softcap)
        else:
            logits = head(hidden[:, None], self.model.embed)[:, 0, list(ids)].float()
        logits = logits[:, :1] - logits[:, 1:].sum(-1, keepdim=True)
        return logits[:, 0].tolist()

    def patched(self, jobs: Sequence[Job], ids: Sequence[int]) -> list[float]:
        """The answers of patched runs, a row each, from the block and the position on that they
        change."""
        start = jobs[0].start
        first_position = min(map(self.begins, jobs))
        before = f"{self.side}.blocks.{start - 1}.resid" if start else f"{self.side}.embed"
        x = self.corrupted[before][:, first_position:].repeat(len(jobs), 1, 1)
        inside: dict[str, list[int]] = {}
        for row, job in enumerate(jobs):
            if job.component == "resid":
                x[row, self._cells(job, first_position)] = self.clean[before][
                    0, self._cells(job, 0)
                ]
            else:
                inside.setdefault(self.path(job.component, job.layer), []).append(row)

        def put(path: str, value: Tensor) -> Tensor:
            value = value.clone()
            for row in inside[path]:
                job = jobs[row]
                clean = self.clean[path][0]
                target = self._cells(job, first_position)
                donor = self._cells(job, 0)
                if job.head is None:
                    value[row, target] = clean[donor]
                else:
                    value[row, job.head, target] = clean[job.head, donor]
            return value

        pos = torch.arange(first_position, self.length, device=x.device)[None]
        flow = Flow(pos, tape=Tape(edits=dict.fromkeys(inside, put)), engine=self.model.engine)
        crossed = self.side == "decoder" and "encoder.out" in self.corrupted
        if crossed:
            encoded = self.corrupted["encoder.out"]
            flow.memory = Memory(
                encoded, torch.arange(encoded.shape[1], device=x.device)[None], True
            )
        for layer in range(start, self.cfg.depth):
            x = self.stack.blocks[layer](
                x, flow, self.stack.position, self._known(layer, first_position, len(jobs), crossed)
            )
        hidden = flow.look(self.stack, "out", self.stack.last_norm(x))
        if self.side != self.model.config.main_body:
            text = self.runs[1].tokens.expand(len(jobs), -1)
            hidden = self.model(text, memory=Memory(hidden, pos, True), logits="none").hidden
            return self.answers(hidden[:, self.at], ids)
        return self.answers(hidden[:, self.at - first_position], ids)

    def _cells(self, job: Job, start: int) -> int | slice:
        """Cells of a patch in a value that begins at a position."""
        if job.position is not None:
            return job.position - start
        offset = self.begins(job)
        return slice(offset - start, None)

    def _known(self, layer: int, start: int, rows: int, crossed: bool) -> tuple[KV, CrossKV] | None:
        """The corrupted run's keys and values before ``begin``, and those of the source."""
        if not start and not crossed:
            return None
        prefix = f"{self.side}.blocks.{layer}"
        cache = _Known(
            self.corrupted[f"{prefix}.attn.k"],
            self.corrupted[f"{prefix}.attn.v"],
            start,
            self.length,
        )
        cross = CrossKV()
        if f"{prefix}.cross.k" in self.corrupted:
            k, v = (
                self.corrupted[f"{prefix}.cross.{name}"].expand(rows, -1, -1, -1) for name in "kv"
            )
            cross.kv = k, v
        return cache, cross


class _Known(KV):
    """Keys and values (1, H, T, D) up to a position, the same for all rows."""

    def __init__(self, k: Tensor, v: Tensor, start: int, length: int) -> None:
        super().__init__(Slots(None))
        self.k = k[:, :, :start]
        self.v = v[:, :, :start]
        self.slots.k_pos = torch.arange(length, device=k.device)[None]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """With those of the rows' own tokens behind them."""
        pairs = ((self.k, k), (self.v, v))
        joined = [torch.cat((past.expand(len(new), -1, -1, -1), new), 2) for past, new in pairs]
        return joined[0], joined[1]
