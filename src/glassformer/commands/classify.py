"""``glassformer classify``: the label of each text, or of each word, and how sure the model is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..core.errors import need
from .common import progress_counter
from .options import Edits, ModelOptions, Texts
from .parsing import CommandOutput, Count, Words
from .sources import Prompts

EXAMPLES = (
    'glassformer classify out/labels "a film to see twice"',
    'glassformer classify out/names "Ann saw Rome ." # a word and its label a line',
)


def run(
    options: ModelOptions,
    text: Texts = (),
    *,
    prompts: Prompts = (),
    second: Words = (),
    batch: Count = 32,
    truncate: bool = False,
    edit: Edits = (),
) -> Iterator[CommandOutput]:
    """Labels each text, or each word where the model is a tagger.

    text TEXT: one text or several; - is standard input, one text
    second TEXT: the second text, for models that read pairs
    json: every label's probability as JSON, a text a line
    """
    from ..tasks import predictions

    texts: Sequence[str] = [*text, *prompts]
    need(
        not second or len(second) == len(texts),
        f"There are {len(texts)} texts and {len(second)} second texts; give one for each text.",
    )
    model, tokenizer = options.load_with_tokenizer()
    progress = progress_counter("texts")
    if predictions.tags(model.config):
        need(
            not second,
            "This model labels words and reads one text at a time; leave --second out.",
        )
        sentences = [sentence.split() for sentence in texts]
        for labels in predictions.tag(
            model, tokenizer, sentences, batch=batch, progress=progress, edits=edit
        ):
            words, best = labels.texts, labels.best
            lines = [f"{word}\t{label}" for word, label in zip(words, best, strict=True)]
            sure = labels.probabilities.amax(1).tolist()
            record = {"tokens": words, "labels": best, "probabilities": sure}
            yield CommandOutput(record, [*lines, ""])
        return
    labels = predictions.classify(
        model,
        tokenizer,
        list(zip(texts, second, strict=True)) if second else texts,
        truncate=truncate,
        batch=batch,
        progress=progress,
        edits=edit,
    )
    names = ("value",) if len(labels.names) == 1 else labels.names
    lines = replace(labels, texts=texts).lines()
    for sentence, row, line in zip(texts, labels.probabilities.tolist(), lines, strict=True):
        yield CommandOutput({"text": sentence, **dict(zip(names, row, strict=True))}, [line])
