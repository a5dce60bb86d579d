"""``glassformer words``: words as numbers before the Transformer, and one word in two contexts."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, need, note
from . import common
from .common import (
    MODEL,
    columns,
    computing,
    counted,
    emit,
    model_and_tokenizer,
    result,
    rows,
    table,
    unescaped,
)
from .parsing import Parser

if TYPE_CHECKING:
    from ..classics.vectors import Vectors

EXAMPLES = (
    "glassformer words train corpus.txt --out vectors.bin",
    "glassformer words near vectors.bin king",
    "glassformer words analogy vectors.bin man king woman",
    "glassformer words score vectors.bin --similarity wordsim353.tsv",
    'glassformer words bag "a cat" "a dog"',
    "glassformer words classify train.tsv valid.tsv",
    "glassformer words average vectors.bin --out out/average",
    'glassformer words contexts out/encoder bank "by the river bank" "at the bank"',
    "glassformer words wic WiC --vectors vectors.bin",
)
VECTORS = "a file in word2vec's text or binary format"


def options(one: Parser) -> None:
    tasks = one.add_subparsers(metavar="TASK", parser_class=type(one))

    def task(name: str, what: str) -> Parser:
        made: Parser = tasks.add_parser(name, help=what, description=what)
        made.add_argument("--json", action="store_true", help="as JSON")
        made.set_defaults(task=name)
        return made

    train = task("train", "Trains word2vec on a corpus.")
    train.add_argument(
        "corpus",
        metavar="CORPUS",
        help="a named corpus, a file or a folder; each line is a sentence",
    )
    train.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help="the vectors: binary where it ends in .bin, else text",
    )
    train.add_argument(
        "--kind", default="skip-gram", metavar="KIND", help="skip-gram (usual) or cbow"
    )
    for name, kind, usual, what in (
        ("dim", int, 100, "numbers of a vector"),
        ("window", int, 5, "the farthest neighbour"),
        ("negative", int, 5, "noise words a pair"),
        ("sample", float, 1e-3, "the share of the text above which a word is thinned out"),
        ("epochs", int, 5, "times through the text"),
        ("rate", float, 0.025, "the first rate"),
        ("least", int, 5, "how often a word must occur"),
        ("seed", int, 0, "where chance begins"),
    ):
        train.add_argument(
            f"--{name}", type=kind, default=usual, metavar="N", help=f"{what} ({usual})"
        )
    train.add_argument(
        "--field", default="text", metavar="NAME", help="the text field of JSONL (text)"
    )
    train.add_argument(
        "--separator", type=unescaped, metavar="TEXT", help="what parts a plain file's documents"
    )

    near = task("near", "The words nearest to a word.")
    analogy = task("analogy", "What is to C as B is to A.")
    for made, names in ((near, ("word",)), (analogy, ("a", "b", "c"))):
        made.add_argument("vectors", metavar="VECTORS", help=VECTORS)
        for name in names:
            made.add_argument(name, metavar=name.upper())
        made.add_argument("--top", type=int, default=10, metavar="N", help="words shown (10)")
        made.also("--most", "--top")

    score = task("score", "Vectors held against what people say: similarities and analogies.")
    score.add_argument("vectors", metavar="VECTORS", help=VECTORS)
    score.add_argument(
        "--similarity",
        nargs="+",
        default=[],
        metavar="FILE",
        help="lines of two words and a number",
    )
    score.add_argument(
        "--analogies", nargs="+", default=[], metavar="FILE", help="lines of four words"
    )

    bag = task(
        "bag", "Texts as bags of words: how alike they are; without texts, what a bag loses."
    )
    bag.add_argument(
        "text", nargs="*", metavar="TEXT", help="texts to compare, or to look for with --among"
    )
    bag.add_argument(
        "--among", metavar="FILE", help="search the lines of a file for the texts instead"
    )
    bag.add_argument("--weigh", default="tfidf", metavar="HOW", help="tfidf (usual) or counts")
    bag.add_argument("--top", type=int, default=5, metavar="N", help="lines found (5)")
    bag.also("--most", "--top")

    classify = task(
        "classify", "Learns labels from bags of words, and says how many of another file are right."
    )
    classify.add_argument(
        "train", metavar="TRAIN", help="a file of texts and labels, such as sst2/train.tsv"
    )
    classify.add_argument("valid", metavar="VALID", help="another one")
    classify.add_argument("--weigh", default="tfidf", metavar="HOW", help="tfidf (usual) or counts")
    classify.add_argument(
        "--columns", metavar="P=C,...", help="what a table calls its parts: text=0,label=1"
    )

    average = task(
        "average",
        "Saves an encoder that averages vectors, with two layers over them, to be trained.",
    )
    average.add_argument("vectors", metavar="VECTORS", help=VECTORS)
    average.add_argument(
        "--out", required=True, metavar="FOLDER", help="where; train it with --from FOLDER"
    )
    average.add_argument(
        "--labels", type=int, default=2, metavar="N", help="labels to tell apart (2)"
    )

    contexts = task(
        "contexts",
        "One word in two sentences: how far each layer of a model moves its vectors apart.",
    )
    contexts.add_argument("model", metavar="MODEL", help=MODEL)
    contexts.add_argument(
        "word", nargs="?", metavar="WORD", help="left out, well-known examples are shown"
    )
    contexts.add_argument("text", nargs="*", metavar="TEXT", help="two sentences that have it")
    contexts.add_argument("--vectors", metavar="FILE", help=f"word2vec beside it: {VECTORS}")
    computing(contexts)

    wic = task(
        "wic",
        "Words in Context: does a word mean the same in two texts? By the cosine "
        "of its two vectors.",
    )
    wic.add_argument(
        "folder", metavar="FOLDER", help="the folder of its files (train.data.txt ...)"
    )
    wic.add_argument("--model", metavar="MODEL", help=MODEL)
    wic.add_argument("--vectors", metavar="FILE", help=VECTORS)
    wic.add_argument("--first", type=int, metavar="N", help="so many pairs of each part alone")
    computing(wic)


def run(given: argparse.Namespace) -> None:
    TASKS[given.task](given)


def _train(given: argparse.Namespace) -> None:
    import time

    from ..classics import vectors, vocabulary, word2vec
    from ..data import find as find_corpus

    names = [field.name for field in dataclasses.fields(word2vec.Settings)]
    try:
        settings = word2vec.Settings(**{name: getattr(given, name) for name in names})
    except UserError as error:
        raise UserError(str(error).replace("Settings.", "--")) from None
    out = common.new_file(given.out, given.corpus)
    source = find_corpus(common.file_or_input(given.corpus), given.field, given.separator)
    words = vocabulary.read(vocabulary.sentences(source.texts()), given.least, source.name)
    note(f"{len(words):,} words of {source.name}, {len(words.words):,} different ones.")
    model, begun = word2vec.Word2Vec(words, settings), time.perf_counter()
    for step in model.train():
        speed = step.done * settings.epochs * len(words) / (time.perf_counter() - begun)
        line = (
            f"epoch {step.epoch}/{settings.epochs}  {step.done:4.0%}  loss {step.loss:.3f}  "
            f"words/s {speed:,.0f}"
        )
        if common.moving() or step.done == 1:
            print(line, end="\n" if step.done == 1 else "\r", file=sys.stderr, flush=True)
    vectors.save(model.vectors(), out)
    if given.json:
        emit(
            {"words": len(words.words), "width": settings.dim, "loss": step.loss, "file": given.out}
        )
    else:
        print(f"{counted(len(words.words), 'vector')} of {settings.dim} numbers in {given.out}")


def _read(name: str) -> Vectors:
    from ..classics import vectors

    return vectors.read(Path(name))


def _near(given: argparse.Namespace) -> None:
    vectors = _read(given.vectors)
    near = given.task == "near"
    found = (
        vectors.near(given.word, given.top)
        if near
        else vectors.analogy(given.a, given.b, given.c, given.top)
    )
    rows = [(f"{cosine:.4f}", word) for word, cosine in found]
    result(given.json, [{"word": word, "cosine": cosine} for word, cosine in found], rows)


def _score(given: argparse.Namespace) -> None:
    from ..classics import vectors
    from ..evaluation import metrics

    need(
        given.similarity or given.analogies,
        "There is nothing to score; give --similarity or --analogies files.",
    )
    found = _read(given.vectors)
    results: list[dict[str, Any]] = []
    for name in given.similarity:
        pairs = vectors.read_pairs(Path(name))
        need(bool(pairs), f"{name} is empty; give lines of two words and a number.")
        asked = [
            pair
            for pair in pairs
            if found.find(pair[0]) is not None and found.find(pair[1]) is not None
        ]
        need(
            len(asked) > 1,
            f"The vectors know too few of the words in {name} to be scored; train on more text.",
        )
        figures = metrics.of_numbers(
            [found.cosine(a, b) for a, b, _ in asked], [right for *_, right in asked]
        )
        counts = {"asked": len(asked), "of": len(pairs)}
        results.append({"file": Path(name).name, "spearman": figures["spearman"], **counts})
    for name in given.analogies:
        questions = vectors.read_analogies(Path(name))
        right, known = vectors.right_analogies(found, questions)
        share = 100 * right / known if known else None
        results.append(
            {"file": Path(name).name, "accuracy": share, "asked": known, "of": len(questions)}
        )
    lines = []
    for one in results:
        figure = f"Spearman {one['spearman']:.4f}" if "spearman" in one else "-"
        figure = figure if one.get("accuracy") is None else f"{one['accuracy']:.1f} % right"
        lines.append((one["file"], figure, f"{one['asked']:,} of {one['of']:,} known"))
    result(given.json, results, lines, left=(0, 1, 2))


def _bag(given: argparse.Namespace) -> None:
    from ..classics import bag
    from ..data import find as find_corpus

    if given.among is not None:
        need(bool(given.text), "There is nothing to look for; give a text.")
        lines = [
            line
            for piece in find_corpus(given.among).texts()
            for line in piece.splitlines()
            if line.strip()
        ]
        found = bag.Bag(lines, given.weigh)
        hits = {query: found.search(query, given.top) for query in given.text}
        if given.json:
            emit(
                {
                    query: [{"text": lines[i], "cosine": cosine} for i, cosine in some]
                    for query, some in hits.items()
                }
            )
            return
        for query, some in hits.items():
            print(query if some else f"{query}: no line has a word of it")
            print("\n".join(f"  {cosine:.4f}  {lines[i]}" for i, cosine in some))
        return
    groups: list[tuple[str, Any]] = [("", given.text)]
    if not given.text:
        groups = [("Order is lost: other meaning, the same bag.", bag.ORDER_LOST)]
        groups.append(("Meaning is lost: the same meaning, no word in common.", bag.MEANING_LOST))
    cosines = [bag.Bag(texts, given.weigh).cosines().tolist() for _, texts in groups]
    if given.json:
        emit(
            [
                {"texts": list(texts), "cosines": square}
                for (_, texts), square in zip(groups, cosines, strict=True)
            ]
        )
        return
    for (heading, texts), square in zip(groups, cosines, strict=True):
        if heading:
            print(heading)
        for line, row in zip(texts, square, strict=True):
            print(f"  {' '.join(f'{cosine:.4f}' for cosine in row)}  {line}")


def learn_labels(
    train: str, valid: str, columns: dict[str, str], weigh: Any = "tfidf"
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Learn labels from bags of words of one file: the strongest words of two labels, and figures
    on another file."""
    import time

    from ..classics import bag, vocabulary
    from ..data import examples
    from ..evaluation import metrics
    from ..training.objectives import Classify

    learn = examples.read(train, Classify(), columns=columns)
    held_out = examples.read(valid, Classify(), columns=columns, labels=learn.labels)
    begun, busy = time.perf_counter(), time.process_time()
    learned = bag.BagClassifier([e.first for e in learn], [int(e.label or 0) for e in learn], weigh)
    clocks = {"seconds": time.perf_counter() - begun, "processor": time.process_time() - busy}
    texts, right = [e.first for e in held_out], [int(e.label or 0) for e in held_out]
    figures = {
        "loss": learned.loss(texts, right),
        **metrics.of_labels(learned.predict(texts), right),
    }
    read = sum(len(vocabulary.split(e.first)) for e in learn)
    sizes = {
        "words": len(learned.bag.words),
        "parameters": learned.parameters,
        "read": read,
        **clocks,
    }
    labels = learn.labels or ()
    strongest = dict(zip(labels, learned.strongest(), strict=True)) if len(labels) == 2 else {}
    return strongest, {**figures, "examples": len(held_out), **sizes}


def _classify(given: argparse.Namespace) -> None:
    strongest, figures = learn_labels(given.train, given.valid, columns(given.columns), given.weigh)
    if given.json:
        emit(figures)
        return
    rows(
        ("accuracy", f"{figures['accuracy']:.2f} %"),
        ("Matthews", f"{figures['matthews']:.4f}"),
        ("examples", f"{figures['examples']:,}"),
        ("weights", f"{figures['words']:,} words"),
        *((f"says {label}", ", ".join(words)) for label, words in strongest.items()),
    )


def _average(given: argparse.Namespace) -> None:
    from ..checkpoints import store
    from ..classics import average

    out = common.new_folder(given.out)
    model, tokenizer = average.encoder(_read(given.vectors), given.labels)
    store.save(model, out, tokenizer, layout="glassformer")
    if given.json:
        emit({"folder": given.out, "words": tokenizer.size, "width": model.config.dim})
    else:
        made = f"An encoder of {tokenizer.size:,} words and no blocks is in {given.out}"
        print(f"{made}; train it with --from {given.out}.")


def _contexts(given: argparse.Namespace) -> None:
    from ..classics import contexts
    from ..inspection.contexts import must_have, pair_cosines

    need(
        given.word is None or len(given.text) == 2,
        "A word needs two sentences that have it; give both.",
    )
    asked = contexts.EXAMPLES if given.word is None else ((given.word, *given.text),)
    first, second = (
        [(entry[side], *must_have(entry[side], entry[0])[0]) for entry in asked] for side in (1, 2)
    )
    vectors = _read(given.vectors) if given.vectors else None
    cosines = pair_cosines(
        *model_and_tokenizer(given), list(zip(first, second, strict=True))
    ).tolist()
    results = []
    for (word, *texts), layers in zip(asked, cosines, strict=True):
        found = {"word": word, "texts": texts, "layers": layers}
        results.append(
            found if vectors is None else {**found, "word2vec": vectors.cosine(word, word)}
        )
    if given.json:
        emit(results)
        return
    for entry in results:
        print(f"{entry['word']}: {entry['texts'][0]} | {entry['texts'][1]}")
        names = ["  embedding", *(f"  layer {number}" for number in range(1, len(entry["layers"])))]
        bars = ["#" * round(40 * max(0.0, cosine)) for cosine in entry["layers"]]
        lines = [
            (name, f"{c:.4f}", bar)
            for name, c, bar in zip(names, entry["layers"], bars, strict=True)
        ]
        if "word2vec" in entry:
            lines.insert(
                0, ("  word2vec", f"{entry['word2vec']:.4f}", "one vector, whatever the sentence")
            )
        table(lines, left=(0, 2))


def _wic(given: argparse.Namespace) -> None:
    import numpy as np

    from ..classics import contexts
    from ..inspection.contexts import pair_cosines

    need(
        given.model or given.vectors,
        "There is nothing to measure; give --model, --vectors or both.",
    )
    parts = {
        name: contexts.read_wic(Path(given.folder), name)[: given.first]
        for name in ("train", "dev", "test")
    }
    same = {name: np.array([pair.same for pair in pairs]) for name, pairs in parts.items()}
    measured: list[tuple[str, dict[str, Any]]] = []
    if given.vectors:
        vectors = _read(given.vectors)
        measured.append(
            (
                "word2vec",
                {name: contexts.static_cosines(vectors, pairs) for name, pairs in parts.items()},
            )
        )
    if given.model:
        loaded, places = (
            model_and_tokenizer(given),
            {n: [(p.first, p.second) for p in parts[n]] for n in parts},
        )
        measured.append(
            (
                "layer",
                {name: pair_cosines(*loaded, pairs).numpy() for name, pairs in places.items()},
            )
        )
    found: list[dict[str, Any]] = []
    for kind, cosines in measured:
        for layer in range(cosines["train"].shape[1]):
            border = contexts.threshold(cosines["train"][:, layer], same["train"])
            right = {
                name: contexts.accuracy(cosines[name][:, layer], same[name], border)
                for name in parts
            }
            found.append(
                {
                    "vectors": kind if kind == "word2vec" else f"layer {layer}",
                    "from": border,
                    **right,
                }
            )
    lines = []
    for one in found:
        name = "embedding" if one["vectors"] == "layer 0" else one["vectors"]
        lines.append((name, f"{one['from']:.4f}", *(f"{one[part]:.2f}" for part in parts)))
    note("In % right; the border is chosen on train.")
    value = [{**one, "from": one["from"] if np.isfinite(one["from"]) else None} for one in found]
    result(given.json, value, lines, heading=("vectors", "same from", *parts))


TASKS = {
    "train": _train,
    "near": _near,
    "analogy": _near,
    "score": _score,
    "bag": _bag,
    "classify": _classify,
    "average": _average,
    "contexts": _contexts,
    "wic": _wic,
}
