"""``glassformer eval``: a model against a text, against translations, or against labels, by its
shape."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from ..core.errors import need, note
from . import common
from .common import count_noun, progress_counter, text_table
from .options import Columns, Edits, ModelOptions, Separator
from .parsing import CommandOutput, Count, Whole
from .sources import file_or_input, find_corpus, read_examples

EXAMPLES = (
    "glassformer eval out/mine --data held-out.txt",
    "glassformer eval out/pair --data test.en --target test.de --json",
)
EPILOG = (
    "The model decides the metric: loss of a text, BLEU and chrF of translations, accuracy of "
    "labels, or entities."
)


def split_names(text: str) -> list[str]:
    """``bleu,chrf``."""
    return [name.strip() for name in text.split(",")]


def parse_lengths(text: str) -> list[int]:
    """``10,20,30``."""
    lengths = [int(word) if word.strip().isdecimal() else 0 for word in text.split(",")]
    rising = all(low < high for low, high in zip([0, *lengths], lengths, strict=False))
    need(rising, f'--lengths is "{text}"; give integers that rise, such as 10,20,30.')
    return lengths


# the options that each kind of figures reads, beside --data, --batch and --edit
READS = {
    "the loss of a text": "field separator context stride",
    "labels": "columns before cut",
    "labels of words": "columns before",
    "targets": "target columns before figures beams length_penalty max_new cut lower tokenised "
    "whole_words lengths out",
    "--tasks": "",
}

Names = Annotated[tuple[str, ...], split_names]
Lengths = Annotated[tuple[int, ...], parse_lengths]


class Figures(dict[str, Any]):
    """Figures of an evaluation by name. They print as a table."""

    def __str__(self) -> str:
        return "\n".join(figure_lines(self))


def evaluate(model: Any, tokenizer: Any, data: str, **settings: Any) -> Figures:
    """Measures a model by its shape.

    Args:
        model: Any model with a tokenizer.
        tokenizer: The tokenizer that came with it.
        data: A file, a folder or a named corpus. A model that writes targets or gives labels reads
            examples.
        settings: What ``glassformer eval`` takes, by the same names: ``target``, ``columns``,
            ``context``, ``stride``, ``batch``, ``beams``, ``figures``, ``edit`` and others.

    Returns:
        A text's loss, perplexity and bits per byte; BLEU and chrF of targets; accuracy of labels.

    Raises:
        UserError: The data cannot be read, or does not fit the model.

    Example:
        >>> print(glassformer.evaluate(model, tokenizer, "held-out.txt", stride=64))
    """
    return Figures(Evaluation(data=data, **settings).measure(model, tokenizer).value)


@dataclass
class Evaluation:
    """A data set and how a model is held against it."""

    _: KW_ONLY
    data: Annotated[str, file_or_input] | None = None
    batch: int | None = None
    edit: Edits = ()
    field: str = "text"
    separator: Separator | None = None
    context: int | None = None
    stride: int | None = None
    target: str | None = None
    columns: Columns | None = None
    before: str = ""
    figures: Names = ("bleu", "chrf")
    beams: int = 5
    length_penalty: float = 1.0
    max_new: int = 200
    cut: str = "no"
    lower: bool = False
    tokenised: bool = False
    whole_words: bool = False
    lengths: Lengths = ()
    out: Path | None = None

    def measure(
        self, model: Any, tokenizer: Any, objective: str | None = None, name: str = "This model"
    ) -> CommandOutput:
        """Returns the figures that follow from the model's shape; ``objective`` is that of the run
        it comes from, where that is known."""
        from ..tasks import predictions

        paired = self.target is not None or "source" in (self.columns or ())
        if model.config.has_source:
            return self.score_targets(model, tokenizer)
        if paired and model.config.is_decoder:
            need(
                objective in ("Seq2Seq", None),
                f"{name} was trained to continue text ({objective}) and generates no "
                "targets; train with "
                "--objective Seq2Seq, or leave --target and --columns out to measure its loss.",
            )
            return self.score_targets(model, tokenizer)
        if model.config.labels:
            return self.score_labels(model, tokenizer)
        if predictions.tags(model.config):
            return self.score_tags(model, tokenizer)
        need(
            not self.columns,
            "This model has neither labels nor targets, so --columns has no effect; leave it out.",
        )
        return self.score_text(model, tokenizer)

    def reads(self, kind: str) -> None:
        """Refuses an option that changes nothing in figures of this kind."""
        read = {"data", "batch", "edit", *READS[kind].split()}
        for field in fields(self):
            need(
                field.name in read or getattr(self, field.name) in (field.default, {}),
                f"--{field.name.replace('_', '-')} has no effect on {kind}; leave it out.",
            )

    def score_text(self, model: Any, tokenizer: Any) -> CommandOutput:
        """Returns the loss of a text."""
        from ..tasks import evaluation

        self.reads("the loss of a text")
        corpus = find_corpus(self.data, self.field, self.separator)  # type: ignore[arg-type]
        context = model.config.context if self.context is None else self.context
        stride = max(context // 2, 1) if self.stride is None else self.stride
        score = evaluation.score(
            model,
            tokenizer,
            corpus,
            progress=progress_counter(),
            context=context,
            stride=stride,
            batch=self.batch_size(8),
            edits=self.edit,
        )
        explanation = (
            f"Perplexity is exp(loss) of a token, one of this tokenizer's {tokenizer.size:,}, "
            f"after up to {context:,} "
            f"(--context) in windows that move on by {stride:,} (--stride). Across tokenizers "
            "compare bits per byte."
        )
        figures = {
            "loss": f"{score.loss:.4f} nats per token",
            "perplexity": f"{score.perplexity:.4f}",
            "bits per byte": f"{score.bits_per_byte:.4f}",
            "tokens": score.tokens,
            "bytes": score.bytes,
        }
        record = {**score.to_dict(), "context": context, "stride": stride}
        return CommandOutput(record, figure_lines(figures), [explanation])

    def score_targets(self, model: Any, tokenizer: Any) -> CommandOutput:
        """Returns the figures of the model's hypotheses against the targets."""
        from ..core import files
        from ..tasks import evaluation, translation
        from ..tasks.objectives import Seq2Seq

        self.reads("targets")
        examples = self.examples(Seq2Seq())
        note(
            f"{count_noun(len(examples), 'text')}, {self.beams} beams each, up to {self.max_new} "
            "tokens long."
        )
        hypotheses = translation.translate(
            model,
            tokenizer,
            [example.first for example in examples],
            batch=self.batch_size(),
            progress=progress_counter("texts"),
            beams=self.beams,
            length_penalty=self.length_penalty,
            max_new=self.max_new,
            cut=self.cut,  # type: ignore[arg-type]  # search checks it
            edits=self.edit,
        )
        join_words: Callable[[str], str] = evaluation.whole_words if self.whole_words else str
        written = [join_words(beams[0].text) for beams in hypotheses]
        references = [
            [join_words(text) for text in example.references or (example.second or "",)]
            for example in examples
        ]
        if self.out:
            lines = "".join(text.replace("\n", " ") + "\n" for text in written)
            print(lines, end="") if str(self.out) == "-" else files.write(self.out, lines)

        def text_metrics(indices: Sequence[int]) -> dict[str, Any]:
            texts, right = [written[n] for n in indices], [references[n] for n in indices]
            figures = evaluation.of_texts(
                texts, right, self.figures, lower=self.lower, tokenised=self.tokenised
            )
            return {"texts": len(indices), **figures}

        figures = text_metrics(range(len(written)))
        if self.lengths:
            sources = [join_words(example.first) for example in examples]
            groups = evaluation.by_length(sources, self.lengths)
            figures["by length"] = {
                name: text_metrics(indices) for name, indices in groups.items() if indices
            }
        return figures_output(figures)

    def score_labels(self, model: Any, tokenizer: Any) -> CommandOutput:
        """Returns the figures of the labels that the model gives, against the right ones."""
        from ..tasks import evaluation, predictions
        from ..tasks.objectives import Classify

        self.reads("labels")
        count = model.config.pool.labels
        names = None if count == 1 else predictions.label_names(model)
        examples = self.examples(Classify(regression=count == 1), names)
        texts = [
            example.first if example.second is None else (example.first, example.second)
            for example in examples
        ]
        need(
            self.cut in ("no", "end"),
            f'--cut is "{self.cut}"; for texts with labels only end is possible.',
        )
        outputs = predictions.classify(
            model,
            tokenizer,
            texts,
            truncate=self.cut == "end",
            batch=self.batch_size(),
            progress=progress_counter("texts"),
            edits=self.edit,
        ).probabilities
        right = [example.label or 0.0 for example in examples]
        if count == 1:
            figures = evaluation.of_numbers(outputs[:, 0].tolist(), right)
        else:
            figures = evaluation.of_labels(
                outputs.argmax(1).tolist(), [int(label) for label in right]
            )
        return figures_output({"texts": len(texts), **figures})

    def score_tags(self, model: Any, tokenizer: Any) -> CommandOutput:
        """Returns the figures of the labels that the model gives to words, against the right
        ones."""
        from ..tasks import evaluation, predictions
        from ..tasks.objectives import Tag

        self.reads("labels of words")
        names = predictions.label_names(model)
        examples = self.examples(Tag(), names)
        outputs = predictions.tag(
            model,
            tokenizer,
            [example.words for example in examples],
            batch=self.batch_size(),
            progress=progress_counter("sentences"),
            edits=self.edit,
        )
        chosen = [labels.best for labels in outputs]
        right = [[names[tag] for tag in example.tags] for example in examples]
        sizes = {"sentences": len(right), "words": sum(map(len, right))}
        return figures_output({**sizes, **evaluation.of_tags(chosen, right)})

    def examples(self, objective: Any, labels: Sequence[str] | None = None) -> Any:
        """Returns the examples that the options name."""
        return read_examples(
            self.data, self.target, objective, self.columns, labels=labels, before=self.before
        ).examples

    def batch_size(self, default: int = 32) -> int:
        return default if self.batch is None else self.batch


def run(
    options: ModelOptions,
    evaluation: Evaluation,
    *,
    tasks: Names | None = None,
    shots: Whole | None = None,
    limit: Count | None = None,
    task_files: Path | None = None,
    json: bool = False,
) -> None:
    """Measures a model by its shape.

    data FILE: a file, a folder or a named corpus; for translations and labels, examples
    json: the figures as JSON
    batch N: windows or texts at once (8, texts 32)

    the loss of a text; every token is counted once
    field NAME: the text field of JSONL
    separator TEXT: the separator between documents of a plain file (none)
    context N: tokens in a window (the model's context)
    stride N: distance between windows in tokens (half of the context)

    tasks of lm-evaluation-harness, instead of --data: multiple choice, zero-shot or few-shot
    tasks T,...: such as hellaswag,arc_easy,piqa
    shots N: examples before each question (the task's default)
    limit N: only the first N questions of each task
    task_files DIR: a folder with your own tasks as YAML

    translations and labels, with examples as --data
    target FILE: the reference targets, line by line
    columns P=C,...: the columns of a table: text=0,label=1
    before TEXT: a prefix of each source, such as "summarize: "
    figures F,...: bleu, chrf, rouge1, rouge2, rougeL, exact
    beams K: width of the beam search; 1: greedy (5)
    length_penalty A: 0 favours short texts, 2 long ones (1)
    max_new N: at most N tokens in a target
    cut SIDE: truncate long sources at the end or start (by default they are refused)
    lower: compare in lower case
    tokenised: split texts at white space, as older papers do
    whole_words: first join words from their @@ pieces
    lengths N,...: figures by source length, with these borders in words
    out FILE: save the model's output, line by line; - is standard output (figures then go to
        standard error)
    """
    out = evaluation.out
    need(
        (evaluation.data is None) != (tasks is None),
        "Give --data FILE, or --tasks NAME,... to answer tasks.",
    )
    if tasks is not None:
        from .harness import evaluate_tasks

        evaluation.reads("--tasks")
        need(
            task_files is None or task_files.is_dir(),
            f"--task-files {task_files} is not a folder; give one that holds YAML files.",
        )
        figures = evaluate_tasks(
            *options.load_with_tokenizer(),
            tasks,
            shots=shots,
            limit=limit,
            folder=task_files,
            batch=evaluation.batch_size(16),
            progress=progress_counter("answers"),
            edits=evaluation.edit,
        )
        output = figures_output(figures)
    else:
        need(
            shots is None and limit is None and task_files is None,
            "--shots, --limit and --task-files are for --tasks; leave them out.",
        )
        if out is not None:
            common.new_file(out, evaluation.data, evaluation.target)
        objective = options.run_objective()
        output = evaluation.measure(*options.load_with_tokenizer(), objective, options.model)
    # standard output has what the model wrote
    with contextlib.redirect_stdout(sys.stderr if str(out) == "-" else sys.stdout):
        output.show(json)


def figures_output(figures: dict[str, Any]) -> CommandOutput:
    return CommandOutput(figures, figure_lines(figures))


def figure_lines(figures: dict[str, Any]) -> list[str]:
    return text_table.lines(_figure_rows(figures), left_columns=(0, 1))


def _figure_rows(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A name and its figure, or all the figures of a task or a group."""
    for name, value in figures.items():
        if not isinstance(value, dict):
            yield name, format_number(value)
        elif any(isinstance(inner, dict) for inner in value.values()):
            yield from _figure_rows(value)
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
