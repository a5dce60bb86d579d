"""The vocabulary holds what is made in Python to the rules, and the sentences, of the file's
reader."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest

from glassformer import UserError
from glassformer import config as c
from glassformer.core.config import objective, recurrence, run, serial
from glassformer.formats.checkpoint import for_context
from glassformer.tasks import objectives
from mistakes import mistake

BLOCK = c.Block(c.Attention(4), c.MLP(16))
BLOCK_SAID = {"attention": {"heads": 4}, "feedforward": {"type": "MLP", "hidden": 16}}
WRONG = {  # the type, its fields, the sentence that both say
    "a place in capitals": (
        c.Block,
        {**BLOCK_SAID, "place": "Post"},
        '"Post" is not one of "pre", "post", "sandwich"',
    ),
    "an unknown pool": (
        c.Pool,
        {"mode": "cls"},
        '"cls" is not one of "first", "last", "mean", "max", "attention".',
    ),
    "an activation of another library": (
        c.MLP,
        {"hidden": 16, "act": "gelu_new"},
        '"gelu_new" is not one of "relu"',
    ),
    "an init with an s": (
        c.Init,
        {"residual": "zeros"},
        '"zeros" is not one of "plain", "depth", "zero".',
    ),
    "a position by place": (
        c.Stack,
        {"depth": 1, "pattern": [BLOCK_SAID], "position": True},
        "true is not a table with",
    ),
    "a word for a number": (c.MLP, {"hidden": "wide"}, '"wide" is not an integer.'),
    "a truth for a number": (c.Embed, {"vocab": True}, "true is not an integer."),
    "a size past 64 bits": (
        c.MLP,
        {"hidden": 2**63},
        "9223372036854775808 is not a number of 64 bits.",
    ),
    "a float past all": (c.LayerNorm, {"eps": 10**400}, "is not a number of 64 bits."),
    "no number at all": (c.LayerNorm, {"eps": float("nan")}, '"nan" is not a finite number.'),
    "another slot's type": (
        c.Attention,
        {"heads": 2, "qk_norm": {"type": "MLP", "hidden": 4}},
        '"type" is "MLP"; give',
    ),
    "a number among rules": (
        c.Both,
        {"rules": [{"type": "Full"}, 4]},
        "4 is not a table with a type; give one of Full,",
    ),
    "a cell by a wrong name": (
        recurrence.Recurrent,
        {"cell": "GRUU"},
        'there is no "GRUU"; give one of GRU, LSTM.',
    ),
    "a rate in words": (objectives.Masked, {"mask_rate": "much"}, '"much" is not a number.'),
    "an optimizer's number": (run.AdamW, {"betas": [0.9, "b"]}, '"b" is not a number.'),
    "a dtype by another name": (run.Train, {"dtype": "fp16"}, '"fp16" is not one of "auto"'),
    "a very long word": (c.MLP, {"hidden": "x\n\x1b" * 999}, "is not an integer."),
}


@pytest.mark.parametrize("kind, table, sentence", WRONG.values(), ids=WRONG)
def test_python_refuses_what_a_file_may_not_say_in_the_same_words(kind, table, sentence):
    with pytest.raises(UserError) as of_file:
        serial.from_dict(kind, table, getattr(kind, "table", kind.__name__))
    hints = {field.name: field for field in dataclasses.fields(kind)}
    result = {"attention": BLOCK.attention, "feedforward": BLOCK.feedforward, "pattern": (BLOCK,)}
    result |= {"qk_norm": c.MLP(4), "rules": (c.Full(), 4)}
    with pytest.raises(UserError) as of_python:
        kind(**{name: result.get(name, value) for name, value in table.items() if name in hints})
    assert sentence in str(of_file.value)
    assert str(of_python.value) == str(of_file.value)
    assert len(str(of_file.value)) < 300
    assert str(of_file.value).isprintable()


def test_a_missing_feedforward_is_refused_where_it_is_made():
    with mistake(r"Embed\.vocab: null is not an integer"):
        c.Embed(None)
    with mistake(r"Block\.attention: null is not a table"):
        c.Block(None, c.MLP(16))


@pytest.mark.parametrize("name", [["MLP"], {"a": 1}, 7, None], ids=str)
def test_a_type_that_is_no_word_is_refused(name):
    with mistake(r'"type" is .*; give one of LayerNorm, RMSNorm'):
        serial.from_dict(c.Block, {**BLOCK_SAID, "norm": {"type": name}})


def test_a_table_needs_a_type_where_several_fit():
    with mistake('"type" is missing; give one of LayerNorm, RMSNorm'):
        serial.from_dict(c.Norm, {})
    assert serial.from_dict(c.Head | None, {}) == c.Head()


def test_python_takes_what_a_file_may_say():
    stack = c.Stack(np.int64(2), [BLOCK], "NoPosition", dropout=0)
    message = c.Stack(2, (BLOCK,), c.NoPosition(), dropout=0.0)
    assert stack == message
    # no 0 beside 0.0: the same checkpoint, byte for byte
    assert serial.dumps(stack) == serial.dumps(message)
    assert c.MLP(16.0) == c.MLP(16)
    assert run.Train(objective="Masked").objective == objectives.Masked()


def test_every_type_of_the_vocabulary_is_checked():
    pages = (c, recurrence, objective, objectives, run)
    types = {
        v
        for page in pages
        for v in vars(page).values()
        if isinstance(v, type) and dataclasses.is_dataclass(v)
    }
    assert len(types) > 50
    for kind in types:
        values = {f.name: object() for f in dataclasses.fields(kind)}
        if values and not all("Any" in str(f.type) for f in dataclasses.fields(kind)):
            with pytest.raises(UserError):
                kind(**values)


def test_a_table_within_itself_is_told_not_printed():
    table = {}
    table["hidden"] = table
    with mistake("is not an integer"):
        serial.from_dict(c.MLP, table)
    assert json.loads(serial.dumps(BLOCK))["attention"]["heads"] == 4


@pytest.mark.parametrize(
    "feedforward, norm, place, words",
    [
        (None, c.RMSNorm(), "parallel", "a feedforward beside"),
        (c.MLP(8), None, "post", "says where norms stand"),
    ],
)
def test_a_place_needs_what_it_places(feedforward, norm, place, words):
    with mistake(words):
        c.Block(c.Attention(4), feedforward, norm, place)


def stack(heads=(4,), causal=True, position=None):
    blocks = tuple(c.Block(c.Attention(n), c.MLP(16)) for n in heads)
    body = c.Stack(len(blocks), blocks, position or c.NoPosition(), causal)
    return (c.Decoder if causal else c.Encoder)(32, 64, c.Embed(50), body)


WOULD_CRASH = {  # or hang, or give NaN
    "ALiBi over other head counts": (
        lambda: stack((4, 8), position=c.Alibi()),
        r"position has a bias .* 4 or 8 heads",
    ),
    "a bias over other head counts": (
        lambda: stack((4, 8), position=c.RelativeBias()),
        r"give each head the same number",
    ),
    "no bucket": (lambda: c.RelativeBias(0), r"buckets is 0; give 2 or more"),
    "one bucket": (lambda: c.RelativeBias(1), r"buckets is 1; give 2 or more"),
    "too few for two ways": (
        lambda: stack(causal=False, position=c.RelativeBias(3)),
        r"is 3; give 4 or more",
    ),
    "no distance": (lambda: c.RelativeBias(8, 0), r"distance is 0; give a number above 0"),
    "a distance of half the buckets": (
        lambda: stack(position=c.RelativeBias(32, 16)),
        r"distance is 16; give more than 16",
    ),
    "eps 0": (lambda: c.RMSNorm(0.0), r"RMSNorm\.eps is 0\.0; give a number above 0"),
    "eps below 0": (lambda: c.LayerNorm(-1e-5), r"LayerNorm\.eps is -1e-05"),
    "theta 0": (lambda: c.Rotary(0.0), r"Rotary\.theta is 0\.0"),
    "theta of waves": (lambda: c.Sinusoidal(-1.0), r"Sinusoidal\.theta is -1\.0"),
    "factor 0": (lambda: c.LinearScaling(0.0), r"LinearScaling\.factor is 0\.0"),
    "Llama's factor": (lambda: c.Llama3Scaling(-8.0), r"Llama3Scaling\.factor is -8\.0"),
    "Llama's ends": (
        lambda: c.Llama3Scaling(low_freq_factor=4.5),
        r"low_freq_factor is 4\.5; give at most high",
    ),
    "scale of scores": (lambda: c.Attention(4, scale=0.0), r"Attention\.scale is 0\.0"),
    "scale of embeddings": (lambda: c.Embed(50, -2.0), r"Embed\.scale is -2\.0"),
    "scale of the head": (lambda: c.Head(scale=0.0), r"Head\.scale is 0\.0"),
    "cap of the head": (lambda: c.Head(softcap=0.0), r"Head\.softcap is 0\.0"),
    "a spread below 0": (lambda: c.Init(std=-0.02), r"Init\.std is -0\.02; give"),
    "segments below 0": (lambda: c.Embed(50, segments=-1), r"Embed\.segments is -1"),
    "a million lags": (
        lambda: c.Embed(50, previous_token_embeddings=10**6),
        r"previous_token_embeddings is 1000000; give 0 to 1,024",
    ),
    "a million heads": (lambda: c.Attention(10**6), r"heads is 1000000; give at most 16,384"),
    "a million recurrent layers": (
        lambda: c.Recurrent(10**6),
        r"depth is 1000000; give at most "
        r"2,000",
    ),
}


@pytest.mark.parametrize("make, message", WOULD_CRASH.values(), ids=WOULD_CRASH)
def test_what_would_crash_hang_or_give_nan_is_refused_where_it_is_made(make, message):
    with mistake(message):
        make()


def test_the_least_that_runs_is_taken():
    stack(position=c.RelativeBias(2, 2))
    stack(causal=False, position=c.RelativeBias(4, 2))
    stack((4, 8), position=c.Rotary())


def test_ends_that_do_not_fit():
    with mistake("a span has 2 ends"):
        c.TokenHead(3, span=True)
    stack = c.Stack(2, (BLOCK,))
    with mistake(
        r"embed\.dim is 8 and the model.s dim 16, which a tied head shares; set "
        r"dim = 8"
    ):
        c.Decoder(16, 8, c.Embed(9, dim=8), stack)
    with mistake(r"a recurrent decoder takes embeddings of dim 16"):
        c.Decoder(16, 8, c.Embed(9, dim=8), c.Recurrent(1), c.Head(tied=False))


def test_a_decoders_blocks_read_an_encoder_where_there_is_one():
    plain, reading = (
        c.Stack(1, (c.Block(c.Attention(2), c.MLP(8), cross=cross),))
        for cross in (None, c.Attention(2))
    )
    encoder, sizes = dataclasses.replace(plain, causal=False), (16, 8, c.Embed(9))
    with mistake(r"decoder\.pattern\.0\.cross is missing; give the decoder's blocks one"):
        c.EncoderDecoder(*sizes, encoder, plain)
    with mistake(r"decoder\.pattern\.0\.cross is set, but there is no encoder; remove it"):
        c.Decoder(*sizes, reading)
    with mistake(r"encoder\.pattern\.0\.cross is set"):
        c.EncoderDecoder(*sizes, dataclasses.replace(reading, causal=False), reading)
    c.EncoderDecoder(*sizes, encoder, reading)


def test_another_type_drops_the_settings_of_the_one_before():
    block = c.Block(c.Attention(4), c.MLP(64, bias=True), c.RMSNorm())
    gated = {"feedforward.type": "GatedMLP", "feedforward.hidden": "32"}
    # a field that stands before its type is the new type's too
    for changes in (gated, dict(reversed(gated.items()))):
        assert serial.change(block, changes).feedforward == c.GatedMLP(32)
    assert serial.change(
        block, {"feedforward.type": "MLP", "feedforward.hidden": "32"}
    ).feedforward == c.MLP(32, bias=True)
    last = {"feedforward.type": "GatedMLP", "feedforward": {"type": "MLP", "hidden": 8}}
    assert serial.change(block, last).feedforward == c.MLP(8)  # what is said last is done last
    stack = serial.change(c.Stack(2, (block, block)), {"pattern.norm.type": "LayerNorm"})
    assert [item.norm for item in stack.pattern] == [c.LayerNorm(), c.LayerNorm()]
    with mistake('GatedMLP needs "hidden"'):
        serial.change(block, {"feedforward.type": "GatedMLP"})
    with mistake('GatedMLP has no setting "act_bias"'):
        serial.change(block, {"feedforward.act_bias": "1", **gated})


def test_a_field_that_there_is_not_is_told_in_python_as_in_a_file():
    with mistake(r'Attention has no setting "n_heads". Did you mean "heads"'):
        c.Attention(n_heads=4)
    with mistake(r'AdamW has no setting "wd". Did you mean "weight_decay"'):
        run.AdamW(wd=0.1)


def test_a_model_without_a_position_table_takes_another_context():
    block = c.Block(c.Attention(4), c.GatedMLP(64))
    model = c.Decoder(
        dim=32, context=16, embed=c.Embed(50), decoder=c.Stack(1, (block,), c.Rotary())
    )
    assert for_context(model, 64) == replace(model, context=64)
    with mistake("context is 0; give an integer, 1 or more"):
        for_context(model, 0)
