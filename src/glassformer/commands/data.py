"""``glassformer data``: a corpus: what it holds and where it lies."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

from ..core.errors import UserError, need
from .common import count_noun, text_table
from .options import Columns, Separator
from .parsing import CommandOutput
from .sources import file_or_input, find_corpus

EXAMPLES = (
    "glassformer data",
    "glassformer data python-docs",
    "glassformer data chats.jsonl --with Qwen/Qwen3-0.6B --show 3",
)


SIDES = ("chosen", "rejected")


def example_sets() -> list[dict[str, Any]]:
    """The sets of published files that are known by name, and what run files want that a person has
    to bring."""
    from ..core import files
    from ..formats.data import catalog
    from ..runs import run_file

    sets: list[dict[str, Any]] = []
    for example_set in catalog.example_sets():
        names = [file.place.partition("/")[2] for file in example_set.files]
        sets.append(
            {
                "name": example_set.name,
                "files": names,
                "origin": example_set.origin,
                "licence": example_set.licence,
            }
        )
    seen_names = {*catalog.example_files(), *(corpus.name for corpus in catalog.corpora())}
    missing: dict[str, list[str]] = {}
    for path in run_file.run_files().values():
        table = files.read_toml(path).get("data", {})
        for value in (table.get("train"), table.get("valid")):
            places = (
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, list)
                else [value]
            )
            for place in (
                place for place in places if isinstance(place, str) and place not in seen_names
            ):
                folder, _, file = place.partition("/")
                seen_names.add(place)
                if folder != "out":  # what another run file made
                    missing.setdefault(folder, []).append(file)
    yours = {
        "origin": "bring it: GLASSFORMER_DATA names the folder it lies in",
        "licence": "its own",
    }
    return sets + [{"name": name, "files": files, **yours} for name, files in missing.items()]


def run(
    name: Annotated[str, file_or_input] | None = None,
    *,
    field: str = "text",
    separator: Separator | None = None,
    with_: str | None = None,
    show: int = 0,
    template: str = "",
    columns: Columns | None = None,
    reward: str | None = None,
    group: int = 4,
    max_new: int = 64,
) -> CommandOutput:
    """Describes a corpus, or lists those that are known by name; of conversations, shows which
    tokens a model learns from.

    name NAME: a named corpus, a file, a folder, or - for standard input; none lists the names
    with_ MODEL: a model or tokenizer that reads the conversations of the file
    show N: print each token of the first N conversations behind its weight
    template FILE: a chat template in place of the tokenizer's, or chatml
    columns P=C,...: the names of fields: messages=dialogue
    reward NAME: answers that the model draws of the first N prompts, as Rewarded learns from them
    group N: answers of a prompt
    max_new N: tokens of an answer at most
    """
    from ..formats.data import catalog

    if reward is not None:
        need(None not in (name, with_), "Name a file of prompts, and a model: --with MODEL.")
        settings = {"reward": reward, "group": group, "max_new": max_new, "template": template}
        return rollouts(str(name), str(with_), show or 1, settings, columns or {})

    if with_ is not None:
        need(name is not None, "Name a file of conversations.")
        return conversations(str(name), with_, show, template, columns or {})
    need(not show and not template, "--show and --template need a tokenizer: --with MODEL.")

    if name is None:
        corpora, sets = catalog.corpora(), example_sets()
        records = [
            {"name": c.name, "what": c.description, "origin": c.origin, "licence": c.licence}
            for c in corpora
        ]
        rows = [(c.name, f"{c.description} ({c.licence}, {c.origin})") for c in corpora]
        rows += [
            (f"{s['name']}/", f"{', '.join(s['files'])} ({s['licence']}, {s['origin']})")
            for s in sets
        ]
        return CommandOutput([*records, *sets], text_table.lines(rows, left_columns=(0, 1)))
    summary = find_corpus(name, field, separator).summary()
    record = {key: str(v) if isinstance(v, Path) else v for key, v in vars(summary).items()}
    pieces = f"{count_noun(summary.documents, 'document')}, {count_noun(summary.files, 'file')}"
    rows = [
        ("corpus", summary.name),
        ("holds", f"{summary.bytes:,} bytes of text in {pieces}"),
        ("lies at", str(summary.path)),
        ("from", summary.origin),
        ("licence", summary.licence),
    ]
    return CommandOutput(record, text_table.lines(rows, left_columns=(0, 1)))


def conversations(
    name: str, model: str, show: int, template: str, columns: dict[str, str]
) -> CommandOutput:
    """The conversations of a file as a model learns from them: how many tokens count, and which."""
    from ..formats import pretrained, resolve
    from ..sight.labels import display_texts
    from ..tasks import answer_weights
    from ..tasks.examples import read_examples
    from ..tasks.objectives import Chat, Preference
    from ..tasks.records import first_record

    pairs = "chosen" in first_record(name) or "chosen" in columns
    objective = (Preference if pairs else Chat)(template=template)
    table = read_examples(name, objective, columns=columns)
    is_name = model in pretrained.KNOWN and not Path(model).is_dir()
    folder = model if is_name else resolve.resolve(model)
    need(not resolve.is_recipe(model), f"{model} is a shape without a tokenizer; name a model.")
    tokenizer = pretrained.find(folder)  # type: ignore[arg-type]
    objective.prepare_tokenizer(tokenizer)
    compiled = answer_weights.template_of(tokenizer, objective.date)
    records = list[dict[str, Any]]()
    lines = list[str]()
    texts = 0
    tokens, counted = list[int](), 0
    for number, example in enumerate(table):
        for side, documents in enumerate(answer_weights.weighted(compiled, table.name, example)):
            texts += len(documents)
            for document in documents:
                tokens.append(len(document.ids))
                counted += int(document.weights.sum())
                if number >= show:
                    continue
                pieces = display_texts(tokenizer, document.ids.tolist())
                table_columns = document.weights.tolist(), document.ids.tolist(), pieces
                rows = list(zip(*table_columns, strict=True))
                title = f"line {example.line}" + (f", {SIDES[side]}" if pairs else "")
                cells = [(str(weight), str(id), piece) for weight, id, piece in rows]
                lines += ["", title, *text_table.lines(cells, left_columns=(2,))]
                records.append({"line": example.line, "tokens": rows})
    totals = {
        "conversations": len(table),
        "texts": texts,
        "tokens": sum(tokens),
        "counted": counted,
        "longest": max(tokens),
    }
    summary = [(key, f"{value:,}") for key, value in totals.items()]
    return CommandOutput({**totals, "shown": records}, [*text_table.lines(summary), *lines])


def rollouts(
    name: str, model: str, show: int, settings: dict[str, Any], columns: dict[str, str]
) -> CommandOutput:
    """Answers that a model draws of the first prompts, token by token as training sees them."""
    import torch

    from ..core.training.loop import seed
    from ..formats.store import load
    from ..sight.labels import display_texts
    from ..tasks.encoded import Fit
    from ..tasks.examples import read_examples
    from ..tasks.objectives import Rewarded

    loaded, tokenizer = load(model)
    if tokenizer is None:
        raise UserError(f"{model} has no tokenizer; name a model with one.")
    objective, context = Rewarded(**settings), loaded.config.context
    objective.prepare_tokenizer(tokenizer)
    table = read_examples(name, objective, columns=columns)
    fix = "lower --max-new, or shorten the prompt."
    objective.encode(table, tokenizer, Fit(table.name, context, "no", fix))
    seed(0)
    prompts = [*objective.prompts.values()][:show]
    sampler, rollout = objective.rollout(loaded, prompts, context, True)
    with torch.no_grad():
        logs, _ = sampler.score(loaded, rollout.texts, rollout.since, sampler.exact)
    ratio = (logs - rollout.drawn).exp()
    advantage = rollout.advantages[rollout.answer]
    clipped = objective.is_clipped(ratio, advantage)
    facts = (x.tolist() for x in (rollout.drawn, logs, ratio, advantage, clipped))
    tokens_of = zip(*facts, strict=True)
    records = list[dict[str, Any]]()
    lines = list[str]()
    headings = ("drawn", "training", "ratio", "advantage", "clipped", "token")
    for number, text in enumerate(rollout.texts):
        at, answer = divmod(number, objective.group)
        ids = text[rollout.since[number] :]
        value = float(rollout.rewards[number])
        tokens = [*itertools.islice(tokens_of, len(ids))]
        cells = [
            (*(f"{x:.6g}" for x in row[:4]), "yes" if row[4] else "no", piece)
            for row, piece in zip(tokens, display_texts(tokenizer, ids), strict=True)
        ]
        place = prompts[at].location
        lines += ["", f"{place}, answer {answer + 1}: reward {value:g}"]
        lines += text_table.lines([headings, *cells], left_columns=(5,))
        records.append({"place": place, "reward": value, "tokens": tokens, "ids": ids})
    return CommandOutput(records, lines[1:])
