"""``glassformer features``: the sparse features of a value: active at a text, what one is for, and what
they keep of the loss."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.errors import need, note
from .common import is_terminal, new_file, progress_counter
from .options import Edits, ModelOptions, Separator
from .parsing import CommandOutput
from .sources import find_corpus

EXAMPLES = (
    'glassformer features out/features "The cat sat"',
    "glassformer features out/features --data held-out.txt --limit 100000",
    "glassformer features out/features --data held-out.txt --feature 42",
    "glassformer features gemma-2-2b --dictionary params.npz --at decoder.blocks.12.resid --out out/scope",
)


def run(
    options: ModelOptions,
    text: str | None = None,
    *,
    data: str | None = None,
    feature: int | None = None,
    dictionary: str | None = None,
    at: str = "",
    out: Path | None = None,
    top: int = 5,
    limit: int | None = None,
    context: int | None = None,
    field: str = "text",
    separator: Separator | None = None,
    edit: Edits = (),
    seed: int = 0,
) -> CommandOutput:
    """Shows the features of a dictionary, trained by the objective Features or by SAELens.

    text TEXT: show the features that are active at each token
    data DATA: a file, a folder or a named corpus: how much of the loss the features recover
    feature N: with --data: the places where feature N is greatest, its logits, and the loss without it
    dictionary PATH: a folder of SAELens, or Gemma Scope's params.npz, for a MODEL without features
    at ADDRESS: the value that the dictionary reads, where its files do not say it; of a transcoder
        ADDRESS:TARGET
    out FOLDER: save MODEL with the dictionary, for every command that reads a model
    top N: features of a token, or places of a feature
    limit N: read only the first N tokens
    context N: at most N tokens of each row (the model's context)
    json: every number as JSON
    """
    from ..formats import dictionaries, store
    from ..sight import fidelity as inspection
    from ..sight import look, text_table

    need(
        (text is not None) + (data is not None) + (out is not None) == 1,
        "Give one of a TEXT, --data FILE and --out FOLDER.",
    )
    need(
        data is not None or (feature, limit, context, separator) == (None,) * 4,
        "--feature, --limit, --context and --separator are of texts; add --data FILE.",
    )
    need(top > 0, f"--top is {top}; give 1 or more.")
    need(text is not None or not edit, "--edit changes the pass over a TEXT; give one.")
    need(dictionary is not None or not (at or out), "--at and --out need --dictionary.")
    folder = out and new_file(out, options.model)
    model, tokenizer = options.load_with_tokenizer()
    if dictionary is not None:
        address, _, target = at.partition(":")
        dictionaries.attach(model, dictionaries.load_dictionary(dictionary, address, target))
    inspection.dictionary_of(model)
    if folder:
        source = Path(options.model).expanduser()
        base = str(source.resolve()) if source.exists() else options.model
        store.save(model, folder, tokenizer, base=base)
        note(f"{folder} is {options.model} with the features of {dictionary}.")
        return CommandOutput({"out": str(folder), "base": base}, [])
    if text is not None:
        values = look(model, tokenizer, text, "features.active", edits=edit)
        records, rows = [], []
        for word, active in zip(values.words, values["features.active"][0], strict=True):
            count = int((active > 0).sum())
            best = active.topk(min(top, count))
            pairs = [*zip(best.indices.tolist(), best.values.tolist(), strict=True)]
            records.append({"token": word, "active": count, "features": pairs})
            rows.append((word, str(count), "  ".join(f"{n} {value:.3f}" for n, value in pairs)))
        heading = ("token", "active", "the strongest features, with their values")
        return CommandOutput(records, text_table.lines(rows, heading, left_columns=(0, 2)))
    assert data is not None
    corpus = find_corpus(data, field, separator)
    reading: dict[str, Any] = {"limit": limit, "context": context, "seed": seed}
    if feature is None:
        texts = corpus.texts()
        result = inspection.fidelity(model, tokenizer, texts, **reading, progress=is_terminal())
        return CommandOutput(result.to_dict, result.lines())
    report = progress_counter()
    reading["progress"] = is_terminal() or (lambda count, _: report(count))
    card = inspection.feature(model, tokenizer, feature, [*corpus.texts()], top=top, **reading)
    return CommandOutput(asdict(card), card.lines())
