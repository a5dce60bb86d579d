"""Lab sheets: a student's numbers are drawn again by the same seed, and the answers are those of
others' code."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from glassformer.learn.sheets import PROBLEMS, print_sheets, problem
from mistakes import mistake

STUDENTS = [f"student {n}" for n in range(25)]


def numbers(text):
    return [float(field) for field in text.split(", ")]


def answer(item, question):
    return next(text for name, text, _ in item.answers if name.startswith(question))


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


@pytest.mark.parametrize("student", STUDENTS)
def test_the_answers_are_numpys(student):
    item = problem("attention", student, 3)
    rows = np.array([row[1:] for row in item.tables[0][1]])
    q, k, v = rows[:, :2], rows[:, 2:4], rows[:, 4:]
    assert numbers(answer(item, "Scores of token 3")) == list(q[2] @ k.T)
    shares = softmax(q[2] @ k.T / np.sqrt(2))
    assert numbers(answer(item, "Attention weights of token 3")) == pytest.approx(shares, abs=6e-4)
    second = [*softmax(q[1] @ k[:2].T / np.sqrt(2)), 0]
    assert numbers(answer(item, "Attention weights of token 2")) == pytest.approx(second, abs=6e-4)
    assert numbers(answer(item, "Output")) == pytest.approx(shares @ v, abs=6e-4)

    item = problem("norms", student, 3)
    x = np.array(item.tables[0][1][0])
    assert numbers(answer(item, "LayerNorm")) == pytest.approx((x - x.mean()) / x.std(), abs=6e-4)
    rms = np.sqrt((x * x).mean())
    assert numbers(answer(item, "Root")) == pytest.approx([rms], abs=6e-4)
    assert numbers(answer(item, "RMSNorm")) == pytest.approx(x / rms, abs=6e-4)

    item = problem("loss", student, 3)
    logits = np.array(item.tables[0][1][0])
    right = item.tables[0][0].index(re.search('"(.*)"', item.text)[1])
    shares = softmax(logits)
    assert numbers(answer(item, "Cross")) == pytest.approx([-np.log(shares[right])], abs=6e-4)
    assert numbers(answer(item, "Perplexity")) == pytest.approx([1 / shares[right]], rel=1e-3)
    slope = shares - np.eye(4)[right]
    assert numbers(answer(item, "Gradient")) == pytest.approx(slope, abs=6e-4)

    item = problem("positions", student, 3)
    place = int(re.search(r"position (\d+)", item.answers[0][0])[1])
    wave = np.array([np.sin(place), np.cos(place), np.sin(place / 100), np.cos(place / 100)])
    assert numbers(answer(item, "Sinus")) == pytest.approx(wave, abs=6e-4)
    x, y, turn = map(float, re.search(r"\((.*), (.*)\) at position (\d)", item.text).groups())
    turned = complex(x, y) * np.exp(1j * turn)
    assert numbers(answer(item, "The query")) == pytest.approx([turned.real, turned.imag], abs=6e-4)


@pytest.mark.parametrize("student", STUDENTS)
def test_the_merges_are_those_of_the_library_tokenizers(student):
    tokenizers = pytest.importorskip("tokenizers")
    item = problem("merges", student, 3)
    frequencies = dict(item.tables[0][1])
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    letters = len(set("".join(frequencies)))
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=letters + 3, show_progress=False)
    model.train_from_iterator([" ".join([word] * n) for word, n in frequencies.items()], trainer)
    vocabulary = sorted(model.get_vocab().items(), key=lambda pair: pair[1])
    merged = ["".join(text.split(" (")[0].split(" + ")) for _, text, _ in item.answers[:3]]
    assert merged == [token for token, at in vocabulary[letters:]]
    longest = max(frequencies, key=len)
    assert item.answers[3][1].split() == model.encode(longest).tokens


@pytest.mark.parametrize("student", STUDENTS)
def test_beam_search_beats_greedy_search(student):
    item = problem("decoding", student, 3)
    (_, *words), ((_, *start), *rows) = item.tables[0]
    rows = [row[1:] for row in rows]
    texts = {(i, j): start[i] * rows[i][j] for i, j in product(range(3), range(3))}
    greedy = int(np.argmax(start))
    reply = int(np.argmax(rows[greedy]))
    beams = sorted(range(3), key=start.__getitem__)[1:]
    best = max((pair for pair in texts if pair[0] in beams), key=texts.get)
    answers = [text for _, text, _ in item.answers]
    assert answers[0] == f"{words[greedy]} {words[reply]}"
    assert answers[2] == f"{words[best[0]]} {words[best[1]]}" != answers[0]
    assert float(answers[1]) == pytest.approx(texts[greedy, reply], abs=6e-5)
    assert float(answers[3]) == pytest.approx(texts[best], abs=6e-5)
    assert sum(start) == pytest.approx(1) and texts[best] > texts[greedy, reply]


def test_a_seed_and_a_name_are_a_sheet():
    page = print_sheets(list(PROBLEMS), ["Ada", "Alan"], 5, False)
    assert page == print_sheets(list(PROBLEMS), ["Ada", "Alan"], 5, False)
    assert print_sheets(["loss"], ["Ada"], 5, True) != print_sheets(["loss"], ["Ada"], 6, True)
    assert problem("loss", "Ada", 5) == problem("loss", "Ada", 5) != problem("loss", "Alan", 5)
    assert page.count("<article>") == 2 and page.count("class=line>&nbsp;<") == 2 * 24
    solved = print_sheets(list(PROBLEMS), ["Ada", "Alan"], 5, True)
    assert "class=line>&nbsp;<" not in solved and solved.count("class=line>") == 2 * 24
    assert "<b>" not in print_sheets(["loss"], ["<b>"], 5, False)
    with mistake('no problem "atention"', "attention", "merges"):
        problem("atention", "Ada", 1)
