"""``glassformer eval``: a model against a text, against translations, or against labels, by its
shape."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import need, note
from . import common
from .classify import label_names
from .common import (
    MODEL_HELP,
    add_device_options,
    add_edit_option,
    count_noun,
    load_model_and_tokenizer,
    parse_columns,
    parse_edits,
    print_json,
    print_pairs,
    progress_counter,
    unescape,
)

if TYPE_CHECKING:
    from ..data.examples import Example

EXAMPLES = (
    "glassformer eval out/mine --data held-out.txt",
    "glassformer eval out/pair --data test.en --target test.de --json",
)
EPILOG = (
    "What is measured follows from the model: a text's loss; BLEU and chrF from source to "
    "target; accuracy; entities."
)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL_HELP)
    add("--data", metavar="FILE", help="a file, a folder or a named corpus; examples")
    add("--json", action="store_true", help="the figures as JSON")
    add("--batch", type=int, metavar="N", help="windows or texts at once (8, texts 32)")
    add_edit_option(parser)
    add_device_options(parser)

    text = parser.add_argument_group("the loss of a text; every token is counted once").add_argument
    text("--field", default="text", metavar="NAME", help="the text field of JSONL (text)")
    text(
        "--separator",
        type=unescape,
        metavar="TEXT",
        help="what parts a plain file's documents (nothing)",
    )
    text("--context", type=int, metavar="N", help="tokens a window holds (the model's context)")
    text("--stride", type=int, metavar="N", help="how far windows move on (half of the context)")

    tasks = parser.add_argument_group(
        "tasks of lm-evaluation-harness, instead of --data: multiple choice, zero-shot or few-shot"
    ).add_argument
    tasks("--tasks", metavar="T,...", help="such as hellaswag,arc_easy,piqa")
    tasks(
        "--shots", type=int, metavar="N", help="examples in front of each question (the task's own)"
    )
    tasks("--limit", type=int, metavar="N", help="only the first N questions of each task")
    tasks("--task-files", type=Path, metavar="DIR", help="a folder with tasks of your own, as YAML")

    pairs = parser.add_argument_group(
        "examples: from source to target, or from text to label"
    ).add_argument
    pairs("--target", metavar="FILE", help="the file with the right targets, line by line")
    pairs("--columns", metavar="P=C,...", help="what a table calls its parts: text=0,label=1")
    pairs(
        "--before",
        default="",
        metavar="TEXT",
        help='what stands before each source ("summarize: ")',
    )
    pairs("--figures", metavar="F,...", help="bleu, chrf, rouge1, rouge2, rougeL, exact")
    pairs(
        "--beams", type=int, default=5, metavar="K", help="width of the beam search; 1: greedy (5)"
    )
    pairs("--length-penalty", type=float, default=1.0, metavar="A", help="as in translate (1)")
    pairs("--max-new", type=int, default=200, metavar="N", help="tokens a target may have (200)")
    pairs(
        "--cut",
        default="no",
        metavar="SIDE",
        help="what a source too long loses: end, start (refused)",
    )
    pairs("--lower", action="store_true", help="ignore capitals")
    pairs(
        "--tokenised",
        action="store_true",
        help="texts are parted at white space, as older papers do",
    )
    pairs("--whole-words", action="store_true", help="put words cut in @@ pieces together first")
    pairs("--lengths", metavar="N,...", help="figures by source length, borders in words")
    pairs(
        "--out",
        type=Path,
        metavar="FILE",
        help="write what the model wrote, line by line; - is standard output, the figures then "
        "go to standard error",
    )


def split_names(text: str | None) -> list[str]:
    """``bleu,chrf``."""
    return [name.strip() for name in text.split(",")] if text else []


def parse_lengths(text: str | None) -> list[int]:
    """``10,20,30``."""
    lengths = (
        [int(word) if word.strip().isdecimal() else 0 for word in text.split(",")] if text else []
    )
    rising = all(low < high for low, high in zip([0, *lengths], lengths, strict=False))
    need(rising, f'--lengths is "{text}"; give integers that rise, such as 10,20,30.')
    return lengths


def run(args: argparse.Namespace) -> None:
    args.edit = parse_edits(args)
    need(
        (args.data is None) != (args.tasks is None),
        "Give --data FILE, or --tasks NAME,... to answer tasks.",
    )
    if args.tasks is not None:
        tasks(args)
        return
    if args.out is not None:
        common.new_file(args.out, args.data, args.target)
    args.data = common.file_or_input(args.data)
    show_figures(args, measure(args))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The figures that follow from the model's shape."""
    from .. import config, generation

    args.columns, args.figures, args.lengths = (
        parse_columns(args.columns),
        split_names(args.figures),
        parse_lengths(args.lengths),
    )
    model, tokenizer = load_model_and_tokenizer(args)
    paired = args.target is not None or "source" in args.columns
    if isinstance(model.config, config.EncoderDecoder):
        return score_targets(args, model, tokenizer)
    if paired and isinstance(model.config, config.Decoder):
        learned = common.run_objective(args.model)
        need(
            learned in ("Seq2Seq", None),
            f"{args.model} was trained to continue text ({learned}) and writes no targets; "
            "train with "
            "--objective Seq2Seq, or leave --target and --columns out to measure its loss.",
        )
        return score_targets(args, model, tokenizer)
    if model.config.pool is not None and model.config.pool.labels:
        return score_labels(args, model, tokenizer)
    if generation.tags(model.config):
        return score_tags(args, model, tokenizer)
    sentence = (
        "This model has no labels and writes no targets, so --columns means nothing; leave it out."
    )
    need(not args.columns, sentence)
    return score_text(args, model, tokenizer)


def tasks(args: argparse.Namespace) -> None:
    """Tasks of lm-evaluation-harness."""
    from .harness import evaluate_tasks

    need(args.shots is None or args.shots >= 0, f"--shots is {args.shots}; give 0 or more.")
    need(args.limit is None or args.limit > 0, f"--limit is {args.limit}; give 1 or more.")
    folder = args.task_files
    need(
        folder is None or folder.is_dir(),
        f"--task-files {folder} is not a folder; give one that holds YAML files.",
    )
    model, tokenizer = load_model_and_tokenizer(args)
    figures = evaluate_tasks(
        model,
        tokenizer,
        split_names(args.tasks),
        shots=args.shots,
        limit=args.limit,
        folder=folder,
        batch=args.batch or 16,
        progress=progress_counter("answers"),
        edits=args.edit,
    )
    show_figures(args, figures)


def score_text(args: argparse.Namespace, model: Any, tokenizer: Any) -> dict[str, Any]:
    """The loss of a text."""
    from .. import evaluation
    from ..data import find as find_corpus

    source = find_corpus(args.data, args.field, args.separator)
    for line in source.notes:
        note(line)
    context = model.config.context if args.context is None else args.context
    stride = max(context // 2, 1) if args.stride is None else args.stride
    batch = 8 if args.batch is None else args.batch
    options = {"context": context, "stride": stride, "batch": batch, "edits": args.edit}
    score = evaluation.score(model, tokenizer, source, progress=progress_counter(), **options)
    if args.json:
        return {**score.to_dict(), "context": context, "stride": stride}
    note(
        f"Perplexity is exp(loss) of a token, one of this tokenizer's {tokenizer.size:,}, after "
        f"up to {context:,} "
        f"(--context) in windows that move on by {stride:,} (--stride). Across tokenizers "
        "compare bits per byte."
    )
    figures = {"loss": f"{score.loss:.4f} nats per token", "perplexity": f"{score.perplexity:.4f}"}
    return {
        **figures,
        "bits per byte": f"{score.bits_per_byte:.4f}",
        "tokens": score.tokens,
        "bytes": score.bytes,
    }


def score_targets(args: argparse.Namespace, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Returns the figures of the model's hypotheses against the targets."""
    from .. import evaluation, files, generation
    from ..training.objectives import Seq2Seq

    examples = read_examples(args, Seq2Seq())
    note(
        f"{count_noun(len(examples), 'text')}, {args.beams} beams each, up to {args.max_new} "
        "tokens long."
    )
    hypotheses = generation.search(
        model,
        tokenizer,
        [example.first for example in examples],
        batch=32 if args.batch is None else args.batch,
        progress=progress_counter("texts"),
        beams=args.beams,
        length_penalty=args.length_penalty,
        max_new=args.max_new,
        cut=args.cut,
        edits=args.edit,
    )
    join_words = evaluation.whole_words if args.whole_words else str
    written = [join_words(beams[0].text) for beams in hypotheses]
    references = [
        [join_words(text) for text in example.references or (example.second or "",)]
        for example in examples
    ]
    if args.out:
        lines = "".join(text.replace("\n", " ") + "\n" for text in written)
        print(lines, end="") if str(args.out) == "-" else files.write(args.out, lines)

    def text_metrics(indices: Sequence[int]) -> dict[str, Any]:
        texts, right = [written[n] for n in indices], [references[n] for n in indices]
        names = args.figures or ["bleu", "chrf"]
        figures = evaluation.of_texts(
            texts, right, names, lower=args.lower, tokenised=args.tokenised
        )
        return {"texts": len(indices), **figures}

    figures = text_metrics(range(len(written)))
    if args.lengths:
        groups = evaluation.by_length(
            [join_words(example.first) for example in examples], args.lengths
        )
        figures["by length"] = {
            name: text_metrics(indices) for name, indices in groups.items() if indices
        }
    return figures


def score_labels(args: argparse.Namespace, model: Any, tokenizer: Any) -> dict[str, Any]:
    """The labels that the model gives, against the right ones."""
    from .. import evaluation, generation
    from ..training.objectives import Classify

    count = model.config.pool.labels
    names = None if count == 1 else label_names(args.model, count)
    examples = read_examples(args, Classify(regression=count == 1), names)
    texts = [
        example.first if example.second is None else (example.first, example.second)
        for example in examples
    ]
    batch = 32 if args.batch is None else args.batch
    need(
        args.cut in ("no", "end"),
        f'--cut is "{args.cut}"; texts with labels lose their end, or nothing.',
    )
    options = {
        "truncate": args.cut == "end",
        "batch": batch,
        "progress": progress_counter("texts"),
        "edits": args.edit,
    }
    outputs = generation.classify(model, tokenizer, texts, **options)
    right = [example.label or 0.0 for example in examples]
    if count == 1:
        figures = evaluation.of_numbers(outputs[:, 0].tolist(), right)
    else:
        figures = evaluation.of_labels(outputs.argmax(1).tolist(), [int(label) for label in right])
    return {"texts": len(texts), **figures}


def score_tags(args: argparse.Namespace, model: Any, tokenizer: Any) -> dict[str, Any]:
    """The labels that the model gives to words, against the right ones."""
    from .. import evaluation, generation
    from ..training.objectives import Tag

    names = label_names(args.model, model.config.token_head.labels)
    examples = read_examples(args, Tag(), names)
    batch = 32 if args.batch is None else args.batch
    sentences = [example.words for example in examples]
    outputs = generation.tag(
        model,
        tokenizer,
        sentences,
        batch=batch,
        progress=progress_counter("sentences"),
        edits=args.edit,
    )
    chosen = [[names[best] for best in logits.argmax(1).tolist()] for logits in outputs]
    right = [[names[tag] for tag in example.tags] for example in examples]
    return {
        "sentences": len(right),
        "words": sum(map(len, right)),
        **evaluation.of_tags(chosen, right),
    }


def read_examples(
    args: argparse.Namespace, objective: Any, labels: Sequence[str] | None = None
) -> Sequence[Example]:
    """The examples that the options name."""
    from ..data import examples

    files = args.data if args.target is None else {"source": args.data, "target": args.target}
    table = examples.read_examples(
        files, objective, columns=args.columns, labels=labels, before=args.before
    )
    for line in table.notes:
        note(line)
    return table.examples


def show_figures(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Figures, and those of groups: on standard error where standard output has what the model
    wrote."""
    with contextlib.redirect_stdout(sys.stderr if str(args.out) == "-" else sys.stdout):
        print_json(figures) if args.json else print_pairs(*_lines(figures))


def _lines(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A name and its figure, or all the figures of a task or a group."""
    for name, value in figures.items():
        if not isinstance(value, dict):
            yield name, format_number(value)
        elif any(isinstance(inner, dict) for inner in value.values()):
            yield from _lines(value)
        else:
            yield (
                name,
                "  ".join(f"{label} {format_number(figure)}" for label, figure in value.items()),
            )


def format_number(value: float | str) -> str:
    """A count whole, a figure with what it is usually given with."""
    if isinstance(value, str):
        return value
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:.4f}"
        if abs(value) <= 1
        else f"{value:.2f}"
    )
