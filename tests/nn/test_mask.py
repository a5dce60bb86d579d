"""Who may look at whom: rules, their algebra, their pictures, and engines that compute what is
visited and no more."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import tiny
from glassformer import config as c
from glassformer.core.config import serial
from glassformer.core.config.mask import ring_pieces
from glassformer.core.config.mask_expressions import parse_rule, rules
from glassformer.core.nn import Cache, Mask
from glassformer.core.nn.attention import ENGINES, AttentionInputs, attend, choose
from glassformer.fast import block_mask, cpu_blocks
from glassformer.scale import cost
from glassformer.scale.cost import count_pairs
from glassformer.sight import masks
from mistakes import SENTENCES, mistake
from seeding import generator_from
from tiny import tokens

RULES_DRAWN = {  # by hand from their definitions: query i, key j
    c.Full(): lambda i, j: True,
    c.Causal(): lambda i, j: j <= i,
    c.Prefix(6): lambda i, j: j <= i or j < 6,
    c.Window(5): lambda i, j: abs(i - j) < 5,
    c.Every(4): lambda i, j: (i - j) % 4 == 0,
    c.Chunk(6): lambda i, j: i // 6 == j // 6,
    c.Tail(6, 2): lambda i, j: j % 6 in (4, 5) or i == j,
    # Child et al. 2019, section 4.2
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


def drawn(allowed, length=25):
    return torch.tensor([[bool(allowed(i, j)) for j in range(length)] for i in range(length)])


every_rule = pytest.mark.parametrize("mask_rule", RULES_DRAWN, ids=str)


def dense(mask_rule, length=25, causal=False, **kwargs):
    pos = torch.arange(length)[None]
    return Mask(pos, pos, causal, mask_rule, **kwargs).dense()[0, 0]


@every_rule
def test_a_rule_allows_what_its_definition_says(mask_rule):
    allowed = RULES_DRAWN[mask_rule]
    early = mask_rule.prefix_length
    assert torch.equal(dense(mask_rule), drawn(allowed))
    before = drawn(lambda i, j: allowed(i, j) and (j <= i or j < early))
    assert torch.equal(dense(mask_rule, causal=True), before)
    assert dense(mask_rule).diagonal().all(), (
        "a token sees itself, so that no row of the softmax is empty"
    )


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
    pos = torch.arange(25)[None]
    prefix = (pos >= 4) & (pos < 12)  # of the data
    early = drawn(lambda i, j: j <= i or j < 12)
    assert torch.equal(dense(c.Prefix(6), causal=True, prefix=prefix), early)
    near = early & drawn(lambda i, j: abs(i - j) < 4)
    assert torch.equal(dense(c.Prefix(6) & c.Window(4), causal=True, prefix=prefix), near)


@pytest.mark.parametrize(
    "mask_rule, lookback",
    [
        (c.Window(7), 7),
        (c.Window(7) & c.Strided(3), 7),
        (c.Full() & c.Window(7), 7),
        (c.Window(7) | c.Window(9), 9),
        ((c.Window(20) & c.Window(9)) | c.Window(3), 9),
        *((rule, None) for rule in (c.Full(), c.Strided(4), c.Fixed(4), c.Causal(), c.Prefix(3))),
        (c.Window(7) | c.Full(), None),
    ],
    ids=str,
)
def test_how_far_back_a_rule_looks(mask_rule, lookback):
    assert mask_rule.lookback == lookback


def test_a_cache_keeps_no_more_than_the_rule_can_reach():
    model = tiny.model("mixed")
    cache = Cache(model.config)
    second_tokens = tokens(1, 60)
    logits = [
        model(piece, cache=cache).logits for piece in second_tokens.split([3, *[1] * 57], dim=1)
    ]
    assert [slots.ring for slots in cache.slots.values()] == [9, None]
    # the window and a bin, though the rule is more than a window
    assert cache.layers[0][0].k.shape[2] == 9 + 1
    assert_close(torch.cat(logits, 1), model(second_tokens).logits, rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------------- engines

SITUATIONS = ("plain", "rest", "left", "right", "documents", "prefix", "across")


def situation(name, mask_rule, causal, length=45):
    """A mask over two rows: padded, packed, with a prefix, of the last queries, or of other keys
    than queries."""
    pos = torch.arange(length)[None]
    fields = {"contiguous": name in ("plain", "rest")}
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
        q_pos = k_pos = pos - border * individual
        fields["document_ids"] = (individual, individual)
    elif name == "prefix":
        fields["prefix"] = pos < torch.tensor([[9], [21]])
    elif name == "across":
        k_pos = torch.cat((pos[:, :30], pos[:, :30].where(pos[:, :30] < 21, -1)))
        causal = False
        mask_rule = c.Full()  # all of the encoder's output
    return Mask(q_pos, k_pos, causal, mask_rule, **fields)


def computed(engine, mask, kv_heads, softcap):
    draw = generator_from(0)
    T = mask.q_pos.shape[1]
    S = mask.k_pos.shape[1]
    q, k, v = (
        torch.randn(2, *shape, 8, generator=draw).requires_grad_()
        for shape in ((4, T), (kv_heads, S), (kv_heads, S))
    )
    z = ENGINES[engine].run(AttentionInputs(q, k, v, mask, None, 0.5, softcap))
    z = z * (mask.q_pos >= 0)[:, None, :, None]  # what comes of nothing is used by nobody
    (z * torch.randn(z.shape, generator=draw)).sum().backward()
    return [z.detach(), q.grad, k.grad, v.grad]


@every_rule
@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("engine", ["block_sparse", "cpu_blocks"])
def test_every_engine_equals_eager(engine, name, mask_rule, monkeypatch):
    monkeypatch.setattr(block_mask, "BLOCK", 8)  # several blocks
    monkeypatch.setattr(block_mask, "TILE_SCORES", 256)  # several tiles
    monkeypatch.setattr(cpu_blocks, "BLOCK", 16)
    capped = 3.0 if engine == "block_sparse" else None
    for causal, *options in ((True, 2, None), (False, 4, capped)):
        mask = situation(name, mask_rule, causal)
        pairs = zip(
            computed(engine, mask, *options), computed("eager", mask, *options), strict=True
        )
        for result, expected in pairs:
            assert_close(result, expected, rtol=1e-5, atol=1e-5)


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
    model = tiny.model(family)
    second_tokens = tokens(2, 40)
    logits = model(second_tokens).logits
    model.engine, cache = "block_sparse", Cache(model.config)
    joined = torch.cat(
        [model(piece, cache=cache).logits for piece in second_tokens.split(chunks, dim=1)], dim=1
    )
    assert_close(joined, logits, rtol=0, atol=1e-5)


class Largest(TorchDispatchMode):
    """The most numbers that any tensor made within holds."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                size = item.untyped_storage().nbytes() // item.element_size()
                self.numbers = max(self.numbers, size)
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
    assert chosen == ["block_sparse"]
    assert mask._dense is None
    assert most.numbers <= T * T // 8


@pytest.mark.parametrize(
    "mask_rule, length, options, sparse",
    [
        (c.Window(64), 1024, {"contiguous": True}, True),
        (c.Full(), 1024, {"document_ids": (torch.arange(1024)[None] // 128,) * 2}, True),
        (c.Full(), 1024, {"contiguous": True}, False),  # a fused kernel knows it
        (c.Full(), 1024, {}, False),  # half of all pairs
        (c.Window(700), 1024, {"contiguous": True}, False),
        (c.Window(16), 256, {"contiguous": True}, False),
    ],
)
def test_sparse_is_chosen_where_it_pays_and_only_there(mask_rule, length, options, sparse):
    pos = torch.arange(length)[None]
    q = torch.zeros(1, 1, length, 8)
    engine = choose(AttentionInputs(q, q, q, Mask(pos, pos, True, mask_rule, **options), None, 0.3))
    assert (engine.name == "block_sparse") == sparse


# --------------------------------------------------------------------- counts and pictures


@every_rule
@pytest.mark.parametrize("causal", [True, False])
def test_counts(mask_rule, causal, monkeypatch):
    monkeypatch.setattr("glassformer.core.config.mask.PAIRS_AT_ONCE", 100)  # several parts
    assert count_pairs(mask_rule, 37, causal) == dense(mask_rule, 37, causal).sum()
    pattern = (tiny.block(c.Attention(4, mask=mask_rule)),)
    if causal:
        model = tiny.decoder(*pattern, position=c.NoPosition(), depth=1)
    else:
        body = c.Stack(1, pattern, causal=False)
        model = c.Encoder(tiny.DIM, tiny.CONTEXT, c.Embed(tiny.VOCAB), body)
    flops = cost.cost(model, context=37).attention_flops
    assert flops == pytest.approx(4 * tiny.DIM * count_pairs(mask_rule, 37, causal) / 37)


def test_a_picture_in_the_terminal(terminal):
    lines = terminal("masks 'Window(2) | every(4)' --length 6").splitlines()
    assert lines[:6] == [
        "██░░ · ·░░ ·",
        "████░░ · ·░░",
        " ·████░░ · ·",
        " · ·████░░ ·",
        "██ · ·████░░",
        " ·██ · ·████",
    ]
    assert "13 of 36 pairs" in "\n".join(lines)
    assert "20 of 36 pairs" in "\n".join(lines)


@pytest.mark.parametrize("name", [*rules(), *masks.SCENES])
def test_every_name_has_a_picture_and_a_count(name, terminal):
    assert name in terminal("masks")
    data = terminal.json(f"masks {name}")
    cells = masks.picture(name).cells
    assert data["visited"]["decoder"] == int((cells == masks.SEEN).sum())
    assert data["visited"]["encoder"] == int((cells > masks.NEVER).sum())
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
def test_a_ring_shows_who_computes_what(name, terminal):
    length = 21
    size = 3
    picture = masks.picture(name, length, ring=size)
    shards = [
        [i for piece in ring_piece for i in piece if i < length]
        for ring_piece in ring_pieces(length, size)
    ]
    pos = torch.arange(length)[None]
    mask = Mask(pos, pos, True, parse_rule(name)).dense()[0, 0]
    for process, shard in enumerate(shards):
        observed = mask[shard]
        assert torch.equal(torch.from_numpy(picture.cells[shard]) == masks.SEEN + process, observed)
        steps = [int(observed[:, shards[(process - step) % size]].sum()) for step in range(size)]
        assert picture.pairs[process].tolist() == steps
    lines = terminal(f"masks '{name}' --ring 3 --length 21").splitlines()
    assert lines[0].startswith(" 0")
    assert lines[-1].startswith("process 2: columns 8-11 and 12-15;")
    assert picture.png().startswith(b"\x89PNG")
    assert masks.PROCESSES[2] in picture.svg()
    assert [len(item["steps"]) for item in picture.to_dict()["ring"]] == [3, 3, 3]
    assert "2 or more" in terminal.refused(f"masks '{name}' --ring 1")


def test_pictures_in_files(tmp_path, terminal):
    plt = pytest.importorskip("matplotlib.pyplot")
    terminal(f"masks 'fixed(6, 2)' --out {tmp_path}/a.svg")
    terminal(f"masks 'fixed(6, 2)' --length 3000 --out {tmp_path}/a.png")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.startswith("<svg")
    assert drawn.count("<rect") > 24
    pixels = plt.imread(tmp_path / "a.png")
    assert pixels.shape == (1000, 1000, 3)  # three tokens a dot
    colors = np.unique((pixels.reshape(-1, 3) * 255).round().astype(int), axis=0)
    palette = [list(bytes.fromhex(color[1:])) for color in masks.COLORS]
    assert colors.tolist() == sorted(palette)


@pytest.mark.parametrize(
    "words, message",
    SENTENCES["masks"].items(),
)
def test_slips_are_named(words, message, terminal):
    error = terminal.refused(f"masks '{words}'")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["prefix", "mixed"])
def test_a_model_with_a_prefix_reads_it_in_one_go(name):
    model = tiny.model(name)
    for ids, pos in ((tokens(1, 2), None), (tokens(1, 4), torch.tensor([[-1, -1, 0, 1]]))):
        with mistake("first 3 tokens see each other", "in one go"):
            model(ids, pos=pos, cache=Cache(model.config))
