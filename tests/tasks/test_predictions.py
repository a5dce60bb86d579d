"""Vectors, labels and blanks: alone = in a batch, and what the model's own passes say."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import glassformer
import served
import tiny
from glassformer import config as c
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.tasks import predictions
from glassformer.tasks.predictions import classify, embed, fill
from mistakes import mistake
from seeding import generator_from

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "a",
    "cat",
    "dog",
    "man",
    "sat",
    "ran",
    "on",
    "to",
]
WORDS += ["hill", "mat", ".", ",", "red", "big", "old", "new", "in", "house"]
TEXTS = ["the cat sat on the mat .", "a dog ran", "the old man , in the big red house .", "hill"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A WordPiece tokenizer of a few words, from BERT's vocab.txt."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    return open_tokenizer(folder)


def encoder(pool=None):
    shape = replace(tiny.bert(), embed=c.Embed(len(WORDS), segments=2), pool=pool)
    return tiny.model(shape)


def test_a_decoder_that_learned_no_vector_reads_a_text_as_its_file_says():
    """An end of text that transformers does not put there would change the mean."""
    words = served.tokenizer()
    assert words.eos is not None and words.frame == ([], [])
    cfg = served.worded(tiny.ALL["llama"])
    text, short = "the cat sat on the mat", replace(cfg, context=4)
    ids = words.encode(text)
    with torch.no_grad():
        for shape, read in ((cfg, ids), (short, ids[:4])):
            model = tiny.model(shape)
            mean = model(torch.tensor([read]), logits="none").hidden.mean(1)
            assert_close(embed(model, words, text, truncate=True), mean, rtol=0.0, atol=1e-6)
    learned = tiny.model(replace(cfg, head=None, pool=c.Pool("last")))
    with torch.no_grad():
        last = learned(torch.tensor([[*ids, words.eos]])).hidden[:, -1]
    assert_close(embed(learned, words, text), last, rtol=0.0, atol=1e-6)


POOLS = [
    None,
    c.Pool("mean", normalize=True),
    c.Pool("max"),
    c.Pool("first", "tanh"),
    c.Pool("last"),
]


@pytest.mark.parametrize("pool", [*POOLS, c.Pool("attention")])
def test_a_vector_is_the_same_alone_and_in_a_batch(tokenizer, pool):
    model = encoder(pool)
    together = embed(model, tokenizer, TEXTS, batch=3)
    assert together.shape == (4, tiny.DIM)
    for text, vector in zip(TEXTS, together, strict=True):
        assert_close(embed(model, tokenizer, [text])[0], vector, atol=1e-5, rtol=0)


def test_a_pass_on_a_cpu_holds_no_more_tokens_than_a_cache(tokenizer, monkeypatch):
    """Groups of at most so many tokens with padding, or of one text; the vectors are in the order
    of the texts."""
    model = encoder()
    calls = []
    texts = [" ".join(["the cat"] * words) for words in (1, 9, 2, 3, 1, 4)]
    model.register_forward_pre_hook(lambda _, args: calls.append(tuple(args[0].shape)))
    right = embed(model, tokenizer, texts)
    assert calls == [(6, 20)]
    calls.clear()
    monkeypatch.setattr(predictions, "AT_ONCE", 20)
    assert_close(embed(model, tokenizer, texts), right, rtol=1e-5, atol=1e-6)
    assert calls == [(3, 6), (2, 10), (1, 20)]
    calls.clear()
    embed(model, tokenizer, texts, batch=1)
    assert [rows for rows, _ in calls] == [1] * 6


def test_the_mean_is_the_mean_of_the_hidden_states(tokenizer):
    model = encoder()
    ids, segments = tokenizer.encode_pair(TEXTS[0])
    hidden = model(torch.tensor([ids]), segments=torch.tensor([segments])).hidden[0]
    assert_close(embed(model, tokenizer, [TEXTS[0]])[0], hidden.mean(0), atol=1e-6, rtol=0)
    unit = embed(model, tokenizer, TEXTS, unit=True)
    assert_close(unit, torch.nn.functional.normalize(embed(model, tokenizer, TEXTS), dim=-1))
    most = embed(encoder(c.Pool("max")), tokenizer, [TEXTS[0]])[0]
    assert_close(most, hidden.max(0).values, atol=1e-6, rtol=0)


def test_attention_weighs_tokens_by_their_fit_to_one_query(tokenizer):
    """Equals PyTorch's own attention of that query over the text's hidden states, its keys and
    values."""
    model = encoder(c.Pool("attention"))
    assert model.pool is not None
    assert model.pool.query is not None
    with torch.no_grad():
        model.pool.query.weight.mul_(20)
    ids, segments = tokenizer.encode_pair(TEXTS[0])
    hidden = model(torch.tensor([ids]), segments=torch.tensor([segments])).hidden
    query = model.pool.query.weight[None]
    expected = torch.nn.functional.scaled_dot_product_attention(query, hidden, hidden, scale=1.0)[
        0, 0
    ]
    vectors = embed(model, tokenizer, TEXTS[:2])[0]
    assert_close(vectors, expected, atol=1e-5, rtol=0)
    assert (vectors - hidden[0].mean(0)).abs().max() > 0.05, "no plain mean"


def test_labels_of_texts_and_pairs(tokenizer):
    model = encoder(c.Pool("first", "tanh", labels=3))
    assert_close(classify(model, tokenizer, TEXTS, batch=2).probabilities.sum(1), torch.ones(4))
    pair = ("the cat sat", "a dog ran")
    ids, segments = tokenizer.encode_pair(*pair)
    with torch.no_grad():
        logits = model(torch.tensor([ids]), segments=torch.tensor([segments])).pooled
    assert_close(
        classify(model, tokenizer, [pair]).probabilities[0],
        logits.softmax(-1)[0],
        atol=1e-6,
        rtol=0,
    )
    swapped = classify(model, tokenizer, [(pair[1], pair[0])]).probabilities[0]
    assert not torch.allclose(swapped, logits.softmax(-1)[0], atol=1e-4)


@pytest.mark.parametrize("answer", [embed, classify])
def test_a_text_longer_than_the_model_reads_is_refused_or_loses_its_end(answer, tokenizer, capsys):
    model = encoder(None if answer is embed else c.Pool("first", "tanh", labels=3))
    room = tiny.CONTEXT - 2
    texts = ["a cat", " ".join(["dog"] * room), " ".join(["dog"] * room) + " ran", "red " * 500]
    with mistake(r"Text 3 has 65 tokens and the model reads 64; .*--truncate"):
        answer(model, tokenizer, texts)
    result = answer(model, tokenizer, texts, truncate=True)
    result = getattr(result, "probabilities", result)
    assert capsys.readouterr().err == "2 of 4 texts were truncated; the model reads 64 tokens.\n"
    assert_close(result[1], result[2])
    answer(model, tokenizer, texts[:2], truncate=True)
    assert capsys.readouterr().err == ""


def test_each_blank_by_itself(tokenizer):
    model = encoder()
    sentence = "the ___ sat on the [MASK] ."
    fills = fill(model, tokenizer, sentence, top=4)
    ids, segments = tokenizer.encode_pair(sentence.replace("___", "[MASK]"), special=True)
    share = model(torch.tensor([ids]), segments=torch.tensor([segments])).logits[0].softmax(-1)
    blanks = [place for place, token in enumerate(ids) if token == tokenizer.mask]
    assert len(fills) == len(blanks) == 2
    for blank, variants in zip(blanks, fills, strict=True):
        best = share[blank].topk(4)
        assert [variant.tokens[0] for variant in variants] == best.indices.tolist()
        assert [variant.probability for variant in variants] == pytest.approx(
            best.values.tolist(), rel=1e-4
        )
    wide = tiny.model(replace(model.config, embed=c.Embed(len(WORDS) + 40, segments=2)))
    logits = wide(torch.tensor([ids]), segments=torch.tensor([segments])).logits[0, blanks[0]]
    best = logits.softmax(-1)[: len(WORDS)].max().item()  # among all rows, as `generate` says it
    assert logits.softmax(-1)[len(WORDS) :].sum() > 0.1  # of what no tokenizer can write
    assert fill(wide, tokenizer, sentence, top=1)[0][0].probability == pytest.approx(best, rel=1e-4)
    words = [WORDS[fill[0].tokens[0]] for fill in fills]
    assert fills[0][0].text == f"the {words[0]} sat on the ___ ."
    assert fills[1][0].text == f"the ___ sat on the {words[1]} ."


@pytest.mark.parametrize("order", ["left", "sure"])
def test_blanks_together_see_each_other(tokenizer, order):
    model = encoder()
    vocab = len(WORDS)
    ids, segments = tokenizer.encode_pair(
        "the ___ sat ___ .".replace("___", "[MASK]"), special=True
    )
    first, second = (place for place, token in enumerate(ids) if token == tokenizer.mask)

    @torch.no_grad()
    def share(row):
        return model(torch.tensor([row]), segments=torch.tensor([segments])).logits[0].softmax(-1)

    start = share(ids)
    if order == "sure" and start[second].max() > start[first].max():
        first, second = second, first
    chance = {}
    for a, b in itertools.product(range(vocab), repeat=2):
        row = list(ids)
        row[first] = a
        if b == 0:
            after = share(row)
        chance[a, b] = float(start[first, a] * after[second, b])
    best = max(chance, key=lambda pair: chance[pair])
    fills = fill(model, tokenizer, "the ___ sat ___ .", top=vocab, order=order)[0]
    at = (0, 1) if first < second else (1, 0)
    assert (fills[0].tokens[at[0]], fills[0].tokens[at[1]]) == best
    assert fills[0].probability == pytest.approx(chance[best], rel=1e-4)
    assert len(fills) == vocab


def test_bad_input(tokenizer):
    model = encoder()
    decoder = build_model(tiny.gpt2(), seed=1)
    with mistake("no blank"):
        fill(model, tokenizer, "the cat")
    with mistake("top is 0"):
        fill(model, tokenizer, "the ___", top=0)
    with mistake("generate"):
        fill(decoder, tokenizer, "the ___")
    with mistake("no mask token"):
        fill(model, train_tokenizer("char", iter(["the cat ___"])), "the ___")
    with mistake("no labels"):
        classify(model, tokenizer, TEXTS)
    with mistake("empty"):
        embed(model, tokenizer, ["the cat", ""])
    with mistake("no text"):
        embed(model, tokenizer, [])
    with mistake("batch is 0"):
        embed(model, tokenizer, TEXTS, batch=0)


def test_a_blank_takes_the_space_before_it_where_words_hold_theirs():
    """Of a byte-level BPE a word has its space in it: " cat" is one token, as in RoBERTa's files."""
    words = train_tokenizer("bpe", [" the cat sat on the mat" * 20], 300, [*WORDS[:5]])
    ids = words.encode("the [MASK] sat", special=True)
    assert ids == [*words.encode("the"), words.mask, *words.encode(" sat")]
    shape = replace(tiny.bert(), embed=c.Embed(words.size, segments=2))
    (filled,) = fill(tiny.model(shape), words, "the ___ sat", top=3)
    assert [filling.text for filling in filled] == [
        f"the {filling.words[0]} sat" for filling in filled
    ]


def test_the_encoder_of_the_package_fills_a_blank():
    model, tokenizer = glassformer.load("tiny-encoder", dtype="float32")
    ((best, *_),) = glassformer.fill(model, tokenizer, "There was a little ___ named Lily.")
    assert best.words == ["girl"] and best.probability > 0.8


def test_the_translator_of_the_package_chooses_a_pronoun():
    """ "It" is the animal when it was tired, and the street, a feminine noun, when it was wide."""
    model, tokenizer = glassformer.load("tiny-translator", dtype="float32")
    texts = [
        "The animal didn't cross the street because it was too tired.",
        "The animal didn't cross the street because it was too wide.",
    ]
    (tired, *_), (wide, *_) = glassformer.translate(model, tokenizer, texts)
    assert tired.text == "L'animal n'a pas traversé la rue parce qu'il était trop fatigué."
    assert wide.text == "L'animal n'a pas traversé la rue parce qu'elle était trop large."


@pytest.mark.parametrize("order", ["apart", "left", "sure"])
def test_blanks_are_filled_alike_from_rows_at_once_or_in_batches(order):
    """To the last bit: each row is ranked alone."""
    tokenizer = served.tokenizer("wordpiece")

    def filled(batch):
        filling = predictions.Filling(tokenizer, "___ the ___ sat ___ .", 64, 12, order)
        random = generator_from(1)
        while rows := filling.rows:
            logits = torch.randn(len(rows), 3, tokenizer.size, generator=random)
            for chunk in logits.split(batch):
                assert filling.rows[: len(chunk)] == rows[: len(chunk)]
                rows = rows[len(chunk) :]
                filling.update(chunk)
        return filling.results

    assert filled(1) == filled(5) == filled(100)


def test_few_rows_are_filled_at_once():
    """A long text has as many rows as ``top``, and logits of all of them do not fit in memory."""
    tokenizer = served.tokenizer("wordpiece")
    model = tiny.model(served.worded(tiny.ALL["bert"]), seed=3)
    rows = list[int]()
    model.register_forward_pre_hook(lambda _, args: rows.append(args[0].numel()))
    text = "the ___ sat ___ the mat and the dog sat on the log ; a cat"
    result = fill(model, tokenizer, text, top=200, order="left")
    assert len(rows) > 2 and max(rows) <= predictions.AT_ONCE
    assert [len(fills) for fills in result] == [200]
