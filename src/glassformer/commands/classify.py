"""``glassformer classify``: the label of each text, or of each word, and how sure the model is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.errors import need
from .common import CommandOutput, progress_counter
from .options import Edits, ModelOptions, Prompts, Texts
from .signature import Count, Words

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

    text TEXT: one or several; - is standard input, one text
    second TEXT: the other text, where the model reads two
    json: every label's probability as JSON, a text a line
    """
    from ..tasks import predictions

    texts: Sequence[str] = [*text, *prompts]
    need(
        not second or len(second) == len(texts),
        f"There are {len(texts)} texts and {len(second)} second ones; give as many.",
    )
    model, tokenizer = options.load_with_tokenizer()
    progress = progress_counter("texts")
    if predictions.tags(model.config):
        need(
            not second,
            "This model gives each word its label and reads one text; leave --second out.",
        )
        sentences = [sentence.split() for sentence in texts]
        names = options.labels(model.config.token_head.labels)
        tagged = predictions.tag(
            model, tokenizer, sentences, batch=batch, progress=progress, edits=edit
        )
        for words, rows in zip(sentences, tagged, strict=True):
            labels = [names[best] for best in rows.argmax(1).tolist()]
            lines = [f"{word}\t{label}" for word, label in zip(words, labels, strict=True)]
            record = {"tokens": words, "labels": labels, "probabilities": rows.amax(1).tolist()}
            yield CommandOutput(record, [*lines, ""])
        return
    probabilities = predictions.classify(
        model,
        tokenizer,
        list(zip(texts, second, strict=True)) if second else texts,
        truncate=truncate,
        batch=batch,
        progress=progress,
        edits=edit,
    )
    names = options.labels(probabilities.shape[1])
    for sentence, row in zip(texts, probabilities.tolist(), strict=True):
        if len(row) == 1:
            yield CommandOutput(
                {"text": sentence, "value": row[0]}, [f"{row[0]:10.4f}  {sentence}"]
            )
            continue
        by_name = dict(zip(names, row, strict=True))
        best = max(by_name, key=by_name.__getitem__)
        yield CommandOutput(
            {"text": sentence, **by_name}, [f"{best:12} {by_name[best]:.4f}  {sentence}"]
        )
