"""Recurrent models beyond the laws: torch's own cells, packed pairs, attention that is seen, what
is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer import generation
from glassformer import sight as inspection
from glassformer.core.config import serial
from glassformer.core.generation import generate
from glassformer.core.nn import Tape, build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.scale.cost import cost
from mistakes import mistake
from seeding import generator_from
from tiny import ALL, tokens

PAIRS = ["cho", "bahdanau", "additive-lstm"]
CLOSE = {"rtol": 0.0, "atol": 1e-5}


def twin(model, kind, variants, inputs, width):
    """torch's own module with the same weights."""
    body = model.decoder if hasattr(model, "decoder") else model.encoder
    reference = kind(
        inputs, width, len(body.cells), batch_first=True, bidirectional=variants == "both"
    )
    for number in range(len(body.cells)):
        for suffix, cells in (("", body.cells), ("_reverse", body.back)):
            if len(cells):
                cell = cells[number]
                for name, piece in (("ih", cell.input), ("hh", cell.state)):
                    getattr(reference, f"weight_{name}_l{number}{suffix}").data = piece.weight.data
                    getattr(reference, f"bias_{name}_l{number}{suffix}").data = piece.bias.data
    return reference


@pytest.mark.parametrize("engine", ["eager", "sdpa"])
@pytest.mark.parametrize("variants", ["one", "both"])
@pytest.mark.parametrize("cell", [c.GRU(), c.LSTM()], ids=["gru", "lstm"])
def test_equals_torch(cell, variants, engine):
    """Two layers over rows of different lengths, states and gradients."""
    body = c.Recurrent(2, cell, causal=variants == "one")
    shape = c.Decoder if variants == "one" else c.Encoder
    model = tiny.model(shape(32, 64, c.Embed(50), body, c.Head(), tiny.LOUD))
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight, std=0.3)
    model.engine = engine
    width = 32 if variants == "one" else 16
    reference = twin(model, nn.GRU if cell == c.GRU() else nn.LSTM, variants, 32, width)
    rows = tokens(3, 9)
    pos = torch.arange(9).repeat(3, 1)
    lengths = torch.tensor([4, 9, 6])
    pos[pos >= lengths[:, None]] = -1
    weigh = torch.randn(3, 9, 32, generator=generator_from(0)) * (pos >= 0)[:, :, None]
    hidden = model(rows, pos=pos, logits="none").hidden
    (hidden * weigh).sum().backward()
    grad = model.embed.token.weight.grad.clone()
    model.zero_grad()
    args = nn.utils.rnn.pack_padded_sequence(
        model.embed.token(rows), lengths, True, enforce_sorted=False
    )
    right = nn.utils.rnn.pad_packed_sequence(reference(args)[0], True, total_length=9)[0]
    (right * weigh).sum().backward()
    assert_close(hidden[pos >= 0], right[pos >= 0], **CLOSE)
    assert_close(grad, model.embed.token.weight.grad, rtol=1e-4, atol=1e-5)


def attention_by_hand(model, inputs, source):
    """Bahdanau et al. 2015, equations 5 and 6 of its appendix, a word at a time and nothing shared
    with the house."""
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    states = model.encode(source).hidden[0]
    words = model.embed.token.weight[inputs[0]]
    C = model.config.dim
    joined = torch.cat((states[0], states[-1]))
    h = torch.tanh(
        weights["decoder.cross.whole.weight"] @ joined + weights["decoder.cross.whole.bias"]
    )
    calls = []
    patterns = []
    for x in words:
        scores = []
        for state in states:
            met = weights["decoder.cross.q.weight"] @ h + weights["decoder.cross.q.bias"]
            met = torch.tanh(met + weights["decoder.cross.k.weight"] @ state)
            scores.append((weights["decoder.cross.score.weight"] @ met)[0])
        pattern = torch.stack(scores).softmax(0)
        context = sum(share * state for share, state in zip(pattern, states, strict=True))
        cell = nn.GRUCell(2 * C, C)
        for name, piece in (("ih", "input"), ("hh", "state")):
            getattr(cell, f"weight_{name}").data = weights[f"decoder.cells.0.{piece}.weight"]
            getattr(cell, f"bias_{name}").data = weights[f"decoder.cells.0.{piece}.bias"]
        h = cell(torch.cat((x, context))[None], h[None])[0]
        out = (
            weights["decoder.merge.weight"] @ torch.cat((h, context, x))
            + weights["decoder.merge.bias"]
        )
        calls.append(torch.tanh(out))
        patterns.append(pattern)
    return torch.stack(calls), torch.stack(patterns)


@torch.no_grad()
def test_additive_attention_equals_the_paper_word_by_word():
    model = tiny.model(replace(ALL["bahdanau"], decoder=c.Recurrent(1, cross=c.Additive(24))))
    second_tokens = tokens(1, 7)
    source = tokens(1, 5, seed=3)
    tape = Tape("*.pattern")
    hidden = model(second_tokens, source, tape=tape).hidden
    right, pattern = attention_by_hand(model, second_tokens, source)
    assert_close(hidden[0], right, **CLOSE)
    assert_close(tape["decoder.cross.pattern"][0, 0], pattern, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", PAIRS)
def test_search_and_greedy_equal_the_whole_forward_pass(name):
    """Sources of different lengths, beams that change places, and rows that leave: each word is the
    uncached one."""
    model = tiny.model(name)
    sources = [tokens(1, length, seed=length)[0].tolist() for length in (3, 7, 5)]
    greedy = generate(model, None, sources, max_new=9, temperature=0.0, start=1, eos=2).run().tokens
    result = generation.beam(model, None, sources, beams=3, best=3, max_new=9, start=1, eos=2)
    for source, row, hypotheses in zip(sources, greedy, result, strict=True):
        full_logits = model(torch.tensor([[1, *row[:-1]]]), torch.tensor([source])).logits[0]
        assert full_logits.argmax(-1).tolist() == row
        for hypothesis in hypotheses:
            logits = model(
                torch.tensor([[1, *hypothesis.tokens[:-1]]]), torch.tensor([source])
            ).logits[0]
            right = logits.log_softmax(-1)[range(len(hypothesis.tokens)), hypothesis.tokens]
            assert_close(torch.tensor(hypothesis.logprobs), right, rtol=0.0, atol=1e-4)


def test_costs_are_counted():
    config = ALL["bahdanau"]
    price = cost(config)
    of_cells = sum(
        weight.numel()
        for name, weight in build_model(config).named_parameters()
        if {"cells", "back", "merge"} & {*name.split(".")}
    )
    assert price.parameters["recurrence"] == of_cells
    assert price.cache() == 0
    wider = replace(config, decoder=replace(config.decoder, cross=c.Additive(48)))
    assert cost(wider, 1, 64).attention_flops - cost(config, 1, 64).attention_flops == 2 * 24 * 64


def test_what_does_not_fit_is_refused():
    bounds = (32, 64, c.Embed(50))
    with mistake(r"decoder\.cross is missing"):
        c.EncoderDecoder(*bounds, c.Recurrent(), c.Recurrent())
    with mistake("there is no encoder"):
        c.Decoder(*bounds, c.Recurrent(cross=c.Summary()))
    with mistake("halved"):
        c.Encoder(33, 64, c.Embed(50), c.Recurrent(causal=False))
    with mistake("is causal"):
        c.Decoder(*bounds, c.Recurrent(causal=False))
    with mistake("give one of GRU, LSTM"):
        serial.from_dict(c.Recurrent, {"cell": "RNN"})
    with mistake("prefix"):
        tiny.model("gru")(tokens(1, 4), prefix=torch.ones(1, 4, dtype=torch.bool))


@pytest.mark.parametrize("name", ["bahdanau", "vaswani"])
def test_attention_is_drawn_by_the_words_it_writes(name):
    tokenizer = train_tokenizer("byte", ["ab"], None, ("<s>", "</s>"))
    config = replace(ALL[name], embed=replace(ALL[name].embed, vocab=tokenizer.size))
    drawn, *remaining = inspection.alignments(tiny.model(config), tokenizer, "abc", source="x<z")
    assert drawn.path.endswith("cross.pattern")
    assert len(remaining) == (1 if name == "vaswani" else 0)
    assert drawn.rows == ["a", "b", "c", "</s>"]
    assert drawn.columns[:3] == ["x", "<", "z"]
    assert_close(drawn.weights.sum(-1), torch.ones(4))
    sharp = replace(drawn, weights=torch.eye(4)[:, : len(drawn.columns)])
    assert sharp.text(plain=True).splitlines()[-4:-1] == ["   a ##", "   b   ##", "   c     ##"]
    assert ">&lt;</text>" in inspection.svg([sharp]) and "data:image/png;base64," in inspection.svg(
        [sharp]
    )
