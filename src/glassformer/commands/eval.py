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
from .classify import labels_of
from .common import (
    MODEL,
    columns,
    computing,
    counted,
    counting,
    editing,
    edits_of,
    emit,
    model_and_tokenizer,
    rows,
    unescaped,
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


def options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
    add("model", metavar="MODEL", help=MODEL)
    add("--data", metavar="FILE", help="a file, a folder or a named corpus; examples")
    add("--json", action="store_true", help="the figures as JSON")
    add("--batch", type=int, metavar="N", help="windows or texts at once (8, texts 32)")
    editing(one)
    computing(one)

    text = one.add_argument_group("the loss of a text; every token is counted once").add_argument
    text("--field", default="text", metavar="NAME", help="the text field of JSONL (text)")
    text(
        "--separator",
        type=unescaped,
        metavar="TEXT",
        help="what parts a plain file's documents (nothing)",
    )
    text("--context", type=int, metavar="N", help="tokens a window holds (the model's context)")
    text("--stride", type=int, metavar="N", help="how far windows move on (half of the context)")

    tasks = one.add_argument_group(
        "tasks of lm-evaluation-harness, instead of --data: multiple choice, zero-shot or few-shot"
    ).add_argument
    tasks("--tasks", metavar="T,...", help="such as hellaswag,arc_easy,piqa")
    tasks(
        "--shots", type=int, metavar="N", help="examples in front of each question (the task's own)"
    )
    tasks("--limit", type=int, metavar="N", help="only the first N questions of each task")
    tasks("--task-files", type=Path, metavar="DIR", help="a folder with tasks of your own, as YAML")

    pairs = one.add_argument_group(
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


def names(text: str | None) -> list[str]:
    """``bleu,chrf``."""
    return [name.strip() for name in text.split(",")] if text else []


def numbers(text: str | None) -> list[int]:
    """``10,20,30``."""
    found = (
        [int(word) if word.strip().isdecimal() else 0 for word in text.split(",")] if text else []
    )
    rising = all(low < high for low, high in zip([0, *found], found, strict=False))
    need(rising, f'--lengths is "{text}"; give integers that rise, such as 10,20,30.')
    return found


def run(given: argparse.Namespace) -> None:
    given.edit = edits_of(given)
    need(
        (given.data is None) != (given.tasks is None),
        "Give --data FILE, or --tasks NAME,... to answer tasks.",
    )
    if given.tasks is not None:
        tasks(given)
        return
    if given.out is not None:
        common.new_file(given.out, given.data, given.target)
    given.data = common.file_or_input(given.data)
    show(given, measure(given))


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """The figures that follow from the model's shape."""
    from .. import config, generation

    given.columns, given.figures, given.lengths = (
        columns(given.columns),
        names(given.figures),
        numbers(given.lengths),
    )
    model, tokenizer = model_and_tokenizer(given)
    paired = given.target is not None or "source" in given.columns
    if isinstance(model.config, config.EncoderDecoder):
        return targets(given, model, tokenizer)
    if paired and isinstance(model.config, config.Decoder):
        learned = common.objective_of(given.model)
        need(
            learned in ("Seq2Seq", None),
            f"{given.model} was trained to continue text ({learned}) and writes no targets; "
            "train with "
            "--objective Seq2Seq, or leave --target and --columns out to measure its loss.",
        )
        return targets(given, model, tokenizer)
    if model.config.pool is not None and model.config.pool.labels:
        return labels(given, model, tokenizer)
    if generation.tags(model.config):
        return tags(given, model, tokenizer)
    sentence = (
        "This model has no labels and writes no targets, so --columns means nothing; leave it out."
    )
    need(not given.columns, sentence)
    return text(given, model, tokenizer)


def tasks(given: argparse.Namespace) -> None:
    """Tasks of lm-evaluation-harness."""
    from .harness import evaluate_tasks

    need(given.shots is None or given.shots >= 0, f"--shots is {given.shots}; give 0 or more.")
    need(given.limit is None or given.limit > 0, f"--limit is {given.limit}; give 1 or more.")
    folder = given.task_files
    need(
        folder is None or folder.is_dir(),
        f"--task-files {folder} is not a folder; give one that holds YAML files.",
    )
    model, tokenizer = model_and_tokenizer(given)
    figures = evaluate_tasks(
        model,
        tokenizer,
        names(given.tasks),
        shots=given.shots,
        limit=given.limit,
        folder=folder,
        batch=given.batch or 16,
        progress=counting("answers"),
        edits=given.edit,
    )
    show(given, figures)


def text(given: argparse.Namespace, model: Any, tokenizer: Any) -> dict[str, Any]:
    """The loss of a text."""
    from .. import evaluation
    from ..data import find as find_corpus

    source = find_corpus(given.data, given.field, given.separator)
    for line in source.notes:
        note(line)
    context = model.config.context if given.context is None else given.context
    stride = max(context // 2, 1) if given.stride is None else given.stride
    batch = 8 if given.batch is None else given.batch
    how = {"context": context, "stride": stride, "batch": batch, "edits": given.edit}
    score = evaluation.score(model, tokenizer, source, progress=counting(), **how)
    if given.json:
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


def targets(given: argparse.Namespace, model: Any, tokenizer: Any) -> dict[str, Any]:
    """What the model writes for each source, against the targets."""
    from .. import evaluation, files, generation
    from ..training.objectives import Seq2Seq

    examples = read(given, Seq2Seq())
    note(
        f"{counted(len(examples), 'text')}, {given.beams} beams each, up to {given.max_new} "
        "tokens long."
    )
    hypotheses = generation.search(
        model,
        tokenizer,
        [example.first for example in examples],
        batch=32 if given.batch is None else given.batch,
        progress=counting("texts"),
        beams=given.beams,
        length_penalty=given.length_penalty,
        max_new=given.max_new,
        cut=given.cut,
        edits=given.edit,
    )
    whole = evaluation.whole_words if given.whole_words else str
    written = [whole(found[0].text) for found in hypotheses]
    references = [
        [whole(text) for text in example.references or (example.second or "",)]
        for example in examples
    ]
    if given.out:
        lines = "".join(text.replace("\n", " ") + "\n" for text in written)
        print(lines, end="") if str(given.out) == "-" else files.write(given.out, lines)

    def measured(some: Sequence[int]) -> dict[str, Any]:
        texts, right = [written[n] for n in some], [references[n] for n in some]
        names = given.figures or ["bleu", "chrf"]
        figures = evaluation.of_texts(
            texts, right, names, lower=given.lower, tokenised=given.tokenised
        )
        return {"texts": len(some), **figures}

    figures = measured(range(len(written)))
    if given.lengths:
        groups = evaluation.by_length([whole(example.first) for example in examples], given.lengths)
        figures["by length"] = {name: measured(some) for name, some in groups.items() if some}
    return figures


def labels(given: argparse.Namespace, model: Any, tokenizer: Any) -> dict[str, Any]:
    """The labels that the model gives, against the right ones."""
    from .. import evaluation, generation
    from ..training.objectives import Classify

    count = model.config.pool.labels
    names = None if count == 1 else labels_of(given.model, count)
    examples = read(given, Classify(regression=count == 1), names)
    texts = [
        example.first if example.second is None else (example.first, example.second)
        for example in examples
    ]
    batch = 32 if given.batch is None else given.batch
    need(
        given.cut in ("no", "end"),
        f'--cut is "{given.cut}"; texts with labels lose their end, or nothing.',
    )
    told = {
        "truncate": given.cut == "end",
        "batch": batch,
        "progress": counting("texts"),
        "edits": given.edit,
    }
    found = generation.classify(model, tokenizer, texts, **told)
    right = [example.label or 0.0 for example in examples]
    if count == 1:
        figures = evaluation.of_numbers(found[:, 0].tolist(), right)
    else:
        figures = evaluation.of_labels(found.argmax(1).tolist(), [int(label) for label in right])
    return {"texts": len(texts), **figures}


def tags(given: argparse.Namespace, model: Any, tokenizer: Any) -> dict[str, Any]:
    """The labels that the model gives to words, against the right ones."""
    from .. import evaluation, generation
    from ..training.objectives import Tag

    names = labels_of(given.model, model.config.token_head.labels)
    examples = read(given, Tag(), names)
    batch = 32 if given.batch is None else given.batch
    sentences = [example.words for example in examples]
    found = generation.tag(
        model, tokenizer, sentences, batch=batch, progress=counting("sentences"), edits=given.edit
    )
    chosen = [[names[best] for best in one.argmax(1).tolist()] for one in found]
    right = [[names[tag] for tag in example.tags] for example in examples]
    return {
        "sentences": len(right),
        "words": sum(map(len, right)),
        **evaluation.of_tags(chosen, right),
    }


def read(
    given: argparse.Namespace, objective: Any, labels: Sequence[str] | None = None
) -> Sequence[Example]:
    """The examples that the options name."""
    from ..data import examples

    where = given.data if given.target is None else {"source": given.data, "target": given.target}
    table = examples.read(
        where, objective, columns=given.columns, labels=labels, before=given.before
    )
    for line in table.notes:
        note(line)
    return table.examples


def show(given: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Figures, and those of groups: on standard error where standard output has what the model
    wrote."""
    with contextlib.redirect_stdout(sys.stderr if str(given.out) == "-" else sys.stdout):
        emit(figures) if given.json else rows(*_lines(figures))


def _lines(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A name and its figure, or all the figures of a task or a group."""
    for name, value in figures.items():
        if not isinstance(value, dict):
            yield name, number(value)
        elif any(isinstance(inner, dict) for inner in value.values()):
            yield from _lines(value)
        else:
            yield name, "  ".join(f"{what} {number(figure)}" for what, figure in value.items())


def number(value: float | str) -> str:
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
