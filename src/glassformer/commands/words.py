"""``glassformer words``: words as numbers before the Transformer, and one word in two contexts."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UserError, need, note
from . import common
from .common import count_noun, text_table
from .options import Columns, ModelOptions, Separator
from .parsing import CommandOutput, Words
from .sources import file_or_input

EXAMPLES = (
    "glassformer words train corpus.txt --out vectors.bin",
    "glassformer words near vectors.bin king",
    "glassformer words analogy vectors.bin man king woman",
    "glassformer words score vectors.bin --similarity wordsim353.tsv",
    'glassformer words bag "a cat" "a dog"',
    "glassformer words classify train.tsv valid.tsv",
    "glassformer words average vectors.bin --out out/average",
    'glassformer words contexts tiny-encoder bank "by the river bank" "at the bank"',
)
CONTEXTS = (
    ("bank", "She put her money in the bank.", "They had a picnic on the bank of the river."),
    (
        "it",
        "The animal didn't cross the street because it was too tired.",
        "The animal didn't cross the street because it was too wide.",
    ),
    (
        "it",
        "The cat lay on the mat because it was tired.",
        "The cat lay on the mat because it was soft.",
    ),
    (
        "it",
        "The chicken didn't cross the road because it was too tired.",
        "The chicken didn't cross the road because it was too wide.",
    ),
)
"""A word whose meaning, or whose referent, is another in the second sentence (after Vaswani and
Uszkoreit 2017)."""


def train(
    corpus: str,
    *,
    out: str,
    kind: str = "skip-gram",
    dim: int = 100,
    window: int = 5,
    negative: int = 5,
    sample: float = 1e-3,
    epochs: int = 5,
    rate: float = 0.025,
    least: int = 5,
    seed: int = 0,
    field: str = "text",
    separator: Separator | None = None,
) -> CommandOutput:
    """Trains word2vec on a corpus.

    corpus CORPUS: a named corpus, a file or a folder; each line is a sentence
    out FILE: save the vectors, as binary if the name ends in .bin, else as text
    kind KIND: skip-gram or cbow
    dim N: dimension of a vector
    window N: distance of the farthest context word
    negative N: negative samples for each pair
    sample N: subsample words above this share of the text
    epochs N: passes over the text
    rate N: initial learning rate
    least N: minimum count of a word
    seed N: the seed of random draws (0)
    """
    from ..formats.data import find
    from ..tasks.classics import vectors, word2vec, word_index

    try:
        settings = word2vec.Settings(
            kind=kind,  # type: ignore[arg-type]  # Settings checks it
            dim=dim,
            window=window,
            negative=negative,
            sample=sample,
            epochs=epochs,
            rate=rate,
            seed=seed,
        )
    except UserError as error:
        raise UserError(str(error).replace("Settings.", "--")) from None
    path = common.new_file(out, corpus)
    source = find(file_or_input(corpus), field, separator)
    text = word_index.index_words(word_index.sentences(source.texts()), least, source.name)
    note(f"{len(text):,} words of {source.name}, {len(text.words):,} of them distinct.")
    model, start = word2vec.Word2Vec(text, settings), time.perf_counter()
    for step in model.train():
        speed = step.done * epochs * len(text) / (time.perf_counter() - start)
        line = (
            f"epoch {step.epoch}/{epochs}  {step.done:4.0%}  loss {step.loss:.3f}  "
            f"words/s {speed:,.0f}"
        )
        if common.is_terminal() or step.done == 1:
            print(line, end="\n" if step.done == 1 else "\r", file=sys.stderr, flush=True)
    vectors.save(model.vectors(), path)
    count = len(text.words)
    return CommandOutput(
        {"words": count, "width": dim, "loss": step.loss, "file": out},
        [f"{count_noun(count, 'vector')} of {dim} numbers in {out}"],
    )


def near(vectors: str, word: str, *, top: int = 10) -> CommandOutput:
    """Lists the nearest words to a word.

    word WORD: a word of the vectors
    top N: words shown
    """
    return _neighbours(_read(vectors).near(word, top))


def analogy(vectors: str, a: str, b: str, c: str, *, top: int = 10) -> CommandOutput:
    """Finds the word that is to C as B is to A.

    a A: a word
    b B: the word that belongs to A
    c C: the word whose partner is searched
    top N: words shown
    """
    return _neighbours(_read(vectors).analogy(a, b, c, top))


def _neighbours(neighbours: Sequence[tuple[str, float]]) -> CommandOutput:
    return CommandOutput(
        [{"word": word, "cosine": cosine} for word, cosine in neighbours],
        text_table.lines((f"{cosine:.4f}", word) for word, cosine in neighbours),
    )


def _read(name: str) -> Any:
    from ..tasks.classics import vectors

    return vectors.read_vectors(Path(name))


def score(
    vectors: str,
    *,
    similarity: list[str] | None = None,
    analogies: list[str] | None = None,
) -> CommandOutput:
    """Evaluates vectors on human similarity ratings and analogies.

    similarity FILE: lines of two words and a number
    analogies FILE: lines of four words
    """
    from ..tasks.classics import vectors as word_vectors
    from ..tasks.evaluation import metrics

    need(
        bool(similarity or analogies),
        "There is nothing to score; give --similarity or --analogies files.",
    )
    table = _read(vectors)
    results: list[dict[str, Any]] = []
    figures = []
    for name in similarity or ():
        pairs = word_vectors.read_pairs(Path(name))
        need(bool(pairs), f"{name} is empty; give lines of two words and a number.")
        covered = [pair for pair in pairs if None not in map(table.find, pair[:2])]
        need(
            len(covered) > 1,
            f"The vectors know too few of the words in {name} to be scored; train on more text.",
        )
        cosines = [table.cosine(a, b) for a, b, _ in covered]
        spearman = metrics.of_numbers(cosines, [right for *_, right in covered])["spearman"]
        coverage = {"asked": len(covered), "of": len(pairs)}
        results.append({"file": Path(name).name, "spearman": spearman, **coverage})
        figures.append(f"Spearman {spearman:.4f}")
    for name in analogies or ():
        questions = word_vectors.read_analogies(Path(name))
        right, count = word_vectors.right_analogies(table, questions)
        share = 100 * right / count if count else None
        coverage = {"asked": count, "of": len(questions)}
        results.append({"file": Path(name).name, "accuracy": share, **coverage})
        figures.append("-" if share is None else f"{share:.1f} % right")
    lines = [
        (result["file"], figure, f"{result['asked']:,} of {result['of']:,} known")
        for result, figure in zip(results, figures, strict=True)
    ]
    return CommandOutput(results, text_table.lines(lines, left_columns=(0, 1, 2)))


def bag(
    text: Words = (), *, among: str | None = None, weigh: str = "tfidf", top: int = 5
) -> CommandOutput:
    """Compares texts as bags of words; without texts, shows what a bag loses.

    text TEXT: texts to compare, or to search for with --among
    among FILE: search the lines of this file for similar texts
    weigh HOW: tfidf or counts
    top N: lines to show
    """
    from ..tasks.classics import bag

    weighting: Any = weigh
    lines = []
    if among is not None:
        need(bool(text), "There is no text to search for; give one.")
        from ..formats.data import find

        texts = [
            line for piece in find(among).texts() for line in piece.splitlines() if line.strip()
        ]
        index = bag.Bag(texts, weighting)
        results = {}
        for query in text:
            hits = [(texts[i], cosine) for i, cosine in index.search(query, top)]
            results[query] = [{"text": hit, "cosine": cosine} for hit, cosine in hits]
            lines += [query if hits else f"{query}: no line has a word of it"]
            lines += [f"  {cosine:.4f}  {hit}" for hit, cosine in hits] or [""]
        return CommandOutput(results, lines)
    groups: list[tuple[str, Sequence[str]]] = [("", text)]
    if not text:
        groups = [("Order is lost: other meaning, the same bag.", bag.ORDER_LOST)]
        groups.append(("Meaning is lost: the same meaning, no word in common.", bag.MEANING_LOST))
    squares = []
    for heading, texts_of_group in groups:
        cosines = bag.Bag(texts_of_group, weighting).cosines().tolist()
        squares.append({"texts": list(texts_of_group), "cosines": cosines})
        lines += [heading] if heading else []
        for line, row in zip(texts_of_group, cosines, strict=True):
            lines.append(f"  {' '.join(f'{cosine:.4f}' for cosine in row)}  {line}")
    return CommandOutput(squares, lines)


def learn_labels(
    train: str, valid: str, columns: dict[str, str], weigh: Any = "tfidf"
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Learn labels from bags of words of one file: the strongest words of two labels, and figures
    on another file."""
    from ..tasks import examples
    from ..tasks.classics import bag, word_index
    from ..tasks.evaluation import metrics
    from ..tasks.objectives import Classify

    learn = examples.read_examples(train, Classify(), columns=columns)
    held_out = examples.read_examples(valid, Classify(), columns=columns, labels=learn.labels)
    start, busy = time.perf_counter(), time.process_time()
    learned = bag.BagClassifier([e.first for e in learn], [int(e.label or 0) for e in learn], weigh)
    clocks = {"seconds": time.perf_counter() - start, "processor": time.process_time() - busy}
    texts = [e.first for e in held_out]
    right = [int(e.label or 0) for e in held_out]
    figures = {
        "loss": learned.loss(texts, right),
        **metrics.of_labels(learned.predict(texts), right),
        "examples": len(held_out),
        "words": len(learned.bag.words),
        "parameters": learned.parameters,
        "read": sum(len(word_index.split(e.first)) for e in learn),
        **clocks,
    }
    labels = learn.labels or ()
    strongest = dict(zip(labels, learned.strongest(), strict=True)) if len(labels) == 2 else {}
    return strongest, figures


def classify(
    train: str, valid: str, *, weigh: str = "tfidf", columns: Columns | None = None
) -> CommandOutput:
    """Learns labels from bags of words, and reports the accuracy on another file.

    train TRAIN: a file of texts and labels, such as sst2/train.tsv
    valid VALID: a file of the same kind for the accuracy
    weigh HOW: tfidf or counts
    """
    strongest, figures = learn_labels(train, valid, columns or {}, weigh)
    rows = [
        ("accuracy", f"{figures['accuracy']:.2f} %"),
        ("Matthews", f"{figures['matthews']:.4f}"),
        ("examples", f"{figures['examples']:,}"),
        ("weights", f"{figures['words']:,} words"),
        *((f"says {label}", ", ".join(words)) for label, words in strongest.items()),
    ]
    return CommandOutput(figures, text_table.lines(rows, left_columns=(0, 1)))


def average(vectors: str, *, out: str, labels: int = 2) -> CommandOutput:
    """Saves an encoder to train: the average of word vectors, and two layers over it.

    out FOLDER: the folder of the encoder; train it with --from FOLDER
    labels N: number of labels
    """
    from ..formats import store
    from ..tasks.classics import average

    folder = common.new_folder(out)
    model, tokenizer = average.encoder(_read(vectors), labels)
    store.save(model, folder, tokenizer, layout="glassformer")
    line = (
        f"An encoder of {tokenizer.size:,} words and no blocks is in {out}; train it with "
        f"--from {out}."
    )
    return CommandOutput(
        {"folder": out, "words": tokenizer.size, "width": model.config.dim}, [line]
    )


def contexts(
    options: ModelOptions,
    word: str | None = None,
    text: Words = (),
    *,
    vectors: str | None = None,
) -> CommandOutput:
    """Compares one word's vectors in two sentences, layer by layer.

    word WORD: the word (without it, well-known examples)
    text TEXT: two sentences with the word
    vectors FILE: also compare vectors in word2vec's text or binary format
    """
    from ..sight.contexts import must_have, word_in_contexts

    need(
        word is None or len(text) == 2,
        "A word needs two sentences that contain it; give both.",
    )
    entries = CONTEXTS if word is None else ((word, *text),)
    for term, *sentences in entries:
        for sentence in sentences:
            must_have(sentence, term)
    table = _read(vectors) if vectors else None
    model, tokenizer = options.load_with_tokenizer()
    results, lines = [], []
    for term, first, second in entries:
        compared = word_in_contexts(model, tokenizer, term, first, second)
        result = {"word": term, "texts": [first, second], "layers": compared.cosine}
        lines += [f"{term}: {first} | {second}", *compared.table()]
        if table is not None:
            result["word2vec"] = cosine = table.cosine(term, term)
            lines.append(f"word2vec: {cosine:.4f}, one vector, whatever the sentence")
        results.append({**result, "others": compared.others})
    return CommandOutput(results, lines)


TASKS = {
    "train": train,
    "near": near,
    "analogy": analogy,
    "score": score,
    "bag": bag,
    "classify": classify,
    "average": average,
    "contexts": contexts,
}
