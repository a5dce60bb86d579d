"""A cache in pages where our kernels do not compute, as on a GPU: keys are gathered from their
pages for each pass.

    tables   a: 7 2 9   b: 4   c: 0 7 5
    gathered a a a a a a a b b c c c c c        keys of all texts, one text after another, with borders between them

Where ``fast/varlen.py`` can (on a GPU in half precision) all texts are attended to in one call;
otherwise one by one, by whatever engine is chosen.

N tokens of S texts in the row, L keys of all of them, H heads, K key-value heads, D head dim, P
pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import config
from ..core.nn.engines import AttentionInputs, attend
from ..core.nn.flow import Flow
from ..core.nn.mask import Mask
from .kernels import PAGE
from .paged import PackedTexts, PagedKV
from .varlen import supports_varlen, varlen_attention


@dataclass(frozen=True)
class FlatPages:
    """``keys`` and ``values`` (P * 32, K, D): slot s is row s. As ``kernels.Pages`` to those who
    use it."""

    keys: Tensor
    values: Tensor

    @staticmethod
    def empty(
        count: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> FlatPages:
        """``count`` pages; what stands in them may be anything."""
        shape = count * PAGE, kv_heads, head_dim
        return FlatPages(*(torch.empty(shape, dtype=dtype, device=device) for _ in range(2)))

    @property
    def nbytes(self) -> int:
        """The memory of all pages."""
        return self.keys.nbytes + self.values.nbytes

    def write(self, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Put k, v (N, K, D) into ``slots`` (N,) int64."""
        self.keys[slots], self.values[slots] = k.to(self.keys.dtype), v.to(self.values.dtype)

    def gather(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values (L, K, D) that lie in ``slots`` (L,) int64."""
        return self.keys[slots], self.values[slots]

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Whole pages ``source`` to pages ``target``, both (n,) int64."""
        for tensor in (self.keys, self.values):
            pages = tensor.view(-1, PAGE, *tensor.shape[1:])
            pages[target] = pages[source]


class Gathered(NamedTuple):
    """The slots (L,) of what all texts see, as a ``mask`` with ``ends``: where each text's keys end
    among them."""

    slots: Tensor
    mask: Mask
    key_ends: Sequence[int]


class GatheredKV(PagedKV):
    """One layer's keys and values in ``FlatPages``, for a cache whose texts have ``starts``."""

    pages: FlatPages  # type: ignore[assignment]

    def attend(self, inputs: AttentionInputs, rule: config.MaskRule, flow: Flow) -> Tensor:
        """z (1, H, N, D) of queries (1, H, N, D) over what their texts have so far; ``inputs.k``,
        ``v`` go unread."""
        gathered_keys = flow.cached(
            ("gathered", rule), lambda: gathered(self.cache.texts, self.layout[0], rule)
        )
        masked_inputs = inputs._replace(mask=gathered_keys.mask)
        if not supports_varlen(masked_inputs):
            return self._by_rule(inputs, rule, flow)
        k, v = (x.transpose(0, 1)[None] for x in self.pages.gather(gathered_keys.slots))
        return varlen_attention(masked_inputs._replace(k=k, v=v))

    def across(self, q: Tensor, scale: float, softcap: float | None, flow: Flow) -> Tensor:
        """z (1, H, N, D) of queries (1, H, N, D) over all of what their texts' encoder read."""
        texts = self.cache.texts
        assert texts.sources is not None
        tables = texts.sources[0]
        source_keys = flow.cached("gathered source", lambda: gathered(texts, tables))
        k, v = (x.transpose(0, 1)[None] for x in self.pages.gather(source_keys.slots))
        inputs = AttentionInputs(q, k, v, source_keys.mask, None, scale, softcap)
        if supports_varlen(inputs):
            return varlen_attention(inputs)
        outputs = []
        for (first, end), (low, high) in zip(
            texts.spans, itertools.pairwise([0, *source_keys.key_ends]), strict=True
        ):
            mask = Mask(
                source_keys.mask.q_pos[:, first:end], source_keys.mask.k_pos[:, low:high], False
            )
            text_inputs = inputs._replace(
                q=q[:, :, first:end], k=k[:, :, low:high], v=v[:, :, low:high], mask=mask
            )
            outputs.append(attend(text_inputs))
        return torch.cat(outputs, 2)


def gathered(texts: PackedTexts, tables: Tensor, rule: config.MaskRule | None = None) -> Gathered:
    """The keys of each text's source by ``tables``; or with a ``rule`` its own, up to its last
    token in the row: where that looks back so far at most, those alone that the first token there
    still sees, as what is before may be gone."""
    device, causal, rule = texts.pos.device, rule is not None, rule or config.Full()
    key_starts, key_counts = [0] * len(texts.spans), [*texts.source_lengths]
    if causal:
        back = rule.lookback
        key_starts = [0 if back is None else max(0, start + 1 - back) for start in texts.starts]
        spans = zip(texts.starts, texts.spans, key_starts, strict=True)
        key_counts = [start + end - first - key_start for start, (first, end), key_start in spans]
    sums = [0, *itertools.accumulate(key_counts)]
    shifts = [key_start - before for key_start, before in zip(key_starts, sums, strict=False)]
    shift, sizes, *borders = (  # the copies wait for nothing that is under way on the device
        torch.tensor(numbers, dtype=torch.int32).to(device, non_blocking=True)
        for numbers in (shifts, key_counts, [0, *(end for _, end in texts.spans)], sums)
    )
    text = torch.repeat_interleave(
        torch.arange(len(key_counts), device=device), sizes, output_size=sums[-1]
    )
    places = torch.arange(sums[-1], device=device) + shift[text]
    slots = tables[text, places // PAGE].long() * PAGE + places % PAGE
    documents = texts.rows.long()[None], text[None]
    mask = Mask(texts.pos, places[None], causal, rule, documents, borders=tuple(borders))  # type: ignore[arg-type]
    return Gathered(slots, mask, sums[1:])
