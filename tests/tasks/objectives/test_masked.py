"""Masked language modelling: BERT's shares, whole words, nothing of padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.core.training.batches import Batch
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.tasks.objectives import Masked
from mistakes import mistake
from packed import FRAME, LETTERS, check_packed_equals_apart, packed, random
from seeding import generator_from


def of_letters(tokenizer, rows, length):
    tokens = torch.randint(0, len(LETTERS), (rows, length), generator=generator_from(0))
    tokens[:, 0], tokens[:, length // 2], tokens[:, -1] = (
        tokenizer.cls,
        tokenizer.sep,
        tokenizer.sep,
    )
    return tokens


def test_masking_has_the_shares_of_bert(letters):
    """15 % chosen, of these 80 % hidden, 10 % another token, 10 % as they were (Devlin et al. 2019,
    3.1)."""
    args = packed(of_letters(letters, 200, 500), [500])
    result = Masked().prepare(args, random(), letters)
    chosen = result.targets >= 0
    ordinary = args.tokens < len(LETTERS)
    assert torch.equal(args.tokens[chosen], result.targets[chosen]), (
        "the targets are what was there"
    )
    assert torch.equal(args.tokens[~chosen], result.tokens[~chosen]), "nothing else is touched"
    assert not (chosen & ~ordinary).any()
    share = float(chosen.sum() / ordinary.sum())
    hidden = float((result.tokens[chosen] == letters.mask).float().mean())
    repeated = float((result.tokens[chosen] == result.targets[chosen]).float().mean())
    assert abs(share - 0.15) < 0.005
    assert abs(hidden - 0.8) < 0.01
    assert abs(repeated - (0.1 + 0.1 / len(LETTERS))) < 0.01  # one in so many is replaced by itself
    tokens = result.tokens[chosen & (result.tokens != letters.mask)]
    assert tokens.unique().tolist() == sorted(letters.id(letter) for letter in LETTERS), (
        "all of them, nothing special"
    )


def test_masking_is_a_function_of_its_generator(letters):
    batch = Batch(of_letters(letters, 4, 40), of_letters(letters, 4, 40))
    item, two, second = (
        Masked().prepare(batch, random(seed), letters).tokens for seed in (1, 1, 2)
    )
    assert torch.equal(item, two)
    assert not torch.equal(item, second)
    nothing = replace(batch, tokens=torch.full((4, 40), letters.sep))
    assert (Masked().prepare(nothing, random(), letters).targets == -1).all()
    assert (Masked(1e-9).prepare(batch, random(), letters).targets >= 0).sum() == 1, (
        "a batch asks something"
    )


def test_padding_is_never_hidden(letters):
    args = packed(torch.zeros(50, 40, dtype=torch.long), [10, 20])  # ten of padding
    result = Masked(0.9).prepare(args, random(), letters)
    assert (result.targets[:, 30:] == -1).all()
    assert (result.tokens[:, 30:] == 0).all()
    assert (result.targets[:, :30] >= 0).float().mean() > 0.85


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "char"])
def test_whole_words_are_chosen_together(kind, tmp_path):
    words = ["play", "##ing", "##ed", "un", "##believ", "##able", "dogs", "."]
    if kind == "wordpiece":
        (tmp_path / "vocab.txt").write_text(
            "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
        )
        tokenizer = open_tokenizer(tmp_path / "vocab.txt", kind="bert-uncased")
        full = "playing unbelievable dogs played . playing"
    else:
        tokenizer = train_tokenizer(
            kind, ["playing dogs"], 290 if kind == "bpe" else None, specials=FRAME
        )
        full = "playing dogs playing dogs play gods laying"
    ids = tokenizer.encode(full)
    args = packed(torch.tensor([ids + ids] * 400), [len(ids), len(ids)])
    result = Masked(0.3, whole_words=True).prepare(args, random(), tokenizer)
    opens = [
        at == 0 or not piece.startswith("##") for at, piece in enumerate(map(tokenizer.token, ids))
    ]
    if kind != "wordpiece":
        opens = [at == 0 or tokenizer.token(id)[0] in "Ġ " for at, id in enumerate(ids)]
    word = torch.tensor(opens + opens).cumsum(0)
    chosen = result.targets >= 0
    for number in word.unique():
        inside = chosen[:, word == number]
        assert number == 1 or (inside[:, 0] != chosen[:, word == number - 1][:, 0]).any(), (
            "each by itself"
        )
        assert torch.equal(inside.any(1), inside.all(1)), "all of a word or nothing"
        assert abs(float(inside[:, 0].float().mean()) - 0.3) < 0.08
    assert word[-1] == len(full.split()) * 2


def test_packed_equals_apart(letters):
    check_packed_equals_apart("bert", Masked(0.3), letters)


def test_a_tokenizer_without_a_mask_is_refused(marked):
    args = packed(torch.zeros(2, 10, dtype=torch.long), [3, 3, 3])
    with mistake("no mask token"):
        Masked().prepare(args, random(), marked)
