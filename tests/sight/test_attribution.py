"""What the parts added sums to the logit, and each is the gradient along what it wrote when norms
and readers hold.

``attribution`` names what ``recording/causes`` carried back.
"""

from __future__ import annotations

import copy
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer.core.nn import Tape, build_model
from glassformer.core.nn.layers import LayerNorm, RMSNorm
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import tuning
from glassformer.sight import attribute, edits, logits_by_depth, look
from mistakes import mistake
from seeding import generator_from
from tiny import inputs_of

STORIES = (
    Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared/data"))
    / "stories260K"
)
STACKED = {name: cfg for name, cfg in tiny.ALL.items() if not cfg.recurrent.get("decoder")}
STACKED.pop("reader")
MODELS = {
    **STACKED,
    "narrow": replace(
        tiny.bert(),
        embed=c.Embed(tiny.VOCAB, segments=2, dim=24),
        head=c.Head(tied=False, transform="tanh"),
    ),
    "scaled": replace(
        tiny.DECODERS["glass"],
        embed=c.Embed(tiny.VOCAB, scale=3.0, previous_token_embeddings=2),
        head=c.Head(scale=0.5, bias=True),
    ),
}

POOLS = {
    "labels": tiny.ALL["bert"],
    "last": replace(tiny.ALL["pooled"], pool=c.Pool("last", labels=2)),
    "attention": tiny.ALL["pooled"],
    "mean": replace(tiny.ALL["llama"], pool=c.Pool("mean", labels=3)),
    "max": replace(tiny.ALL["gpt2"], pool=c.Pool("max", "gelu", labels=3)),
    "unit": replace(tiny.ALL["mixtral"], pool=c.Pool("mean", "tanh", labels=3, normalize=True)),
    "across": replace(tiny.ALL["t5"], pool=c.Pool("mean", labels=2)),
}


def model_of(name):
    """In fp64, no bias zero and no gain one."""
    model = tiny.model({**MODELS, **POOLS}[name]).double()
    draw = generator_from(0)
    with torch.no_grad():
        for name_of_weight, weight in model.named_parameters():
            if weight.ndim == 1 or name_of_weight.endswith("down_bias"):
                weight += 0.2 * torch.randn(weight.shape, generator=draw)
    return model


@pytest.mark.parametrize("name", [*MODELS, *POOLS])
@pytest.mark.parametrize("against", [None, 0])
def test_the_parts_sum_to_the_logit(name, against):
    """Of a token at a place, or of a label of the whole text."""
    model, of_label = model_of(name), name in POOLS
    args, place = inputs_of(model), {"of": "label"} if of_label else {"position": 4}
    attribution = attribute(model, None, **args, token=1, against=against, **place)
    with torch.no_grad():
        out = model(*args.values())
    logits = raw = out.pooled[0] if of_label else out.logits[0, 4]
    if cap := not of_label and model.config.head.softcap:
        raw = cap * torch.atanh(logits / cap)
    capped, logit = (
        (x[1] - (0.0 if against is None else x[against])).item() for x in (logits, raw)
    )
    assert attribution.capped == (pytest.approx(capped, abs=1e-12) if cap else None)
    assert attribution.logit == pytest.approx(logit, abs=1e-11)
    assert attribution.position == place.get("position")
    assert attribution.sum == math.fsum(piece.value for piece in attribution.parts)
    assert abs(attribution.sum - logit) < 1e-9 and attribution.difference < 1e-9
    by_block = sum(value for _, kinds in attribution.by_block() for value in kinds.values())
    assert by_block == pytest.approx(attribution.sum)
    places = {(piece.kind, piece.address, piece.index) for piece in attribution.parts}
    assert len(places) == len(attribution.parts)
    if of_label:
        likeliest = attribute(model, None, **args, of="label")
        assert likeliest.token == int(logits.argmax())
        assert likeliest.piece == f"label {likeliest.token}"


class Held(nn.Module):
    """A norm at the scale of its first input; a gradient does not pass through the scale."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        right = self.norm(x)
        gain = (
            1.0
            if self.norm.weight is None
            else self.norm.weight + getattr(self.norm, "offset", 0.0)
        )
        shift = getattr(self.norm, "bias", None)
        y = x - x.mean(-1, keepdim=True) if isinstance(self.norm, LayerNorm) else x
        scale = (y.square().mean(-1, keepdim=True) + self.norm.eps).rsqrt().detach()
        y = y * scale * gain + (0.0 if shift is None else shift)
        assert_close(y, right)
        return y


def linear_in_the_stream(model):
    """A copy whose norms on the stream hold, and whose sublayers read without being asked for a
    gradient."""
    stored = copy.deepcopy(model)
    body = getattr(stored, stored.config.main_body)
    for path, module in list(body.named_modules()):
        if isinstance(module, LayerNorm | RMSNorm) and not path.endswith(("q_norm", "k_norm")):
            above, _, leaf = path.rpartition(".")
            setattr(body.get_submodule(above), leaf, Held(module))
        if path.endswith((".attn", ".ffn", ".cross")):
            module.register_forward_pre_hook(lambda _, args: (args[0].detach(), *args[1:]))
    return stored


@pytest.mark.parametrize(
    "name",
    [
        *(name for name, cfg in MODELS.items() if getattr(cfg.head, "transform", None) is None),
        *("last", "mean", "across"),
    ],
)
def test_each_sublayer_added_its_gradient_times_its_write(name):
    """Independent of the sweep: PyTorch's own gradient of the logit, through norms that hold; of a
    label's at all positions together."""
    model, of_label = model_of(name), name in POOLS
    args, place = inputs_of(model), {"of": "label"} if of_label else {"position": 4}
    attribution = attribute(model, None, **args, token=1, against=0, **place)
    body = model.config.main_body
    tape = Tape(f"{body}.*.write", "embed.*", graph=True)
    out = linear_in_the_stream(model)(*args.values(), tape=tape)
    logits = out.pooled[0] if of_label else out.logits[0, 4]
    if cap := not of_label and model.config.head.softcap:
        logits = cap * torch.atanh(logits / cap)
    values = {  # not a mixture's shared expert
        path: value
        for path, value in tape.records.items()
        if value.requires_grad and path.count(".") != 5
    }
    grads = torch.autograd.grad(logits[1] - logits[0], [*values.values()], allow_unused=True)
    places = slice(None) if of_label else 4
    count = 0
    for (path, value), grad in zip(values.items(), grads, strict=True):
        if grad is not None:
            along = (grad[0, places] * value[0, places]).sum().item()
            addresses = (path.removesuffix("write"), f"{path}[")
            local = [p.value for p in attribution.parts if p.address.startswith(addresses)]
            assert local and math.fsum(local) == pytest.approx(along, abs=1e-9), path
            count += 1
    assert count >= len(model.get_submodule(body).blocks) + 1


def test_heads_by_hand():
    """One head of a GPT-2: its slice of the output matrix, centred, scaled, times the token's
    row."""
    model = model_of("gpt2")
    tokens = tiny.tokens(1, 9)
    tape = Tape("decoder.blocks.0.attn.z", "decoder.blocks.1.resid")
    with torch.no_grad():
        model(tokens, tape=tape)
        block, last = model.decoder.blocks[0], model.decoder.last_norm
        wrote = block.attn.out.weight[:, 16:24] @ tape["decoder.blocks.0.attn.z"][0, 2, 4]
        x = tape["decoder.blocks.1.resid"][0, 4]
        scale = 1 / (((x - x.mean()) ** 2).mean() + last.eps).sqrt()
        right = ((wrote - wrote.mean()) * scale * last.weight) @ model.embed.token.weight[7]
    attribution = attribute(model, None, tokens, token=7, position=4)
    (piece,) = [p for p in attribution.parts if p.address == "decoder.blocks.0.attn.z[2,4]"]
    assert (piece.kind, piece.block, piece.index) == ("head", 0, 2)
    assert piece.value == pytest.approx(right.item(), abs=1e-12)


def kinds(result):
    return {
        kind: sum(piece.kind == kind for piece in result.parts)
        for kind in sorted({p.kind for p in result.parts})
    }


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("gpt2", {"bias": 5, "head": 8, "mlp": 2, "position": 1, "token": 1}),
        ("llama", {"head": 8, "mlp": 2, "token": 1}),
        ("deepseek", {"expert": 6, "head": 8, "shared expert": 2, "token": 1}),
        ("noisy", {"bias": 4, "expert": 4, "head": 8, "token": 1}),
        ("glass", {"head": 8, "lag": 3, "mlp": 2, "token": 1}),
        ("attention-only", {"head": 16, "token": 1}),
        ("t5", {"cross head": 8, "head": 8, "mlp": 2, "token": 1}),
        ("bert", {"bias": 12, "head": 8, "mlp": 2, "position": 1, "segment": 1, "token": 1}),
        ("gemma2", {"head": 16, "mlp": 4, "token": 1}),
    ],
)
def test_every_part_is_there(name, right):
    model = model_of(name)
    assert kinds(attribute(model, None, **inputs_of(model))) == right


def test_low_rank_changes_are_in_it():
    model = model_of("llama")
    layers = ["decoder.blocks.0.attn.out", "decoder.blocks.1.ffn.down", "decoder.blocks.1.attn.q"]
    before = attribute(model, None, tiny.tokens(1, 9), token=7)
    tuning.adapt(model, dict.fromkeys(layers, (2, 1.5)))
    with torch.no_grad():
        for layer in tuning.adapted(model).values():
            layer.down.normal_()
            layer.up.normal_(std=0.1)
    apart = attribute(model, None, tiny.tokens(1, 9), token=7)
    assert apart.difference < 1e-9 and abs(apart.logit - before.logit) > 1e-3
    tuning.merge_and_unload(model)
    merged = attribute(model, None, tiny.tokens(1, 9), token=7)
    for item, second in zip(apart.parts, merged.parts, strict=True):
        assert item.value == pytest.approx(second.value, abs=1e-5)  # a change is merged in fp32


def test_in_fp32_and_bf16_the_sum_is_the_logit_within_rounding():
    model = tiny.model("mixtral")
    assert attribute(model, None, tiny.tokens(1, 9)).difference < 1e-5
    assert attribute(model.bfloat16(), None, tiny.tokens(1, 9)).difference < 0.5


EDITS: dict[str, list[Any]] = {
    "head": [edits.head_off("{body}.blocks.0.attn", 1)],
    "mlp": [edits.scale("{body}.blocks.1.ffn.hidden", 0.0)],
    "stream": [edits.scale("{body}.blocks.0.resid", 1.5), edits.scale("{body}.blocks.1.mid", 0.5)],
    "ends": [
        edits.scale("{body}.embed", 2.0),
        edits.scale("{body}.out", 0.7),
        edits.scale("embed.token", 1.1),
    ],
    "writes": [
        edits.scale("{body}.blocks.*.attn.write", 3.0),
        edits.scale("{body}.blocks.*.ffn.write", -1.0),
    ],
}


@pytest.mark.parametrize(
    "name", ["gpt2", "phi2", "gemma2", "bert", "t5", "vaswani", "deepseek", "glass"]
)
@pytest.mark.parametrize("kind", EDITS)
def test_under_edits_the_parts_sum_to_the_edited_logit(name, kind):
    model = model_of(name)
    args, body = inputs_of(model), model.config.main_body
    changes = [replace(edit, path=edit.path.replace("{body}", body)) for edit in EDITS[kind]]
    if name == "phi2":
        changes = [edit for edit in changes if not edit.path.endswith(".mid")]
    attribution = attribute(model, None, **args, token=7, position=4, edits=changes)
    logit = look(model, None, args["text"], source=args.get("source"), edits=changes)["logits"][
        0, 4, 7
    ]
    if (cap := model.config.head.softcap) is not None:
        logit = cap * torch.atanh(logit / cap)
    assert attribution.difference < 1e-9 and attribution.sum == pytest.approx(
        logit.item(), abs=1e-9
    )
    plain = attribute(model, None, **args, token=7, position=4)
    assert abs(plain.logit - attribution.logit) > 1e-6
    assert any(piece.kind == "edit" for piece in attribution.parts) == (
        kind in ("stream", "ends", "writes")
    )


def test_the_likeliest_at_the_end_and_a_blank_in_an_encoder():
    model = model_of("llama")
    tokens = tiny.tokens(1, 9)
    (*_, individual) = logits_by_depth(model, tokens).values()
    attribution = attribute(model, None, tokens)
    assert (attribution.position, attribution.token) == (8, individual[-1].argmax().item())
    tokenizer = train_tokenizer("byte", specials=("[CLS]", "[SEP]", "[MASK]"))
    encoder = build_model(replace(tiny.OTHERS["bert"], embed=c.Embed(260, segments=2)), seed=1)
    assert attribute(encoder, tokenizer, "ab___c").position == 3
    assert "Fixed at its gate" in attribute(encoder, tokenizer, "ab___c").notes[0]


@pytest.mark.parametrize("name", ["gru", "bahdanau", "reader"])
def test_a_recurrent_model_has_no_stream(name):
    model = tiny.model(name)
    with mistake("a recurrent model has none; use `glassformer saliency`"):
        attribute(model, None, **inputs_of(model))


def test_one_clear_sentence():
    model = tiny.model("llama")
    with mistake("same one"):
        attribute(model, None, [1, 2], token=3, against=3)
    with mistake("no head over tokens"):
        attribute(
            build_model(replace(tiny.DECODERS["llama"], head=None), seed=1),
            None,
            [1, 2],
        )
    with mistake("Position 5 is not in the text"):
        attribute(model, None, [1, 2], position=5)


def test_a_part_of_the_users_own_is_split_too():
    class Own(RMSNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    model = model_of("llama")
    model.decoder.last_norm.__class__ = Own
    attribution = attribute(model, None, [1, 2])
    assert attribution.difference < 1e-9
    assert kinds(attribution) == {"head": 8, "mlp": 2, "token": 1}


@pytest.mark.skipif(not STORIES.is_dir(), reason=f"{STORIES} is not there")
def test_the_command(terminal):
    text = "Once upon a time, there was a little girl named Lily. She loved to"
    off = 'head_off("decoder.blocks.4.attn", 2)'
    line = f"attribution {STORIES} '{text}'"
    data = terminal.json(line)
    assert data["piece"] == "▁play" and data["difference"] < 1e-4
    assert data["sum"] == pytest.approx(sum(item["value"] for item in data["parts"]))
    output = terminal(f"{line} --against s --top 3")
    assert "The logit of ·play less that of s at position 19: " in output and "43 more" in output
    assert "the model's own" in output
    output = terminal(f"{line} --top 3 --edit '{off}'")
    assert f", with {off}: " in output and "the edited run's own" in output
    assert "the model's own" not in output
    assert terminal.json(f"{line} --edit '{off}'")["edits"] == [off]


def test_an_edited_label_is_taken_apart():
    """Edits of the stream, of the pooled vector and of the label itself are parts of their own."""
    model, tokens = model_of("mean"), tiny.tokens(1, 9)
    changes = [
        edits.head_off("decoder.blocks.0.attn", 1),
        edits.scale("decoder.blocks.0.resid", 2.0, positions=3),
        edits.scale("pool.vector", 1.5),
        edits.scale("pool.write", 3.0),
    ]
    plain = attribute(model, None, tokens, token=2, of="label")
    attribution = attribute(model, None, tokens, token=2, of="label", edits=changes)
    assert attribution.difference < 1e-9 and abs(attribution.logit - plain.logit) > 1e-3
    assert {p.address for p in attribution.parts if p.kind == "edit"} >= {
        "pool.write",
        "pool.vector",
    }
    assert (
        sum(p.value for p in attribution.parts if p.address == "decoder.blocks.0.attn.z[1,:]")
        == 0.0
    )
    assert not any(p.kind == "edit" for p in plain.parts)


def test_labels_that_are_not_there():
    with mistake("no labels"):
        attribute(tiny.model("llama"), None, tiny.tokens(1, 4), of="label")
    model = tiny.model(POOLS["mean"])
    for wrong, message in (("7", "has 0 to 2"), ("cat", "has 0 to 2")):
        with mistake(message):
            attribute(model, None, tiny.tokens(1, 4), token=wrong, of="label")
    with mistake("whole text"):
        attribute(model, None, tiny.tokens(1, 4), position=2, of="label")
    with mistake("same one"):
        attribute(model, None, tiny.tokens(1, 4), token=1, against=1, of="label")
