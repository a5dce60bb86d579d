"""``glassformer lens``: what each depth of a model would say; a tuned lens fitted, and looked
through."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..core.errors import UserError, need, note
from .common import count_noun, is_terminal, new_file
from .options import Columns, Edits, ModelOptions, Separator, Texts, edits_suffix
from .parsing import CommandOutput, Words
from .sources import find_corpus, read_examples

EXAMPLES = (
    'glassformer lens tiny "O Romeo, Romeo! wherefore art" --track " thou"',
    "glassformer lens out/mine --fit data.txt --out tuned.safetensors",
    'glassformer lens out/mine "The cat sat on the" --tuned tuned.safetensors',
)


def run(
    options: ModelOptions,
    text: Texts = (),
    *,
    source: str | None = None,
    positions: str | None = None,
    track: Words = (),
    top: int = 5,
    tuned: Path | None = None,
    edit: Edits = (),
    fit: str | None = None,
    target: str | None = None,
    columns: Columns | None = None,
    out: Path | None = None,
    field: str = "text",
    separator: Separator | None = None,
    steps: int = 200,
    tokens: int = 1024,
    context: int | None = None,
    rate: float = 3e-3,
) -> CommandOutput:
    """Decodes the residual stream at each depth of a model.

    text TEXT: the text that the model reads; - is standard input
    positions N,...: positions in the text: 0,3-5, all, -3--1 (the last 16)
    track WORD: follow this token; may be repeated
    top N: the N likeliest tokens
    tuned FILE: use a tuned lens, saved by --fit
    json: every number as JSON

    a tuned lens: a translator for each depth, fitted to the model's own prediction
    fit DATA: fit a tuned lens on a file, a folder or a named corpus
    target FILE: for an encoder-decoder: the targets, line by line (DATA has the sources)
    columns P=C,...: for an encoder-decoder: the columns of a table: source=0,target=1
    out FILE.safetensors: save the tuned lens to this file
    field NAME: the text field of JSONL
    separator TEXT: the separator between documents of a plain file
    steps N: steps of Adam
    tokens N: tokens a step
    context N: at most N tokens of each text (the model's context)
    rate R: learning rate, falling to 0
    """
    if fit is None:
        need(out is None, "--out needs --fit DATA; without it the lens is printed.")
        need(target is None and columns is None, "--target and --columns need --fit DATA.")
        need(len(text) == 1, f"There are {count_noun(len(text), 'text')}; give one.")
        from ..sight import TunedLens, logit_lens

        tuned_lens = None if tuned is None else TunedLens.load(tuned)
        lens = logit_lens(
            *options.load_with_tokenizer(),
            text[0],
            source=source,
            edits=edit,
            positions=positions,
            track=track,
            top=top,
            tuned=tuned_lens,
        )
        title = f"{lens.lens}{edits_suffix(edit)}: the likeliest token and its probability"
        place = f"\nat {lens.positions[-1]}:{lens.pieces[-1].display}"
        return CommandOutput(lens.to_dict, [title, lens.text(), place, *lens.table()], lens.notes)

    if out is None:
        raise UserError("--fit writes a file; name it: --out FILE.safetensors.")
    need(
        not text and tuned is None,
        "--fit takes only DATA; read a text afterwards, with --tuned.",
    )
    from ..sight import fit_tuned_lens, streams
    from ..sight.figures.charts import TableFigure
    from ..tasks.objectives import Seq2Seq

    path = new_file(out, fit)
    model, tokenizer = options.load_with_tokenizer()
    rows: Iterable[tuple[Any, Any]]
    if model.config.has_source:
        need(
            context is None,
            "--context is for models that read one text; leave it out for an encoder-decoder.",
        )
        table = read_examples(fit, target, Seq2Seq(), columns)
        texts = [(example.first, example.second or "") for example in table.examples]
        data, rows = table.name, streams.pairs(model, tokenizer, texts)
    else:
        need(
            target is None,
            "--target is for an encoder-decoder; this model reads one text.",
        )
        corpus = find_corpus(fit, field, separator)
        windows = streams.windows(model, tokenizer, corpus.texts(), context)
        data, rows = corpus.name, ((row, None) for row in windows)

    def report(step: int, kl: float) -> None:
        if step % max(1, steps // 10) == 0:
            note(f"step {step:,} of {steps:,}, KL {kl:.4f}")

    fitted = fit_tuned_lens(
        model,
        rows,
        data=data,
        steps=steps,
        tokens=tokens,
        rate=rate,
        progress=is_terminal() or report,
    )
    fitted.save(path)
    losses = TableFigure("", ("depth", "KL before", "KL after"), fitted.records()[1])
    note("KL(own || depth) in nats, the mean of the tokens of texts held out.")
    note(f"{path} holds the tuned lens, {fitted.origin()}")
    return CommandOutput(fitted.to_dict, losses.lines())
