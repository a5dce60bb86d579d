"""Random configs of everything the vocabulary can say, each held to every law; beyond that, only
rounding differs.

The law is checked in float64, where two ways to one result agree to many digits. In float32 each
way may be as far from the float64 result as the plain forward pass is, times a factor: a bound that
the model itself gives.
"""

from __future__ import annotations

import dataclasses
import random
import re
from dataclasses import replace

import pytest
import torch

import tiny
from glassformer import config as c
from glassformer.core.config import serial
from glassformer.core.nn import Cache, EncoderDecoder, Tape
from glassformer.core.nn.attention import ENGINES
from glassformer.fast import cpu_blocks
from glassformer.formats import weights
from glassformer.scale.cost import cost
from glassformer.sight.layouts import DocumentReader, Documents
from seeding import generator_from

VOCAB = 30
CONTEXT = 32
LENGTH = 17
# how much further from float64 than the plain pass another way may be; and at least so many
# roundings
ROUNDS = 20


def drawn(seed):
    """A valid config; the same seed gives the same."""
    cfg = _first(seed)
    draw = random.Random(-1 - seed)
    turned = {
        name: replace(body, position=replace(body.position, interleaved=draw.random() < 0.5))
        for name, body in cfg.stacks.items()
        if isinstance(body.position, c.Rotary)
    }
    cfg = replace(cfg, **turned)
    if isinstance(cfg, c.Encoder) and draw.random() < 0.3:
        cfg = replace(cfg, token_head=c.TokenHead(draw.randint(1, 4), draw.choice((None, "gelu"))))
    if not cfg.recurrent and not getattr(cfg.head, "tied", False) and draw.random() < 0.3:
        cfg = replace(cfg, embed=replace(cfg.embed, dim=draw.choice((6, 16))))
    return cfg


def _first(seed):
    draw = random.Random(seed)
    choose = draw.choice

    def chance(share):
        return draw.random() < share

    heads = choose((1, 2, 3, 4, 6))
    dim = heads * choose((4, 8)) if chance(0.7) else choose((12, 24, 30))

    def norm():
        layer = c.LayerNorm(choose((1e-5, 1e-12)), chance(0.5))
        return choose((layer, c.RMSNorm(1e-6, choose((0.0, 1.0)), chance(0.8))))

    def mask_rule(depth=0):
        simple = [
            c.Full(),
            c.Causal(),
            c.Prefix(draw.randint(1, 6)),
            c.Window(draw.randint(1, 20)),
            c.Every(draw.randint(1, 5)),
            c.Chunk(draw.randint(1, 9)),
            c.Tail(draw.randint(2, 6), choose((1, 2))),
            c.Strided(draw.randint(1, 6)),
            c.Fixed(draw.randint(2, 7), choose((1, 2))),
        ]
        if depth < 2 and chance(0.25):
            remaining = mask_rule(depth + 1)
            right = mask_rule(depth + 1)
            return remaining & right if chance(0.5) else remaining | right
        return choose(simple)

    def attention(across=False):
        individual = heads if alike else choose((1, 2, 4, heads))
        groups = choose([n for n in range(1, individual + 1) if individual % n == 0])
        width = choose((4, 8, 12)) if dim % individual or chance(0.4) or turning else None
        rules = c.Full() if across or chance(0.4) else mask_rule()
        return c.Attention(
            individual, choose((None, groups)), width, chance(0.5), choose((None, True, False)),
            norm() if chance(0.3) else None, choose((None, 0.1, 1.0)), choose((None, None, 3.0, 30.0)), rules,
        )  # fmt: skip

    def dense():
        act = choose(("relu", "relu2", "gelu", "gelu_tanh", "silu", "tanh"))
        return choose((c.MLP, c.GatedMLP))(choose((8, 20, 33)), act, chance(0.4))

    def feedforward():
        if chance(0.25):
            experts = draw.randint(1, 5)
            shared = dense() if chance(0.3) else None
            return c.MoE(
                experts, draw.randint(1, experts), dense(), chance(0.5), choose((0.0, 0.01)), choose((0.0, 0.001)),
                choose((None, 1.2)), chance(0.3), shared,
            )  # fmt: skip
        return None if chance(0.1) else dense()

    def block(crosses):
        think = feedforward()
        places = ["pre", "post", "sandwich"] + ["parallel"] * (think is not None and not crosses)
        place = choose(places)
        kind = None if place in ("pre", "parallel") and chance(0.1) else norm()
        return c.Block(attention(), think, kind, place, attention(across=True) if crosses else None)

    def scaling():
        waves = 2  # heads of 4, a half or the whole turned: see ``turning``
        return choose((
            None, c.LinearScaling(2.0), c.Llama3Scaling(8.0, 1.0, 4.0, 16), c.YarnScaling(4.0, 16),
            c.LongRopeScaling((1.0,) * waves, tuple(1.0 + i for i in range(waves)), CONTEXT, 4.0, use_long=chance(0.5)),
        ))  # fmt: skip

    def position(causal):
        even = dim % 2 == 0
        return choose((
            c.NoPosition(), c.Sinusoidal(halves=chance(0.5), endpoint=even and chance(0.5), offset=choose((0, 1))),
            c.Learned(CONTEXT), c.Rotary(choose((1e4, 100.0)), choose((0.5, 1.0))), c.RelativeBias(8, choose((5, 16))),
            c.Alibi(), c.Rotary(scaling=c.LinearScaling(2.0)),
        ))  # fmt: skip

    alike = True
    turning = True

    def body(causal, crosses):
        nonlocal alike, turning
        if chance(0.08):
            cross = choose((c.Summary(), c.Additive(choose((4, 12))))) if crosses else None
            pair = causal or dim % 2 == 1
            return c.Recurrent(draw.randint(1, 2), choose((c.GRU(), c.LSTM())), cross, pair)
        scheme = position(causal)
        alike = isinstance(scheme, c.Alibi | c.RelativeBias) or chance(0.6)
        turning = isinstance(scheme, c.Rotary)
        pattern = tuple(block(crosses) for _ in range(choose((1, 1, 2))))
        if turning and chance(0.3):
            pattern = tuple(replace(b, attention=replace(b.attention, head_dim=4)) for b in pattern)
            pattern = tuple(
                replace(b, cross=b.cross and replace(b.cross, head_dim=4)) for b in pattern
            )
            scheme = c.Rotary(scaling=scaling())
        bounds = (norm() if chance(0.3) else None), (norm() if chance(0.8) else None)
        return c.Stack(len(pattern) * choose((1, 2)), pattern, scheme, causal, *bounds)

    embed = c.Embed(VOCAB, choose((1.0, dim**0.5)), choose((0, 0, 2)), choose((0, 0, 0, 2)))
    act = choose((None, None, "gelu", "tanh"))
    untied = chance(0.5)
    head = c.Head(
        not untied,
        chance(0.4),
        act,
        norm() if chance(0.3) else None,
        choose((1.0, 0.3)),
        choose((None, 10.0)),
    )
    init = c.Init(0.3, 0.5, choose(("plain", "depth")), 0.3 if untied and chance(0.5) else None)
    shape = draw.random()
    if shape < 0.6:
        return c.Decoder(dim, CONTEXT, embed, body(True, False), head, init)
    if shape < 0.8:
        pool = (
            c.Pool(
                choose(("first", "last", "mean", "max", "attention")), act, 3, normalize=chance(0.3)
            )
            if chance(0.5)
            else None
        )
        return c.Encoder(dim, CONTEXT, embed, body(False, False), head, init, pool)
    return c.EncoderDecoder(
        dim, CONTEXT, replace(embed, segments=0), body(False, False), body(True, True), head, init
    )


def equal_paths(model, inputs, source, seed):
    """The logits of ``inputs`` (B, T), reached by every path that must not change them."""
    draw = random.Random(seed)
    pair = isinstance(model, EncoderDecoder)
    across = {"source": source} if pair else {}
    for engine in ENGINES:
        # where one cannot compute a layer, another does: test_laws.py tells which ran
        model.engine = engine
        yield f"engine {engine}", model(inputs, **across).logits
    model.engine = "auto"
    yield "tape", model(inputs, tape=Tape("*", edits={}), **across).logits
    documents = Documents(list(inputs), list(source) if pair else None)
    numbers = range(len(inputs))
    layouts = {
        "alone": documents.alone(*numbers),
        "padded left": documents.padded("left"),
        "padded right": documents.padded("right"),
        "packed": documents.packed(),
    }
    if hasattr(model, "decoder"):
        sizes = [max(Cache(model.config).prefix_length, draw.randint(1, 6))]
        while sum(sizes) < LENGTH:
            sizes.append(min(draw.choice((1, 1, 2, 5)), LENGTH - sum(sizes)))
        layouts[f"cached {sizes}"] = documents.chunked(lambda length: sizes, *numbers)
    for name, layout in layouts.items():
        values = DocumentReader(model, documents).read(layout)
        yield name, torch.stack([value["logits"] for value in values])


def hold(seed, monkeypatch):
    """Every law, for the config of this seed."""
    cfg = drawn(seed)
    assert serial.loads(c.Model, serial.dumps(cfg)) == cfg
    generator = generator_from(seed)
    model = tiny.model(cfg, seed=seed)
    assert cost(cfg).total == sum(p.numel() for p in model.parameters())
    assert len(weights.shapes(cfg))
    args, source = (torch.randint(0, VOCAB, (2, n), generator=generator) for n in (LENGTH, 9))
    across = {"source": source} if isinstance(model, EncoderDecoder) else {}
    monkeypatch.setattr(cpu_blocks, "BLOCK", 8)  # so that a row is several blocks
    with torch.no_grad():
        plain = model(args, **across).logits
        single = dict(equal_paths(model, args, source, seed))
        exact = model.double()
        logits = exact(args, **across).logits
        assert logits.isfinite().all()
        assert logits.std() > 0
        size = logits.abs().max().item()
        for name, value in equal_paths(exact, args, source, seed):
            assert (value - logits).abs().max() <= 1e-9 * (1 + size), name
        sure = _sure(exact, args, across)
    rounding = max((plain - logits).abs().max().item(), torch.finfo(torch.float32).eps * (1 + size))
    for name, value in single.items():
        assert not sure or (value - logits).abs().max() <= ROUNDS * rounding, f"{name} in float32"
    model.float().train()
    out = model(args, **across)
    (out.logits.square().mean() + sum(out.aux.values())).backward()
    grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert grads
    assert all(grad.isfinite().all() for grad in grads)


def _sure(model, inputs, across):
    """True where no mixture's choice hangs on so little that float32 may choose otherwise."""
    tape = Tape("*.router")
    model(inputs, tape=tape, **across)
    for path, router in tape.records.items():
        top = model.get_submodule(path.removesuffix(".router")).cfg.top_k
        best = router.topk(min(top + 1, router.shape[-1]), dim=-1).values
        if best.shape[-1] > top and (best[..., top - 1] - best[..., top]).min() < 1e-3:
            return False
    return True


@pytest.mark.parametrize("seed", range(0, 8))
def test_a_drawn_config_obeys_every_law(seed, monkeypatch):
    hold(seed, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 508))
def test_five_hundred_drawn_configs_obey_every_law(seed, monkeypatch):
    hold(seed, monkeypatch)


def test_the_draw_reaches_the_whole_vocabulary():
    text = " ".join(serial.dumps(drawn(seed)) for seed in range(508))
    observed = set(re.findall(r'"(?:type|place)": *"(\w+)"', text))
    types = {kind.__name__ for kind in vars(c).values() if dataclasses.is_dataclass(kind)}
    assert types | {"pre", "post", "sandwich", "parallel"} <= observed
