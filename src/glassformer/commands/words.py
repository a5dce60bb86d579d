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
    MODEL_HELP,
    add_device_options,
    count_noun,
    load_model_and_tokenizer,
    parse_columns,
    print_json,
    print_pairs,
    print_result,
    print_table,
    unescape,
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


def options(parser: Parser) -> None:
    tasks = parser.add_subparsers(metavar="TASK", parser_class=type(parser))

    def task(name: str, description: str) -> Parser:
        parser: Parser = tasks.add_parser(name, help=description, description=description)
        parser.add_argument("--json", action="store_true", help="as JSON")
        parser.set_defaults(task=name)
        return parser

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
    for name, kind, usual, description in (
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
            f"--{name}", type=kind, default=usual, metavar="N", help=f"{description} ({usual})"
        )
    train.add_argument(
        "--field", default="text", metavar="NAME", help="the text field of JSONL (text)"
    )
    train.add_argument(
        "--separator", type=unescape, metavar="TEXT", help="what parts a plain file's documents"
    )

    near = task("near", "The words nearest to a word.")
    analogy = task("analogy", "What is to C as B is to A.")
    for task_parser, names in ((near, ("word",)), (analogy, ("a", "b", "c"))):
        task_parser.add_argument("vectors", metavar="VECTORS", help=VECTORS)
        for name in names:
            task_parser.add_argument(name, metavar=name.upper())
        task_parser.add_argument(
            "--top", type=int, default=10, metavar="N", help="words shown (10)"
        )
        task_parser.also("--most", "--top")

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
    contexts.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    contexts.add_argument(
        "word", nargs="?", metavar="WORD", help="left out, well-known examples are shown"
    )
    contexts.add_argument("text", nargs="*", metavar="TEXT", help="two sentences that have it")
    contexts.add_argument("--vectors", metavar="FILE", help=f"word2vec beside it: {VECTORS}")
    add_device_options(contexts)

    wic = task(
        "wic",
        "Words in Context: does a word mean the same in two texts? By the cosine "
        "of its two vectors.",
    )
    wic.add_argument(
        "folder", metavar="FOLDER", help="the folder of its files (train.data.txt ...)"
    )
    wic.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    wic.add_argument("--vectors", metavar="FILE", help=VECTORS)
    wic.add_argument("--first", type=int, metavar="N", help="so many pairs of each part alone")
    add_device_options(wic)


def run(args: argparse.Namespace) -> None:
    TASKS[args.task](args)


def _train(args: argparse.Namespace) -> None:
    import time

    from ..classics import vectors, vocabulary, word2vec
    from ..data import find as find_corpus

    names = [field.name for field in dataclasses.fields(word2vec.Settings)]
    try:
        settings = word2vec.Settings(**{name: getattr(args, name) for name in names})
    except UserError as error:
        raise UserError(str(error).replace("Settings.", "--")) from None
    out = common.new_file(args.out, args.corpus)
    source = find_corpus(common.file_or_input(args.corpus), args.field, args.separator)
    words = vocabulary.index_words(vocabulary.sentences(source.texts()), args.least, source.name)
    note(f"{len(words):,} words of {source.name}, {len(words.words):,} different ones.")
    model, start = word2vec.Word2Vec(words, settings), time.perf_counter()
    for step in model.train():
        speed = step.done * settings.epochs * len(words) / (time.perf_counter() - start)
        line = (
            f"epoch {step.epoch}/{settings.epochs}  {step.done:4.0%}  loss {step.loss:.3f}  "
            f"words/s {speed:,.0f}"
        )
        if common.is_terminal() or step.done == 1:
            print(line, end="\n" if step.done == 1 else "\r", file=sys.stderr, flush=True)
    vectors.save(model.vectors(), out)
    if args.json:
        print_json(
            {"words": len(words.words), "width": settings.dim, "loss": step.loss, "file": args.out}
        )
    else:
        print(f"{count_noun(len(words.words), 'vector')} of {settings.dim} numbers in {args.out}")


def _read(name: str) -> Vectors:
    from ..classics import vectors

    return vectors.read_vectors(Path(name))


def _near(args: argparse.Namespace) -> None:
    vectors = _read(args.vectors)
    near = args.task == "near"
    neighbours = (
        vectors.near(args.word, args.top)
        if near
        else vectors.analogy(args.a, args.b, args.c, args.top)
    )
    rows = [(f"{cosine:.4f}", word) for word, cosine in neighbours]
    print_result(args.json, [{"word": word, "cosine": cosine} for word, cosine in neighbours], rows)


def _score(args: argparse.Namespace) -> None:
    from ..classics import vectors
    from ..evaluation import metrics

    need(
        args.similarity or args.analogies,
        "There is nothing to score; give --similarity or --analogies files.",
    )
    word_vectors = _read(args.vectors)
    results: list[dict[str, Any]] = []
    for name in args.similarity:
        pairs = vectors.read_pairs(Path(name))
        need(bool(pairs), f"{name} is empty; give lines of two words and a number.")
        covered = [
            pair
            for pair in pairs
            if word_vectors.find(pair[0]) is not None and word_vectors.find(pair[1]) is not None
        ]
        need(
            len(covered) > 1,
            f"The vectors know too few of the words in {name} to be scored; train on more text.",
        )
        figures = metrics.of_numbers(
            [word_vectors.cosine(a, b) for a, b, _ in covered], [right for *_, right in covered]
        )
        coverage = {"asked": len(covered), "of": len(pairs)}
        results.append({"file": Path(name).name, "spearman": figures["spearman"], **coverage})
    for name in args.analogies:
        questions = vectors.read_analogies(Path(name))
        right, in_vocabulary = vectors.right_analogies(word_vectors, questions)
        share = 100 * right / in_vocabulary if in_vocabulary else None
        results.append(
            {
                "file": Path(name).name,
                "accuracy": share,
                "asked": in_vocabulary,
                "of": len(questions),
            }
        )
    lines = []
    for row in results:
        figure = f"Spearman {row['spearman']:.4f}" if "spearman" in row else "-"
        figure = figure if row.get("accuracy") is None else f"{row['accuracy']:.1f} % right"
        lines.append((row["file"], figure, f"{row['asked']:,} of {row['of']:,} known"))
    print_result(args.json, results, lines, left_aligned=(0, 1, 2))


def _bag(args: argparse.Namespace) -> None:
    from ..classics import bag
    from ..data import find as find_corpus

    if args.among is not None:
        need(bool(args.text), "There is nothing to look for; give a text.")
        lines = [
            line
            for piece in find_corpus(args.among).texts()
            for line in piece.splitlines()
            if line.strip()
        ]
        index = bag.Bag(lines, args.weigh)
        hits = {query: index.search(query, args.top) for query in args.text}
        if args.json:
            print_json(
                {
                    query: [{"text": lines[i], "cosine": cosine} for i, cosine in matches]
                    for query, matches in hits.items()
                }
            )
            return
        for query, matches in hits.items():
            print(query if matches else f"{query}: no line has a word of it")
            print("\n".join(f"  {cosine:.4f}  {lines[i]}" for i, cosine in matches))
        return
    groups: list[tuple[str, Any]] = [("", args.text)]
    if not args.text:
        groups = [("Order is lost: other meaning, the same bag.", bag.ORDER_LOST)]
        groups.append(("Meaning is lost: the same meaning, no word in common.", bag.MEANING_LOST))
    cosines = [bag.Bag(texts, args.weigh).cosines().tolist() for _, texts in groups]
    if args.json:
        print_json(
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

    learn = examples.read_examples(train, Classify(), columns=columns)
    held_out = examples.read_examples(valid, Classify(), columns=columns, labels=learn.labels)
    start, busy = time.perf_counter(), time.process_time()
    learned = bag.BagClassifier([e.first for e in learn], [int(e.label or 0) for e in learn], weigh)
    clocks = {"seconds": time.perf_counter() - start, "processor": time.process_time() - busy}
    texts, right = [e.first for e in held_out], [int(e.label or 0) for e in held_out]
    figures = {
        "loss": learned.loss(texts, right),
        **metrics.of_labels(learned.predict(texts), right),
    }
    words_read = sum(len(vocabulary.split(e.first)) for e in learn)
    sizes = {
        "words": len(learned.bag.words),
        "parameters": learned.parameters,
        "read": words_read,
        **clocks,
    }
    labels = learn.labels or ()
    strongest = dict(zip(labels, learned.strongest(), strict=True)) if len(labels) == 2 else {}
    return strongest, {**figures, "examples": len(held_out), **sizes}


def _classify(args: argparse.Namespace) -> None:
    strongest, figures = learn_labels(
        args.train, args.valid, parse_columns(args.columns), args.weigh
    )
    if args.json:
        print_json(figures)
        return
    print_pairs(
        ("accuracy", f"{figures['accuracy']:.2f} %"),
        ("Matthews", f"{figures['matthews']:.4f}"),
        ("examples", f"{figures['examples']:,}"),
        ("weights", f"{figures['words']:,} words"),
        *((f"says {label}", ", ".join(words)) for label, words in strongest.items()),
    )


def _average(args: argparse.Namespace) -> None:
    from ..checkpoints import store
    from ..classics import average

    out = common.new_folder(args.out)
    model, tokenizer = average.encoder(_read(args.vectors), args.labels)
    store.save(model, out, tokenizer, layout="glassformer")
    if args.json:
        print_json({"folder": args.out, "words": tokenizer.size, "width": model.config.dim})
    else:
        message = f"An encoder of {tokenizer.size:,} words and no blocks is in {args.out}"
        print(f"{message}; train it with --from {args.out}.")


def _contexts(args: argparse.Namespace) -> None:
    from ..classics import contexts
    from ..inspection.contexts import must_have, pair_cosines

    need(
        args.word is None or len(args.text) == 2,
        "A word needs two sentences that have it; give both.",
    )
    entries = contexts.EXAMPLES if args.word is None else ((args.word, *args.text),)
    first, second = (
        [(entry[side], *must_have(entry[side], entry[0])[0]) for entry in entries]
        for side in (1, 2)
    )
    vectors = _read(args.vectors) if args.vectors else None
    cosines = pair_cosines(
        *load_model_and_tokenizer(args), list(zip(first, second, strict=True))
    ).tolist()
    results = []
    for (word, *texts), layers in zip(entries, cosines, strict=True):
        comparison = {"word": word, "texts": texts, "layers": layers}
        results.append(
            comparison
            if vectors is None
            else {**comparison, "word2vec": vectors.cosine(word, word)}
        )
    if args.json:
        print_json(results)
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
        print_table(lines, left_aligned=(0, 2))


def _wic(args: argparse.Namespace) -> None:
    import numpy as np

    from ..classics import contexts
    from ..inspection.contexts import pair_cosines

    need(
        args.model or args.vectors,
        "There is nothing to measure; give --model, --vectors or both.",
    )
    splits = {
        name: contexts.read_wic(Path(args.folder), name)[: args.first]
        for name in ("train", "dev", "test")
    }
    labels = {name: np.array([pair.same_sense for pair in pairs]) for name, pairs in splits.items()}
    measured: list[tuple[str, dict[str, Any]]] = []
    if args.vectors:
        vectors = _read(args.vectors)
        measured.append(
            (
                "word2vec",
                {name: contexts.static_cosines(vectors, pairs) for name, pairs in splits.items()},
            )
        )
    if args.model:
        loaded, places = (
            load_model_and_tokenizer(args),
            {n: [(p.first, p.second) for p in splits[n]] for n in splits},
        )
        measured.append(
            (
                "layer",
                {name: pair_cosines(*loaded, pairs).numpy() for name, pairs in places.items()},
            )
        )
    results: list[dict[str, Any]] = []
    for kind, cosines in measured:
        for layer in range(cosines["train"].shape[1]):
            border = contexts.threshold(cosines["train"][:, layer], labels["train"])
            right = {
                name: contexts.accuracy(cosines[name][:, layer], labels[name], border)
                for name in splits
            }
            results.append(
                {
                    "vectors": kind if kind == "word2vec" else f"layer {layer}",
                    "from": border,
                    **right,
                }
            )
    lines = []
    for row in results:
        name = "embedding" if row["vectors"] == "layer 0" else row["vectors"]
        lines.append((name, f"{row['from']:.4f}", *(f"{row[split]:.2f}" for split in splits)))
    note("In % right; the border is chosen on train.")
    value = [{**row, "from": row["from"] if np.isfinite(row["from"]) else None} for row in results]
    print_result(args.json, value, lines, heading=("vectors", "same from", *splits))


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
