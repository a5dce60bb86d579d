"""The score against a reference that runs the model once per token; every token once, every byte
counted."""

from __future__ import annotations

import json
import math

import pytest
import torch

import tiny
from glassformer import config as c
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats.data import find as find_corpus
from glassformer.formats.data import split_corpus, tokenise
from glassformer.tasks.evaluation import score
from mistakes import SENTENCES, mistake

CONTEXT = 16
STORIES = [
    "Once upon a time, é was lost.",
    "a",
    "",
    "bb",
    "The \U0001f600 end of a much longer story than the others.",
]
STORIES += ["ab" * k for k in range(1, 9)]


def decoder(vocab, position=None, dropout=0.0):
    block = c.Block(c.Attention(4, kv_heads=2), c.GatedMLP(32))
    stack = c.Stack(2, (block,), position or c.Rotary(), last_norm=c.RMSNorm(), dropout=dropout)
    cfg = c.Decoder(
        32, CONTEXT, c.Embed(vocab), stack, init=c.Init(std=0.2, embed_std=0.4, residual="plain")
    )
    return tiny.model(cfg)


@torch.no_grad()
def naive(model, documents, context, stride):
    """Mean loss and count, a forward pass for each token on just what its window shows of it."""
    losses = []
    for ids in documents:
        for place in range(1, len(ids)):
            steps = max(0, math.ceil((place - context) / stride))
            end = min(context + steps * stride, len(ids) - 1)
            observed = torch.tensor([ids[max(end - context, 0) : place]])
            losses.append(
                -model(observed).logits[0, -1].double().log_softmax(-1)[ids[place]].item()
            )
    return sum(losses) / len(losses), len(losses)


def check(got, model, documents, size, context, stride):
    loss, count = naive(model, documents, context, stride)
    assert got.tokens == count
    assert got.bytes == size
    assert got.loss == pytest.approx(loss, abs=1e-6)
    assert got.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
    assert got.bits_per_byte == pytest.approx(loss * count / math.log(2) / size, rel=1e-6)
    assert got.seconds > 0


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "stories.jsonl"
    path.write_text(
        "".join(json.dumps({"text": story}) + "\n" for story in STORIES), encoding="utf-8"
    )
    return path


@pytest.fixture
def byte():
    return train_tokenizer("byte")


TEXT = "".join(STORIES)


@pytest.mark.parametrize("context, stride", [(16, 8), (16, 16), (16, 1), (5, 3), (1, 1)])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_text_is_scored_like_token_by_token(byte, context, stride, batch):
    model = decoder(byte.size)
    got = score(model, byte, TEXT, context=context, stride=stride, batch=batch)
    check(got, model, [[byte.eos, *TEXT.encode()]], len(TEXT.encode()), context, stride)


@pytest.mark.parametrize(
    "position", [c.Rotary(), c.Learned(CONTEXT), c.Alibi(), c.RelativeBias(8, 16)]
)
@pytest.mark.parametrize("batch", [1, 4])
def test_documents_do_not_see_each_other(byte, corpus, position, batch):
    model = decoder(byte.size, position)
    got = score(model, byte, find_corpus(corpus), batch=batch)
    documents = [[byte.eos, *story.encode(), byte.eos] for story in STORIES if story]
    size = sum(len(story.encode()) for story in STORIES)
    check(got, model, documents, size, CONTEXT, CONTEXT // 2)
    unclosed = score(model, byte, find_corpus(corpus), batch=batch, closing=False)
    check(unclosed, model, [ids[:-1] for ids in documents], size, CONTEXT, CONTEXT // 2)


def test_an_own_bos_opens_and_is_not_scored(corpus):
    tokenizer = train_tokenizer("byte", specials=("<s>", "</s>"))
    assert None is not tokenizer.bos != tokenizer.eos
    model = decoder(tokenizer.size)
    documents = [[tokenizer.bos, *story.encode(), tokenizer.eos] for story in STORIES if story]
    size = sum(len(story.encode()) for story in STORIES)
    check(
        score(model, tokenizer, find_corpus(corpus)), model, documents, size, CONTEXT, CONTEXT // 2
    )
    check(
        score(model, tokenizer, "Emma"),
        model,
        [[tokenizer.bos, *b"Emma"]],
        4,
        CONTEXT,
        CONTEXT // 2,
    )


def test_without_an_opening_the_first_token_is_context(corpus):
    tokenizer = train_tokenizer("char", ["é\U0001f600", *STORIES], specials=())
    model = decoder(tokenizer.size)
    got = score(model, tokenizer, "éa\U0001f600")
    # without the two of é
    check(got, model, [tokenizer.encode("éa\U0001f600")], 5, CONTEXT, CONTEXT // 2)
    documents = [tokenizer.encode(story) for story in STORIES if story]
    size = sum(len(story[1:].encode()) for story in STORIES)
    for closing in (True, False):  # there is nothing that closes them
        scores = score(model, tokenizer, find_corpus(corpus), closing=closing)
        check(scores, model, documents, size, CONTEXT, CONTEXT // 2)


def test_a_split_document_begins_in_its_middle(tmp_path, byte):
    path = tmp_path / "one.txt"
    path.write_text("abcdefghij" * 20)
    train, valid = split_corpus(tokenise(find_corpus(path), byte), 0.25)
    model = decoder(byte.size)
    ids = valid.tokens.tolist()
    # less the first and the closing token
    check(score(model, byte, valid), model, [ids], len(ids) - 2, CONTEXT, 8)
    check(
        score(model, byte, train),
        model,
        [[byte.eos, *train.tokens.tolist()]],
        len(train),
        CONTEXT,
        8,
    )


def test_training_goes_on_and_progress_is_told(byte):
    model = decoder(byte.size, dropout=0.5).train()
    calls = []
    got = score(model, byte, TEXT, progress=calls.append)
    assert json.loads(json.dumps(got.to_dict()))["loss"] == got.loss
    assert model.training
    assert calls == sorted(calls)
    assert calls[-1] == got.tokens
    assert got.loss == pytest.approx(score(model.eval(), byte, TEXT).loss)
    assert not model.training


def test_losses_of_a_bf16_model_are_added_up_in_fp32(byte):
    model = decoder(byte.size).bfloat16()
    with torch.no_grad():
        logits = model(torch.tensor([[byte.eos, *b"abcdefghi"]])).logits[0, :-1].double()
    expected = -logits.log_softmax(-1)[torch.arange(9), torch.tensor([*b"abcdefghi"])].mean().item()
    assert score(model, byte, "abcdefghi").loss == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("words, settings, sentence", SENTENCES["scores"])
def test_one_clear_sentence(byte, words, settings, sentence):
    with mistake(sentence):
        score(decoder(byte.size), byte, words, **settings)


def test_what_cannot_be_scored(byte):
    with mistake("use the tokenizer"):
        score(decoder(100), byte, "zebra")
    with mistake("too little"):
        score(decoder(30), train_tokenizer("char", ["abc"], specials=()), "a")
    stack = c.Stack(1, (c.Block(c.Attention(2), c.MLP(8)),), causal=False)
    with mistake("decoder"):
        score(build_model(c.Encoder(8, 8, c.Embed(257), stack)), byte, "abc")
    model = decoder(byte.size)
    with torch.no_grad():
        model.decoder.last_norm.weight[0] = math.nan
    with mistake("NaN"):
        score(model, byte, "abc")
