"""Attention's engines held to float64 where settings are off the default: scale, caps, biases,
dropout, groups, bf16, long rows, padding; and which of them ran."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from glassformer import config as c
from glassformer.core.nn import Mask, attention, build_model
from glassformer.core.nn.attention import AttentionInputs, attend, choose
from glassformer.families import find
from glassformer.fast import attention_engines
from mistakes import mistake
from seeding import generator_from

HEADS = 4
D = 16
SCALE = 0.4  # not D**-0.5
# more than a block of ``cpu_blocks`` and of ``prefill``; long enough for ``block_sparse``
SHORT = 160
LONG = 576
UNIT = {torch.float32: 2**-24, torch.bfloat16: 2**-8}
"""The most that one rounding changes a number by, relative to it."""


# ------------------------------------------------------------------------------------- masks


def row(length, start=0):
    return torch.arange(start, length)[None]


def padded(length):
    """Two rows, the second with padding before it."""
    return torch.cat((row(length), (row(length) - length // 3).clamp(min=-1)))


def several(length):
    """Positions and numbers of documents of 64 tokens and less."""
    return row(length) % 64, row(length) // 64


def causal_mask(pos, mask_rule=c.Full(), queries=0, **kwargs):
    """Causal attention of the last ``queries`` (0: all) tokens at ``pos``."""
    return Mask(pos[:, -queries:], pos, True, mask_rule, **kwargs)


def documents(length):
    pos, document_ids = several(length)
    return causal_mask(pos, document_ids=(document_ids, document_ids))


def seen_early(length, mask_rule):
    """A prefix of more than a block, seen by all of its row."""
    return causal_mask(row(length), mask_rule, prefix=row(length) < torch.tensor([[200], [90]]))


FUSED = dict.fromkeys(("float32", "float32 learning", "bfloat16", "bfloat16 learning"), "sdpa")
BLOCKS = {**FUSED, "bfloat16 learning": "cpu_blocks"}
SPARSE = dict.fromkeys(FUSED, "block_sparse")
TRAINED = {**SPARSE, "bfloat16 learning": "cpu_blocks"}
SITUATIONS = {
    "prompt": (lambda: causal_mask(row(SHORT), contiguous=True), {**BLOCKS, "bfloat16": "prefill"}),
    "token": (lambda: causal_mask(row(200), queries=1, contiguous=True), BLOCKS),
    "ragged token": (lambda: causal_mask(padded(200), queries=1), BLOCKS),
    "ragged tokens": (lambda: causal_mask(padded(200), queries=5), BLOCKS),
    "ragged prompt": (lambda: causal_mask(padded(SHORT)), BLOCKS),
    "ring": (lambda: Mask(row(201, 200), 200 - (row(48) - 9) % 48, True, c.Window(48)), BLOCKS),
    "window": (lambda: causal_mask(row(SHORT), c.Window(24), contiguous=True), BLOCKS),
    "documents": (lambda: documents(SHORT), BLOCKS),
    "across": (lambda: Mask(row(70), padded(90), False), BLOCKS),
    "both ways": (lambda: Mask(row(SHORT), row(SHORT), False, contiguous=True), BLOCKS),
    "long window": (lambda: causal_mask(row(LONG), c.Window(48), contiguous=True), TRAINED),
    "long padded window": (lambda: causal_mask(padded(LONG), c.Window(48)), TRAINED),
    "long strided": (lambda: causal_mask(row(LONG), c.Strided(24), contiguous=True), TRAINED),
    "long documents": (lambda: documents(LONG), SPARSE),
    "long rule with a prefix": (
        lambda: causal_mask(row(LONG), c.Prefix(200) & c.Window(48), contiguous=True),
        TRAINED,
    ),
    "long prefix": (lambda: seen_early(LONG, c.Window(48)), TRAINED),
}


# ------------------------------------------------------------------------------------- the truth


@dataclass
class Case:
    """Queries, keys and values of two rows in some format, what comes between, and what comes out
    in float64."""

    mask: Mask
    dtype: torch.dtype
    kv_heads: int
    softcap: float | None
    biased: bool = False
    width: int = D

    def __post_init__(self):
        draw = generator_from(0)
        T = self.mask.q_pos.shape[1]
        S = self.mask.k_pos.shape[1]
        self.q, self.k, self.v = (
            torch.randn(2, *shape, self.width, generator=draw).to(self.dtype)
            for shape in ((HEADS, T), *[(self.kv_heads, S)] * 2)
        )
        added = torch.randn(1, HEADS, T, S, generator=draw).to(self.dtype)
        self.bias = added if self.biased else None

    def real(self):
        """(B, 1, T, 1): what comes of a query that is nothing is used by nobody."""
        return (self.mask.q_pos >= 0)[:, None, :, None]

    def true(self, scale=SCALE, keep=None):
        """Output, and the gradients of its sum weighed by ``weigh``, by the definition in
        float64."""
        leaves = [x.detach().double().requires_grad_() for x in (self.q, self.k, self.v)]
        q = leaves[0]
        (k, v) = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in leaves[1:])
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) * scale
        if self.softcap is not None:
            scores = self.softcap * (scores / self.softcap).tanh()
        if self.bias is not None:
            scores = scores + self.bias.double()
        likely = scores.masked_fill(~self.mask.dense(), -torch.inf).softmax(-1)
        return self.learnt((likely if keep is None else likely * keep) @ v, leaves)

    def computed(self, learning, dropout=0.0, engine="auto"):
        """The same by an engine, or by the one that is chosen."""
        leaves = [x.detach().clone().requires_grad_(learning) for x in (self.q, self.k, self.v)]
        inputs = AttentionInputs(*leaves, self.mask, self.bias, SCALE, self.softcap, dropout)
        with torch.set_grad_enabled(learning):
            z = attend(inputs, engine)
        assert z.dtype == self.dtype
        return self.learnt(z, leaves) if learning else [(z * self.real()).double()]

    def learnt(self, z, leaves):
        z, draw = z * self.real(), generator_from(1)
        weigh = torch.randn(z.shape, generator=draw).to(self.dtype).to(z.dtype)
        grads = torch.autograd.grad((z * weigh).sum(), leaves)
        return [x.double() for x in (z.detach(), *grads)]


def rms(error):
    return float(error.square().mean().sqrt())


@pytest.mark.parametrize("kv_heads, softcap", [(4, None), (2, None), (1, 2.0)])
@pytest.mark.parametrize("dtype", UNIT, ids=lambda x: str(x)[6:])
@pytest.mark.parametrize("name", SITUATIONS)
def test_as_near_the_truth_as_the_readable_engine(name, dtype, kv_heads, softcap, chosen):
    """An engine may err three times as much as ``eager`` does in the same format: it adds up in
    another order."""
    make, engines = SITUATIONS[name]
    case = Case(make(), dtype, kv_heads, softcap)
    true = case.true()
    for learning in (False, True):
        law = case.computed(learning, engine="eager")
        actual = case.computed(learning)
        expected = engines[str(dtype)[6:] + " learning" * learning]
        if softcap is not None:
            expected = "block_sparse" if engines is SPARSE or engines is TRAINED else "eager"
        assert chosen[-2:] == ["eager", expected]
        for exact, item, second in zip(true, law, actual, strict=False):
            # rounded once at the end, and sums of S terms in fp32, each in its own order
            floor = (UNIT[dtype] + 2**-24 * case.k.shape[2] ** 0.5) * float(exact.abs().max())
            for size in (rms, largest):
                assert size(second - exact) <= 3 * size(item - exact) + floor


def largest(error):
    return float(error.abs().max())


@pytest.mark.parametrize("name", sorted(SITUATIONS.keys() - {"across", "both ways"}))
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_nothing_is_systematically_too_large_in_bf16(name, kv_heads):
    """Roundings that know nothing of each other cancel; what is left along the result or along the
    scale does not."""
    case = Case(SITUATIONS[name][0](), torch.bfloat16, kv_heads, None)
    true = case.true()[0]
    step = 1e-4
    # by how much of the scale, of the result
    along = ((case.true(SCALE * (1 + step))[0] - true) / step, true)
    for learning in (False, True):
        error = case.computed(learning)[0] - true
        for direction in along:
            # a pattern errs for all of a head
            spread = rms(error) / float(direction.norm()) * D**0.5
            assert abs(float((error * direction).sum() / direction.square().sum())) <= 5 * spread


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(
    "name", ["prompt", "ragged token", "ragged tokens", "ragged prompt", "window"]
)
def test_a_bias_is_added_after_the_cap(name, kv_heads, softcap, chosen):
    case = Case(SITUATIONS[name][0](), torch.float32, kv_heads, softcap, biased=True)
    for result, true in zip(case.computed(learning=True), case.true(), strict=True):
        assert_close(result, true, rtol=1e-5, atol=1e-5)
    assert chosen == ["sdpa" if softcap is None else "eager"]


DROPPED = [
    (engine, name)
    for engine in ("eager", "sdpa", "cpu_blocks", "block_sparse")
    for name in ("prompt", "ragged token", "window", "both ways")
]
AUTO = {  # the engines that train and that do not, without and with a cap
    ("prompt", None): ["cpu_blocks", "sdpa"],
    ("prompt", 2.0): ["eager", "eager"],
    ("long padded window", None): ["cpu_blocks", "block_sparse"],
    ("long padded window", 2.0): ["block_sparse", "block_sparse"],
}


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("dtype", UNIT, ids=lambda x: str(x)[6:])
@pytest.mark.parametrize(
    "engine, name", [*DROPPED, ("auto", "prompt"), ("auto", "long padded window")]
)
def test_dropout_drops_its_share_and_learns_from_what_is_left(engine, name, dtype, softcap, chosen):
    """The values are the identity, so what comes out is the pattern itself, and tells what was
    dropped."""
    if softcap is not None and engine in ("sdpa", "cpu_blocks"):
        pytest.skip(f"{engine} cannot cap scores: another engine would run")
    mask = SITUATIONS[name][0]()
    rate = 0.25
    S = mask.k_pos.shape[1]
    case = Case(mask, dtype, 2, softcap, width=S)
    case.q *= 4 / S**0.5  # a score's spread stays what it is
    case.v = torch.eye(S, dtype=dtype).expand(2, 2, S, S)
    torch.manual_seed(0)
    result = case.computed(True, rate, engine)
    observed = case.mask.dense().expand_as(result[0]) & case.real()
    alive = (result[0] > 0) & observed
    draws = int(observed.sum())
    luck = 5 * (rate * (1 - rate) / draws) ** 0.5
    assert abs(1 - float(alive[observed].double().mean()) - rate) <= luck
    for exact, actual in zip(case.true(keep=alive / (1 - rate)), result, strict=True):
        # what is summed up in bf16 is summed up in fp32 and rounded a few times; in fp32 each term
        # of a row counts
        few = 64 if dtype == torch.float32 else 8
        assert float((actual - exact).abs().max()) <= few * UNIT[dtype] * max(
            1.0, float(exact.abs().max())
        )
    still = case.computed(False, rate, engine)[0]
    assert abs(1 - float((still > 0)[observed].double().mean()) - rate) <= luck
    assert chosen == (AUTO[name, softcap] if engine == "auto" else [engine, engine])


def test_an_engine_is_named_as_its_file_is():
    """An unknown engine is refused where it is set, not in the forward pass."""
    model = build_model(find("glass/200k"), device="meta")
    message = r'no engine of attention "flash"; give auto, block_sparse, cpu_blocks, prefill'
    with mistake(message):
        model.engine = "flash"
    model.engine = "block_sparse"
    assert model.engine == "block_sparse"
    stems = {path.stem for path in Path(attention_engines.__file__).parent.glob("*.py")}
    in_core = {"eager", "sdpa"}
    assert attention.ENGINES.keys() - stems - in_core == {"prefill"}  # in cpu_blocks.py


@pytest.mark.parametrize(
    "name, fallbacks",
    [
        ("eager", {}),
        ("sdpa", {"capped": "eager"}),
        ("cpu_blocks", {"capped": "eager", "biased": "sdpa"}),
        ("block_sparse", {"biased": "sdpa"}),
        ("prefill", {"capped": "eager"} | dict.fromkeys(("plain", "biased", "learning"), "sdpa")),
    ],
)
def test_what_an_engine_cannot_compute_is_left_to_another(name, fallbacks):
    q = torch.randn(1, 1, SHORT, D)
    plain = AttentionInputs(q, q, q, causal_mask(row(SHORT), contiguous=True), None, SCALE)
    inputs = {
        "plain": plain,
        "biased": plain._replace(bias=torch.zeros(1, 1, SHORT, SHORT)),
        "capped": plain._replace(softcap=2.0),
        "learning": plain._replace(q=q.clone().requires_grad_()),
    }
    if name != "prefill":
        inputs["dropping"] = plain._replace(dropout=0.1)
    assert {kind: choose(item, name).name for kind, item in inputs.items()} == {
        kind: fallbacks.get(kind, name) for kind in inputs
    }
