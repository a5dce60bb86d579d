"""Who may look at whom: rules, their algebra, their pictures, and engines that compute what is
visited and no more."""

from __future__ import annotations

import json
import struct
import tomllib
import zlib

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tiny
from glassformer import config as c
from glassformer.cli import main
from glassformer.core.config import serial
from glassformer.core.config.mask_arrays import count_pairs, ring_pieces
from glassformer.core.config.mask_expressions import parse_rule, rules
from glassformer.core.errors import UserError
from glassformer.core.nn import Cache, Mask
from glassformer.core.nn.engines import ENGINES, AttentionInputs, attend, choose
from glassformer.fast import block_mask, cpu_blocks
from glassformer.scale import cost
from glassformer.sight import masks
from tiny import tokens

RULES_DRAWN = {  # by hand from their definitions: query i, key j
    c.Full(): lambda i, j: True,
    c.Causal(): lambda i, j: j <= i,
    c.Prefix(6): lambda i, j: j <= i or j < 6,
    c.Window(5): lambda i, j: abs(i - j) < 5,
    c.Every(4): lambda i, j: (i - j) % 4 == 0,
    c.Chunk(6): lambda i, j: i // 6 == j // 6,
    c.Tail(6, 2): lambda i, j: j % 6 in (4, 5) or i == j,
    c.Strided(5): lambda i, j: abs(i - j) < 5 or (i - j) % 5 == 0,
    c.Fixed(6, 2): lambda i, j: i // 6 == j // 6 or j % 6 in (4, 5),
    c.Window(9) & (c.Every(2) | c.Prefix(4)): lambda i, j: (
        abs(i - j) < 9 and ((i - j) % 2 == 0 or j <= i or j < 4)
    ),
    c.Every(1_000_000) | c.Tail(50): lambda i, j: i == j or j % 50 == 49,
    c.Fixed(7, 2) | c.Strided(4): lambda i, j: (
        i // 7 == j // 7 or j % 7 > 4 or abs(i - j) < 4 or (i - j) % 4 == 0
    ),
}
every_rule = pytest.mark.parametrize("mask_rule", RULES_DRAWN, ids=str)


def dense(
    mask_rule: c.MaskRule, length: int = 25, causal: bool = False, **kwargs: object
) -> torch.Tensor:
    pos = torch.arange(length)[None]
    return Mask(pos, pos, causal, mask_rule, **kwargs).dense()[0, 0]  # type: ignore[arg-type]


@every_rule
def test_a_rule_allows_what_its_definition_says(mask_rule):
    expected = torch.tensor(
        [[bool(RULES_DRAWN[mask_rule](i, j)) for j in range(25)] for i in range(25)]
    )
    assert torch.equal(dense(mask_rule), expected)
    before = torch.arange(25) <= torch.arange(25)[:, None]
    assert torch.equal(
        dense(mask_rule, causal=True),
        expected & (before | (torch.arange(25) < mask_rule.prefix_length)),
    )
    assert dense(mask_rule).diagonal().all(), (
        "a token sees itself, so that no row of the softmax is empty"
    )


def test_the_sparse_transformers_patterns_are_the_papers():
    """Child et al. 2019, section 4.2: the sets A(1) and A(2) of each kind, for every output
    position."""
    stride, last = 5, 2
    for i in range(30):
        near, far = (
            set(range(max(0, i - stride), i + 1)),
            {j for j in range(i + 1) if (i - j) % stride == 0},
        )
        assert {
            j for j, observed in enumerate(dense(c.Strided(stride), 30, True)[i]) if observed
        } == near | far
        block = {j for j in range(i + 1) if j // stride == i // stride}
        bounds = {j for j in range(i + 1) if j % stride in range(stride - last, stride)}
        assert {
            j for j, observed in enumerate(dense(c.Fixed(stride, last), 30, True)[i]) if observed
        } == block | bounds


@every_rule
def test_and_and_or_are_those_of_sets(mask_rule):
    window = c.Window(3)
    assert torch.equal(dense(mask_rule & window), dense(mask_rule) & dense(window))
    assert torch.equal(dense(mask_rule | window), dense(mask_rule) | dense(window))
    assert mask_rule & window & mask_rule == c.Both(
        (*(mask_rule & window).rules, *(mask_rule & c.Full()).rules[:-1])
    )


@every_rule
def test_rules_survive_json_toml_and_their_own_words(mask_rule):
    attention = c.Attention(4, mask=mask_rule)
    assert serial.loads(c.Attention, serial.dumps(attention)) == attention
    assert parse_rule(str(mask_rule)) == mask_rule
    assert torch.equal(dense(parse_rule(f" ({mask_rule})\n")), dense(mask_rule))


def test_rules_are_written_in_toml():
    text = (
        'heads = 4\nmask = {type="Either", rules=[{type="Window", size=4}, {type="Both", '
        'rules=["Causal", "Full"]}]}'
    )
    attention = serial.from_dict(c.Attention, tomllib.loads(text))
    assert attention.mask == c.Either((c.Window(4), c.Both((c.Causal(), c.Full()))))
    assert serial.change(attention, {"mask.rules.0.size": 9}).mask.rules[0] == c.Window(9)


def test_prefixes_of_the_rule_and_of_the_data_add_up():
    individual = torch.tensor([[False] * 4 + [True] * 8 + [False] * 13])  # of the data: 4..11
    expected = torch.tensor(
        [[j <= i or j < 6 or 4 <= j < 12 for j in range(25)] for i in range(25)]
    )
    assert torch.equal(dense(c.Prefix(6), causal=True, prefix=individual), expected)
    within = torch.tensor([[abs(i - j) < 4 for j in range(25)] for i in range(25)])
    assert torch.equal(
        dense(c.Prefix(6) & c.Window(4), causal=True, prefix=individual), expected & within
    )


def test_how_far_back_a_rule_looks():
    for mask_rule in (c.Window(7), c.Window(7) & c.Strided(3), c.Full() & c.Window(7)):
        assert mask_rule.lookback == 7
    for mask_rule in (c.Window(7) | c.Window(9), (c.Window(20) & c.Window(9)) | c.Window(3)):
        assert mask_rule.lookback == 9
    for mask_rule in (
        c.Full(),
        c.Strided(4),
        c.Fixed(4),
        c.Window(7) | c.Full(),
        c.Causal(),
        c.Prefix(3),
    ):
        assert mask_rule.lookback is None


def test_a_cache_keeps_no_more_than_the_rule_can_reach():
    model = tiny.model(tiny.DECODERS["mixed"])
    cache = Cache(model.config)
    second_tokens = tokens(1, 60)
    logits = [
        model(piece, cache=cache).logits for piece in second_tokens.split([3, *[1] * 57], dim=1)
    ]
    assert [slots.ring for slots in cache.slots.values()] == [9, None]
    # the window and a bin, though the rule is more than a window
    assert cache.layers[0][0].k.shape[2] == 9 + 1
    torch.testing.assert_close(torch.cat(logits, 1), model(second_tokens).logits, rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------------- engines

SITUATIONS = ("plain", "rest", "left", "right", "documents", "prefix", "across")


def situation(name: str, mask_rule: c.MaskRule, causal: bool, length: int = 45) -> Mask:
    """A mask over two rows: padded, packed, with a prefix, of the last queries, or of other keys
    than queries."""
    pos, document_ids, prefix = torch.arange(length)[None], None, None
    q_pos = k_pos = pos
    if name == "rest":
        q_pos = pos[:, -19:]
    elif name == "left":
        q_pos = k_pos = torch.cat((pos, (pos - 17).clamp(min=-1)))
    elif name == "right":
        q_pos = k_pos = torch.cat((pos.where(pos < 31, -1), pos))
    elif name == "documents":
        border = torch.tensor([[13], [30]])
        individual = (pos >= border).long()
        q_pos = k_pos = torch.where(pos >= border, pos - border, pos)
        document_ids = (individual, individual)
    elif name == "prefix":
        prefix = pos < torch.tensor([[9], [21]])
    elif name == "across":
        k_pos = torch.cat(
            (torch.arange(30)[None], torch.arange(30)[None].where(torch.arange(30) < 21, -1))
        )
        causal, mask_rule = False, c.Full()  # all of the encoder's output
    return Mask(q_pos, k_pos, causal, mask_rule, document_ids, name in ("plain", "rest"), prefix)


def computed(engine: str, mask: Mask, kv_heads: int, softcap: float | None) -> list[torch.Tensor]:
    shapes = (
        (4, mask.q_pos.shape[1]),
        (kv_heads, mask.k_pos.shape[1]),
        (kv_heads, mask.k_pos.shape[1]),
    )
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, *shape, 8, generator=draw).requires_grad_() for shape in shapes)
    real = (mask.q_pos >= 0)[:, None, :, None]
    z = (
        ENGINES[engine].run(AttentionInputs(q, k, v, mask, None, 0.5, softcap)) * real
    )  # what comes of nothing is used by nobody
    (z * torch.randn(z.shape, generator=draw)).sum().backward()
    return [z.detach(), q.grad, k.grad, v.grad]


@every_rule
@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("engine", ["block_sparse", "cpu_blocks", "sdpa"])
def test_every_engine_equals_eager(engine, name, mask_rule, monkeypatch):
    monkeypatch.setattr(block_mask, "BLOCK", 8)  # several blocks
    monkeypatch.setattr(block_mask, "TILE_SCORES", 256)  # several tiles
    monkeypatch.setattr(cpu_blocks, "BLOCK", 16)
    for causal, kv_heads, softcap in (
        (True, 2, None),
        (False, 4, 3.0 if engine == "block_sparse" else None),
    ):
        mask = situation(name, mask_rule, causal)
        result = computed(engine, mask, kv_heads, softcap)
        for remaining, right in zip(
            result, computed("eager", mask, kv_heads, softcap), strict=True
        ):
            torch.testing.assert_close(remaining, right, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mask_rule",
    [c.Window(9) & c.Every(2), c.Window(9) | c.Tail(6, 2), c.Chunk(6), c.Prefix(4)],
    ids=str,
)
def test_the_compiler_traces_a_mask_in_one_piece(mask_rule):
    pos = torch.arange(25)[None]
    traced = torch.compile(
        lambda pos: Mask(pos, pos, True, mask_rule).dense(), backend="eager", fullgraph=True
    )
    assert torch.equal(traced(pos)[0, 0], dense(mask_rule, causal=True))


@pytest.mark.parametrize("family", ["starcoder2", "strided", "fixed", "prefix", "mixed", "gemma2"])
@pytest.mark.parametrize("chunks", [[40], [3, 37], [17, 1, 1, 21]], ids=str)
def test_sparse_reads_a_cache_in_chunks(family, chunks, monkeypatch, chosen):
    monkeypatch.setattr(block_mask, "BLOCK", 8)
    model = tiny.model(tiny.DECODERS[family])
    second_tokens = tokens(2, 40)
    logits = model(second_tokens).logits
    model.engine, cache = "block_sparse", Cache(model.config)
    joined = torch.cat(
        [model(piece, cache=cache).logits for piece in second_tokens.split(chunks, dim=1)], dim=1
    )
    torch.testing.assert_close(joined, logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mask_rule", [c.Window(9), c.Strided(5), c.Fixed(7, 2)], ids=str)
@pytest.mark.parametrize("name", ["plain", "left"])
def test_the_gradient_is_that_of_small_differences(mask_rule, name, monkeypatch):
    """With dropout, whose draw is the same each time, and capped scores, in float64."""
    monkeypatch.setattr(block_mask, "BLOCK", 8)
    mask = situation(name, mask_rule, causal=True, length=20)
    rows = len(mask.q_pos)
    inputs = [
        torch.randn(rows, heads, 20, 3, dtype=torch.float64, requires_grad=True)
        for heads in (2, 1, 1)
    ]

    def run(*inputs):
        torch.manual_seed(5)
        return ENGINES["block_sparse"].run(
            AttentionInputs(*inputs, mask, None, 0.7, softcap=2.0, dropout=0.3)
        )

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


def test_dropout_drops_its_share_and_keeps_the_mean():
    pos = torch.arange(64)[None]
    mask = Mask(pos, pos, True, c.Window(16), contiguous=True)
    q = torch.randn(1, 1, 64, 64)
    ones = torch.eye(64)[None, None]  # what comes out is the pattern itself
    sparse, inputs = ENGINES["block_sparse"].run, AttentionInputs(q, q, ones, mask, None, 0.1)
    full = sparse(inputs)
    dropped = torch.stack([sparse(inputs._replace(dropout=0.25)) for _ in range(400)])
    observed = full > 0
    assert (dropped[:, observed] == 0).float().mean() == pytest.approx(0.25, abs=0.01)
    torch.testing.assert_close(dropped.mean(0), full, rtol=0, atol=0.12)
    saved = dropped > 0
    torch.testing.assert_close(dropped[saved], (full / 0.75).expand_as(dropped)[saved])


class Largest(TorchDispatchMode):
    """The most numbers that any tensor made within holds."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                self.numbers = max(
                    self.numbers, item.untyped_storage().nbytes() // item.element_size()
                )
        return result


@pytest.mark.parametrize(
    "mask_rule", [c.Window(32), c.Strided(64), c.Fixed(64, 2), c.Window(64) & c.Every(2)], ids=str
)
@pytest.mark.parametrize("kind", ["plain", "padded"])
def test_long_rows_hold_nothing_of_all_pairs(mask_rule, kind, chosen):
    T = 2048
    pos = torch.arange(T)[None]
    if kind == "padded":
        pos = torch.cat((pos, (pos - 300).clamp(min=-1)))
    mask = Mask(pos, pos, True, mask_rule, contiguous=kind == "plain")
    q, k, v = (torch.randn(len(pos), 2, T, 8, requires_grad=True) for _ in range(3))
    with Largest() as most:
        attend(AttentionInputs(q, k, v, mask, None, 0.3)).sum().backward()
    assert chosen == ["block_sparse"] and mask._dense is None
    assert most.numbers <= T * T // 8


def test_sparse_is_chosen_where_it_pays_and_only_there():
    pos = torch.arange(1024)[None]

    def sparse(mask_rule, length=1024, **kwargs):
        mask = Mask(pos[:, :length], pos[:, :length], True, mask_rule, **kwargs)  # type: ignore[arg-type]
        q = torch.zeros(1, 1, length, 8)
        return choose(AttentionInputs(q, q, q, mask, None, 0.3)).name == "block_sparse"

    document_ids = pos // 128
    assert sparse(c.Window(64), contiguous=True)
    assert sparse(c.Full(), document_ids=(document_ids, document_ids))
    assert not sparse(c.Full(), contiguous=True)  # a fused kernel knows it
    assert not sparse(c.Full())  # half of all pairs
    assert not sparse(c.Window(700), contiguous=True)
    assert not sparse(c.Window(16), length=256, contiguous=True)


# --------------------------------------------------------------------- counts and pictures


@every_rule
@pytest.mark.parametrize("causal", [True, False])
def test_counts(mask_rule, causal, monkeypatch):
    monkeypatch.setattr("glassformer.core.config.mask_arrays.PAIRS_AT_ONCE", 100)  # several parts
    assert count_pairs(mask_rule, 37, causal) == dense(mask_rule, 37, causal).sum()
    pattern = (tiny.block(c.Attention(4, mask=mask_rule)),)
    if causal:
        model: c.Model = tiny.decoder(*pattern, position=c.NoPosition(), depth=1)
    else:
        body = c.Stack(1, pattern, causal=False)
        model = c.Encoder(tiny.DIM, tiny.CONTEXT, c.Embed(tiny.VOCAB), body)
    flops = cost.cost(model, context=37).attention_flops
    assert flops == pytest.approx(4 * tiny.DIM * count_pairs(mask_rule, 37, causal) / 37)


def test_a_picture_in_the_terminal(capsys):
    assert main(["masks", "Window(2) | every(4)", "--length", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == [
        "██░░ · ·░░ ·",
        "████░░ · ·░░",
        " ·████░░ · ·",
        " · ·████░░ ·",
        "██ · ·████░░",
        " ·██ · ·████",
    ]
    assert "13 of 36 pairs" in "\n".join(lines) and "20 of 36 pairs" in "\n".join(lines)


@pytest.mark.parametrize("name", [*rules(), *masks.SCENES])
def test_every_name_has_a_picture_and_a_count(name, capsys):
    assert main(["masks", name, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    drawn = masks.picture(name)
    assert data["visited"]["decoder"] == int((drawn.cells == masks.SEEN).sum())
    assert data["visited"]["encoder"] == int((drawn.cells > masks.NEVER).sum())
    assert 0 < data["share_of_causal"] <= 2


@pytest.mark.parametrize(
    "name", [*masks.EXAMPLES, *masks.SCENES, "window(9) & every(2) | prefix(3)"]
)
def test_a_picture_is_the_mask_that_a_model_has(name):
    pos = torch.arange(24)[None]
    mask_rule = c.Full() if name in masks.SCENES else parse_rule(masks.EXAMPLES.get(name, name))
    document_ids = (pos // 8, pos // 8) if name == "documents" else None
    keys = pos.where(pos < 16, -1) if name in ("padding", "cross") else pos
    pair, before = (
        Mask(pos, keys, causal and name != "cross", mask_rule, document_ids).dense()[0, 0]
        for causal in (False, True)
    )
    assert torch.equal(torch.from_numpy(masks.picture(name).cells), pair.long() + before.long())


@pytest.mark.parametrize("name", ["full", "window(5)", "strided(4)", "prefix(6)"])
def test_a_ring_shows_who_computes_what(name, capsys):
    length, size = 21, 3
    drawn = masks.picture(name, length, ring=size)
    shards = [
        [i for piece in ring_piece for i in piece if i < length]
        for ring_piece in ring_pieces(length, size)
    ]
    pos = torch.arange(length)[None]
    mask = Mask(pos, pos, True, parse_rule(name)).dense()[0, 0]
    for process, shard in enumerate(shards):
        observed = mask[shard]
        assert torch.equal(torch.from_numpy(drawn.cells[shard] == masks.SEEN + process), observed)
        steps = [int(observed[:, shards[(process - step) % size]].sum()) for step in range(size)]
        assert drawn.pairs is not None and drawn.pairs[process].tolist() == steps
    assert main(["masks", name, "--ring", "3", "--length", "21"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(" 0") and lines[-1].startswith("process 2: columns 8-11 and 12-15;")
    assert drawn.png().startswith(b"\x89PNG") and masks.PROCESSES[2] in drawn.svg()
    assert [len(item["steps"]) for item in drawn.to_dict()["ring"]] == [3, 3, 3]  # type: ignore[attr-defined]
    assert main(["masks", name, "--ring", "1"]) == 2 and "2 or more" in capsys.readouterr().err


def test_names_are_listed(capsys):
    assert main(["masks"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*rules(), *masks.SCENES, "a & b"))


def test_pictures_in_files(tmp_path, capsys):
    assert main(["masks", "fixed(6, 2)", "--out", str(tmp_path / "a.svg")]) == 0
    assert main(["masks", "fixed(6, 2)", "--length", "3000", "--out", str(tmp_path / "a.png")]) == 0
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.startswith("<svg") and drawn.count("<rect") > 24
    data = (tmp_path / "a.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert width == height == 1000  # three tokens a dot
    start = data.index(b"IDAT")
    size = struct.unpack(">I", data[start - 4 : start])[0]
    lines = zlib.decompress(data[start + 4 : start + 4 + size])
    assert len(lines) == height * (3 * width + 1)
    pixels = np.frombuffer(lines, np.uint8).reshape(height, -1)[:, 1:].reshape(-1, 3)
    palette = [list(bytes.fromhex(color[1:])) for color in masks.COLORS]
    assert np.unique(pixels, axis=0).tolist() == sorted(palette)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["windw(4)"], 'Did you mean "window"?'),
        (["window(0)"], "above 0"),
        (["window"], None),
        (["window(4) + full"], "& and |"),
        (["window(4, 5)"], "write window(size)"),
        (["window(4) & fixed"], "write fixed(block, summary)"),
        (["window(four)"], "integers"),
        (["window(True)"], "integers"),
        (["fixed(4, block=2)"], "write fixed(block, summary)"),
        (["window(**{})"], "write window(size)"),
        (["(lambda: 1)()"], "is not a rule"),
        (["window(4"], "is not a rule"),
        (["(" * 500], "is not a rule"),
        (["full", "--length", "0"], "1 or more"),
        (["full", "--length", "99999"], "at most"),
        (["full", "--out", "a.gif"], ".svg nor .png"),
        (["full", "--out", "/dev/null/a.svg"], "/dev/null"),
    ],
    ids=str,
)
def test_slips_are_named(words, message, capsys):
    code = main(["masks", *words])
    error = capsys.readouterr().err
    if message is None:
        assert code == 0
    else:
        assert code == 2 and message in error and error.count("\n") == 1


def test_a_model_with_a_prefix_reads_it_in_one_go():
    model = tiny.model(tiny.DECODERS["prefix"])
    with pytest.raises(UserError, match="first 3 tokens in one go"):
        model(tokens(1, 2), cache=Cache(model.config))
    pos = torch.tensor([[-1, -1, 0, 1]])
    with pytest.raises(UserError, match="in one go"):
        model(tokens(1, 4), pos=pos, cache=Cache(model.config))
