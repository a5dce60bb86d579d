"""Text made into questions: the papers' shares and lengths, nothing lost, packed documents by themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from glassformer import UserError
from glassformer.tokenizer import Tokenizer
from glassformer.tokenizer import open as open_tokenizer
from glassformer.tokenizer import train as train_tokenizer
from glassformer.training.batches import Batch
from glassformer.training.objectives import Masked, Prefix, Span
from glassformer.training.objectives.span import cut_out

LETTERS = "abcdefghijklmnopqrstuvwxyz "
FRAME = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
MARKS = ("<pad>", "</s>", *(f"<extra_id_{i}>" for i in range(10)))


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def packed(tokens: torch.Tensor, lengths: list[int]) -> Batch:
    """Rows of documents of these lengths and padding behind them; targets are the next token of a document."""
    pos, document_ids = torch.full_like(tokens, -1), torch.full_like(tokens, -1)
    targets, at = torch.full_like(tokens, -1), 0
    for number, length in enumerate(lengths):
        pos[:, at : at + length], document_ids[:, at : at + length] = torch.arange(length), number
        targets[:, at : at + length - 1] = tokens[:, at + 1 : at + length]
        at += length
    return Batch(tokens, targets, pos, document_ids)


# ------------------------------------------------------------------------------------------ mask


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return train_tokenizer("char", [LETTERS], specials=FRAME)


def of_letters(tokenizer: Tokenizer, rows: int, length: int) -> torch.Tensor:
    tokens = torch.randint(0, len(LETTERS), (rows, length), generator=torch.Generator().manual_seed(0))
    tokens[:, 0], tokens[:, length // 2], tokens[:, -1] = tokenizer.cls, tokenizer.sep, tokenizer.sep
    return tokens


def test_masking_has_the_shares_of_bert(letters: Tokenizer) -> None:
    """15 % chosen, of these 80 % hidden, 10 % another token, 10 % as they were (Devlin et al. 2019, 3.1)."""
    given = packed(of_letters(letters, 200, 500), [500])
    made = Masked().prepare(given, random(), letters)
    chosen = made.targets >= 0
    ordinary = given.tokens < len(LETTERS)
    assert torch.equal(given.tokens[chosen], made.targets[chosen]), "the targets are what was there"
    assert torch.equal(given.tokens[~chosen], made.tokens[~chosen]), "nothing else is touched"
    assert not (chosen & ~ordinary).any()
    share = float(chosen.sum() / ordinary.sum())
    hidden = float((made.tokens[chosen] == letters.mask).float().mean())
    same = float((made.tokens[chosen] == made.targets[chosen]).float().mean())
    assert abs(share - 0.15) < 0.005 and abs(hidden - 0.8) < 0.01
    assert abs(same - (0.1 + 0.1 / len(LETTERS))) < 0.01  # one in so many is replaced by itself
    others = made.tokens[chosen & (made.tokens != letters.mask)]
    assert others.unique().tolist() == sorted(letters.id(letter) for letter in LETTERS), "all of them, nothing special"


def test_masking_is_a_function_of_its_generator(letters: Tokenizer) -> None:
    given = Batch(of_letters(letters, 4, 40), of_letters(letters, 4, 40))
    one, two, other = (Masked().prepare(given, random(seed), letters).tokens for seed in (1, 1, 2))
    assert torch.equal(one, two) and not torch.equal(one, other)
    nothing = replace(given, tokens=torch.full((4, 40), letters.sep))
    assert (Masked().prepare(nothing, random(), letters).targets == -1).all()
    assert (Masked(1e-9).prepare(given, random(), letters).targets >= 0).sum() == 1, "a batch asks something"


def test_padding_is_never_hidden(letters: Tokenizer) -> None:
    given = packed(torch.zeros(50, 40, dtype=torch.long), [10, 20])  # ten of padding
    made = Masked(0.9).prepare(given, random(), letters)
    assert (made.targets[:, 30:] == -1).all() and (made.tokens[:, 30:] == 0).all()
    assert (made.targets[:, :30] >= 0).float().mean() > 0.85


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "char"])
def test_whole_words_are_chosen_together(kind: str, tmp_path: Path) -> None:
    words = ["play", "##ing", "##ed", "un", "##believ", "##able", "dogs", "."]
    if kind == "wordpiece":
        (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
        tokenizer = open_tokenizer(tmp_path / "vocab.txt", kind="bert-uncased")
        whole = "playing unbelievable dogs played . playing"
    else:
        tokenizer = train_tokenizer(kind, ["playing dogs"], 290 if kind == "bpe" else None, specials=FRAME)
        whole = "playing dogs playing dogs play gods laying"
    ids = tokenizer.encode(whole)
    given = packed(torch.tensor([ids + ids] * 400), [len(ids), len(ids)])
    made = Masked(0.3, whole_words=True).prepare(given, random(), tokenizer)
    opens = [at == 0 or not part.startswith("##") for at, part in enumerate(map(tokenizer.token, ids))]
    if kind != "wordpiece":
        opens = [at == 0 or tokenizer.token(id)[0] in "Ġ " for at, id in enumerate(ids)]
    word = torch.tensor(opens + opens).cumsum(0)
    chosen = made.targets >= 0
    for number in word.unique():
        inside = chosen[:, word == number]
        assert number == 1 or (inside[:, 0] != chosen[:, word == number - 1][:, 0]).any(), "each by itself"
        assert torch.equal(inside.any(1), inside.all(1)), "all of a word or nothing"
        assert abs(float(inside[:, 0].float().mean()) - 0.3) < 0.08
    assert word[-1] == len(whole.split()) * 2


# ---------------------------------------------------------------------------------------- prefix


def test_each_document_is_cut_between_its_shares() -> None:
    given = packed(tiny.tokens(300, 60), [30, 1, 20])
    made = Prefix(0.2, 0.7).prepare(given, random())
    assert made.prefix is not None and torch.equal(made.tokens, given.tokens)
    for at, length in ((0, 30), (31, 20)):
        prefix, targets = (part[:, at : at + length] for part in (made.prefix, made.targets))
        size = prefix.sum(1)
        place = torch.arange(length)
        assert torch.equal(prefix, place < size[:, None]), "one piece, from the beginning"
        assert int(size.min()) == round(0.2 * length) and int(size.max()) == round(0.7 * length)
        asked = (place >= size[:, None] - 1) & (place < length - 1)
        assert torch.equal(targets >= 0, asked), "the last of the prefix predicts what follows"
        assert torch.equal(targets[asked], given.targets[:, at : at + length][asked])
    assert made.prefix[:, 30].all() and not made.prefix[:, 51:].any()
    plain = Batch(given.tokens, given.tokens.roll(-1, 1))
    cut = Prefix(0.5, 0.5).prepare(plain, random())
    assert (cut.targets >= 0).sum(1).unique().tolist() == [31] and cut.pos is None


# ----------------------------------------------------------------------------------------- spans


def test_span_lengths_are_those_of_t5() -> None:
    """568 tokens become a source of 512 and a target of 114, ends included: T5's own settings (15 %, spans of 3)."""
    source, target = cut_out(np.arange(568), random(), 0.15, 3.0, np.arange(1000, 1100))
    assert (len(source) + 1, len(target) + 1) == (512, 114)
    assert (source >= 1000).sum() == 28 and (target < 1000).sum() == 85


@pytest.mark.parametrize("rate,length,sentinels", [(0.15, 3.0, 100), (0.5, 1.0, 100), (0.15, 3.0, 2), (0.9, 3.0, 100)])
def test_source_and_target_hold_the_document(rate: float, length: float, sentinels: int) -> None:
    draw, marks = random(), np.arange(1000, 1000 + sentinels)
    hidden, spans = [], []
    for size in [*range(4, 60), *[200] * 200]:
        ids = draw.integers(0, 50, size)
        source, target = cut_out(ids, draw, rate, length, marks)
        used = target[target >= 1000]
        assert used.tolist() == source[source >= 1000].tolist() == marks[: len(used)].tolist()
        held = dict(zip(used.tolist(), np.split(target, np.flatnonzero(target >= 1000))[1:], strict=True))
        whole = [part for id in source for part in (held[id][1:] if id >= 1000 else [id])]
        assert whole == ids.tolist()
        assert not ((source[:-1] >= 1000) & (source[1:] >= 1000)).any(), "spans do not touch"
        assert all(len(span) > 1 for span in held.values()) and max(len(source), len(target)) + 1 <= size
        hidden.append((size - (source < 1000).sum()) / size)
        spans.append(len(used))
    assert abs(np.mean(hidden[-200:]) - rate) < 0.01
    if rate == 0.15:
        assert np.mean(spans[-200:]) == (10 if sentinels == 100 else 2)


def test_where_spans_lie_is_uniform() -> None:
    count = np.zeros(12)
    draw = random()
    for _ in range(3000):
        source, _ = cut_out(np.arange(12), draw, 0.25, 1.5, np.arange(100, 110))
        count[np.setdiff1d(np.arange(12), source)] += 1
    assert count.sum() == 3000 * 3 and abs(count / 3000 - 0.25).max() < 0.1  # ends are hit a little less or more
    assert count[0] / 3000 > 0.15 and count[-1] / 3000 > 0.15


@pytest.fixture(scope="module")
def marked() -> Tokenizer:
    return train_tokenizer("char", [LETTERS], specials=MARKS)


def test_spans_of_packed_documents_stay_in_them(marked: Tokenizer) -> None:
    tokens = tiny.tokens(3, 64) % len(LETTERS)
    tokens[:, 19] = marked.eos
    given = packed(tokens, [20, 3, 30])  # one too short, eleven of padding
    made = Span().prepare(given, random(), marked)
    assert made.source is not None and made.pos is not None and made.source_pos is not None
    assert made.document_ids is not None and made.source_document_ids is not None
    assert made.source.shape == (3, 64) and made.tokens.shape[1] % 8 == 0
    for row in range(3):
        for number, first, length in ((0, 0, 19), (1, 23, 30)):
            here, there = made.document_ids[row] == number, made.source_document_ids[row] == number
            source, target = made.source[row][there].tolist(), made.targets[row][here].tolist()
            assert source[-1] == target[-1] == marked.eos and made.tokens[row][here].tolist() == [
                marked.pad,
                *target[:-1],
            ]
            assert made.source_pos[row][there].tolist() == list(range(len(source)))
            assert made.pos[row][here].tolist() == list(range(len(target)))
            held: dict[int, list[int]] = {}
            for id in target[:-1]:
                if id in marked.sentinels:
                    held[id] = span = []
                else:
                    span.append(id)
            assert list(held) == marked.sentinels[: len(held)], "each document counts from the first sentinel"
            whole = [part for id in source[:-1] for part in held.get(id, [id])]
            assert whole == tokens[row, first : first + length].tolist()
        assert made.document_ids[row].max() == made.source_document_ids[row].max() == 1
    assert (made.targets[made.pos < 0] == -1).all()
    opened = train_tokenizer("char", [LETTERS], specials=("<s>", *MARKS))
    tokens[:, 23], given = opened.bos, replace(given, tokens=tokens)
    begun = Span(0.5).prepare(given, random(), opened)
    assert begun.tokens[0, 0] == opened.bos and not (begun.source == opened.bos).any(), "ends are not part of the text"
    assert not (begun.targets == opened.bos).any() and (begun.targets == opened.eos).sum() == 6
    given = packed(tokens, [20, 3, 30])
    made = Span().prepare(given, random(), marked)
    again = Span().prepare(given, random(), marked)
    assert torch.equal(again.tokens, made.tokens) and torch.equal(again.source, made.source)


# ------------------------------------------------------------------------------------ laws and errors


def alone(batch: Batch) -> list[Batch]:
    """Each packed document as a batch of its own."""
    made = []
    for row in range(len(batch.tokens)):
        for number in range(int(batch.document_ids[row].max()) + 1):
            parts = {}
            for name, part in vars(batch).items():
                if part is not None and name not in ("document_ids", "source_document_ids"):
                    document_ids = batch.source_document_ids if name.startswith("source") else batch.document_ids
                    parts[name] = part[row][document_ids[row] == number][None]
            made.append(Batch(**parts))
    return made


@pytest.mark.parametrize("kind", ["masked", "prefix", "span"])
@torch.no_grad()
def test_packed_equals_apart(kind: str, letters: Tokenizer, marked: Tokenizer) -> None:
    given = packed(tiny.tokens(3, 60) % len(LETTERS), [25, 7, 20])
    family, objective, tokenizer = {
        "masked": ("bert", Masked(0.3), letters),
        "prefix": ("llama", Prefix(), letters),
        "span": ("t5", Span(0.3), marked),
    }[kind]
    model = tiny.model(tiny.ALL[family])
    batch = objective.prepare(given, random(), tokenizer)
    whole = objective.loss(model, batch, 0.1)
    parts = [objective.loss(model, part, 0.1) for part in alone(batch)]
    assert len(parts) == 9 and whole.count == sum(part.count for part in parts) > 9
    torch.testing.assert_close(whole.sum, sum(part.sum for part in parts), rtol=1e-5, atol=1e-4)


def test_what_the_tokenizer_lacks_is_said(letters: Tokenizer, marked: Tokenizer) -> None:
    given = packed(torch.zeros(2, 10, dtype=torch.long), [3, 3, 3])
    with pytest.raises(UserError, match="no mask token"):
        Masked().prepare(given, random(), marked)
    with pytest.raises(UserError, match="no sentinels"):
        Span().prepare(given, random(), letters)
    with pytest.raises(UserError, match="longer documents"):
        Span().prepare(given, random(), marked)
    endless = train_tokenizer("char", ["ab"], specials=("<extra_id_0>",))
    with pytest.raises(UserError, match="no end-of-text token"):
        Span().prepare(given, random(), endless)
