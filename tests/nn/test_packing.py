"""Packed documents told by the host: their borders, and attention over them without a mask."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import tiny
from glassformer import config as c
from glassformer.core.nn import Mask
from glassformer.core.nn.engines import AttentionInputs, choose, eager_attention
from glassformer.core.nn.packing import Packing
from glassformer.fast import varlen


def packed(*rows: list[int], length: int = 12) -> tuple[Tensor, Tensor]:
    """Positions and numbers of documents of these lengths, padding behind them."""
    pos, ids = torch.full((2, len(rows), length), -1)
    for row, lengths in enumerate(rows):
        at = 0
        for number, size in enumerate(lengths):
            pos[row, at : at + size], ids[row, at : at + size] = torch.arange(size), number
            at += size
    return pos, ids


ROWS = packed([5, 4], [12], [1, 2, 3])


def test_borders_are_documents_then_padding_row_by_row() -> None:
    assert Packing(*packed([3, 2], [6], length=6)).borders.tolist() == [
        0,
        3,
        5,
        5,
        6,
        12,
        12,
        12,
        12,
    ]  # type: ignore[union-attr]
    widths = {len(Packing(*packed([1] * n)).borders) for n in range(1, 12)}  # type: ignore[arg-type]
    assert widths == {3, 5, 9, 17}  # few shapes


def test_what_borders_cannot_say_is_not_said() -> None:
    pos, ids = packed([5, 4])
    assert Packing(pos).borders is None
    assert Packing(pos, ids.where(ids != 0, 3)).borders is None  # 3 before 1
    assert Packing(pos.where(pos != 2, 7), ids).borders is None  # a place is left out


MASKS = {
    "causal": (True, c.Full()),
    "both ways": (False, c.Full()),
    "causal rule": (False, c.Causal()),
    "window": (True, c.Window(3)),
    "window both ways": (False, c.Window(3)),
}


def inputs(
    causal: bool, rule: c.MaskRule, kv_heads: int, dtype: torch.dtype = torch.float64
) -> AttentionInputs:
    draw = torch.Generator().manual_seed(0)
    pos, ids = ROWS
    borders = Packing(pos, ids).borders
    assert borders is not None
    mask = Mask(pos, pos, causal, rule, (ids, ids), borders=(borders, borders))
    shapes = ((3, 4, 12, 8), (3, kv_heads, 12, 8), (3, kv_heads, 12, 8))
    q, k, v = (
        torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    )
    return AttentionInputs(q, k, v, mask, None, 0.3)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("name", MASKS)
def test_the_same_as_written_out_and_its_gradients(name: str, kv_heads: int) -> None:
    args, present = inputs(*MASKS[name], kv_heads), (ROWS[0] >= 0)[:, None, :, None]
    assert choose(args, "varlen").name == "varlen"
    results = []
    for engine in (eager_attention, varlen.varlen_attention):
        out = engine(args) * present  # of padding nothing is asked
        results.append((out, *torch.autograd.grad(out.square().sum(), (args.q, args.k, args.v))))
    for result, second in zip(*results, strict=True):
        torch.testing.assert_close(second, result, rtol=1e-12, atol=1e-12)


def test_pairs_of_both_sides() -> None:
    """Cross-attention: documents of the same number, whose lengths differ."""
    args = inputs(False, c.Full(), 2)
    sides, present = (ROWS, packed([2, 7], [3], [4, 1, 4])), (ROWS[0] >= 0)[:, None, :, None]
    borders = tuple(Packing(*side).borders for side in sides)
    (pos, ids), (source_pos, source_ids) = sides
    mask = Mask(pos, source_pos, False, c.Full(), (ids, source_ids), borders=borders)  # type: ignore[arg-type]
    args = args._replace(mask=mask)
    torch.testing.assert_close(
        varlen.varlen_attention(args) * present,
        eager_attention(args) * present,
        rtol=1e-12,
        atol=1e-12,
    )


REFUSED: dict[str, dict[str, Any]] = {
    "bias": {"bias": torch.zeros(1, 4, 12, 12)},
    "softcap": {"softcap": 5.0},
    "dropout": {"dropout": 0.1},
    "rule": {"mask": Mask(*ROWS[:1] * 2, True, c.Strided(3), borders=(ROWS[1][0],) * 2)},
    "prefix": {
        "mask": Mask(*ROWS[:1] * 2, True, c.Full(), None, False, ROWS[0] < 2, (ROWS[1][0],) * 2)
    },
    "no borders": {"mask": Mask(*ROWS[:1] * 2, True)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_it_is_not_given(name: str) -> None:
    assert choose(inputs(True, c.Full(), 2)._replace(**REFUSED[name]), "varlen").name != "varlen"


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "varlen"), (torch.float32, "sdpa")])
def test_on_a_gpu_it_is_chosen_in_half_precision(dtype: torch.dtype, name: str) -> None:
    args = inputs(True, c.Full(), 2, dtype)
    with FakeTensorMode():
        moved = [torch.empty(x.shape, dtype=dtype, device="cuda") for x in (args.q, args.k, args.v)]
        assert choose(args._replace(q=moved[0], k=moved[1], v=moved[2])).name == name
    assert choose(args).name != "varlen"  # nor on a CPU, unless it is asked for


@pytest.mark.parametrize("name", MASKS)
def test_what_the_kernel_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's kernel has no CPU: what it is given says the same pairs by its own documented
    rule."""
    fields: dict[str, Any] = {}

    def kernel(q: Tensor, k: Tensor, v: Tensor, *args: Any, **named: Any) -> Tensor:
        fields.update(named, shapes=(q.shape, k.shape), given=args)
        return torch.empty_like(q)

    monkeypatch.setattr(varlen, "kernel", lambda: (kernel, True))
    args = inputs(*MASKS[name], 2)
    borders = args.mask.borders
    meta = args._replace(q=args.q.to("meta"), k=args.k.to("meta"), v=args.v.to("meta"))
    assert varlen.varlen_attention(meta).shape == args.q.shape
    assert (
        fields["shapes"] == ((36, 4, 8), (36, 2, 8))
        and fields["given"][2:] == (12, 12)
        and fields["enable_gqa"]
    )
    assert borders is not None and fields["given"][0] is borders[0] and fields["scale"] == 0.3
    remaining, right = fields["window_size"]
    q, k = torch.arange(12)[:, None], torch.arange(12)[None]
    # of one document
    observed = (k >= q - (12 if remaining < 0 else remaining)) & (
        k <= q + (12 if right < 0 else right)
    )
    alone = Mask(torch.arange(12)[None], torch.arange(12)[None], *MASKS[name])
    assert torch.equal(observed, alone.dense()[0, 0])


@pytest.mark.parametrize("family", ["llama", "starcoder2", "attention-pair", "bert", "glass"])
def test_a_model_asked_for_it_gives_what_a_mask_gives(family: str, chosen: list[str]) -> None:
    shape = tiny.ALL[family]
    model, (pos, ids) = tiny.model(dataclasses.replace(shape, pool=None)).double(), ROWS
    tokens = tiny.tokens(3, 12)
    source = {"source": tokens.flip(1), "source_pos": pos, "source_document_ids": ids}
    fields = {
        "pos": pos,
        "document_ids": ids,
        **(source if isinstance(shape, c.EncoderDecoder) else {}),
    }
    results = []
    for engine in ("eager", "varlen"):
        model.engine = engine
        results.append(model(tokens, **fields).logits[pos >= 0])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    assert "varlen" in chosen
