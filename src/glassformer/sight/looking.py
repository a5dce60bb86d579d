"""Looking inside: any named value of a forward pass, and what it is like in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from ..core.errors import UserError, need
from ..core.files import JsonObject
from ..core.nn import Model, Tape
from ..core.nn.finite import must_be_finite
from ..core.nn.model import inference
from . import passes, text_table
from .inputs import Text, inputs, token_ids
from .labels import display_texts, token_record
from .reading import Edits, Reading, as_edit_list, one_token
from .recording.module_trace import ModuleTrace
from .seen import Seen

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

STATISTICS = ("mean", "std", "min", "max")


def look(
    model: nn.Module,
    tokenizer: Any,
    text: Text,
    *patterns: str,
    source: Text | None = None,
    edits: Edits = (),
) -> Seen:
    """Reads named values inside a model while it reads a text.

    Args:
        model: A model of ours or of transformers, or any module that takes ids.
        tokenizer: The tokenizer that came with it; None where the text is ids.
        text: A text, or token ids (length) or (batch, length). A text gets the tokens that generation
            would put around it.
        patterns: Names of values with ``*`` and ``?``, such as ``"*.attn.pattern"``; none means
            every value.
        source: What an encoder-decoder's encoder reads.
        edits: Changes to the run; what is seen is the changed run's.

    Returns:
        The values by name, detached, in the order in which the model computes them.

    Raises:
        UserError: A pattern matches nothing, or the model cannot read the text.

    Example:
        >>> for name, value in glassformer.look(model, tokenizer, "Once", "*.resid").items():
        ...     print(name, tuple(value.shape))
    """
    if not isinstance(model, Model):
        return _foreign(passes.record_foreign(model, tokenizer, text, source, edits), patterns)
    tokens, source_ids, changes = inputs(model, tokenizer, text, source, edits)
    sides = [display_texts(tokenizer, tokens[0].tolist())]
    if source_ids is not None:
        sides.append(display_texts(tokenizer and tokenizer.for_source, source_ids[0].tolist()))
    tape = Tape(*(patterns or ("*",)), edits=changes)
    with inference(model):
        output = model(tokens, *([] if source_ids is None else [source_ids]), tape=tape)
        must_be_finite(model, output.logits, output.hidden)
    if not all(any(fnmatchcase(path, pattern) for path in tape.records) for pattern in patterns):
        must_match(patterns, paths(model))
    return Seen(tape.records, *sides)


def _foreign(trace: ModuleTrace, patterns: Sequence[str]) -> Seen:
    """Recorded values of a model that is not ours; softmax weights of attentions are called
    ``pattern`` too."""
    attentions = {f"{x.path}.pattern": x for x in trace.structure.attentions}
    names = trace.addresses()
    if patterns:
        every = [*dict.fromkeys((*names, *trace.aliases, *attentions))]
        names = [name for pattern in patterns for name in matching(pattern, every, "value")]
    values = {x: attentions[x].weights() if x in attentions else trace[x] for x in names}
    return Seen(values, trace.words, trace.source_words)


def must_match(patterns: Sequence[str], names: Sequence[str]) -> None:
    """UserError for a pattern that none of a model's paths matches."""
    for pattern in patterns:
        matching(pattern, names, "value")


def matching(pattern: str, names: Sequence[str], kind: str) -> list[str]:
    """Members of ``names`` that a pattern matches; UserError, with the nearest and all there are,
    where there are none."""
    matches = [name for name in names if fnmatchcase(name, pattern)]
    if not matches:
        leaf_patterns = {f"*.{path.rpartition('.')[2]}" for path in names}
        near = get_close_matches(pattern, [*names, *leaf_patterns], n=1, cutoff=0.5)
        meant = f' Did you mean "{near[0]}"?' if near else ""
        raise UserError(
            f'No {kind} is called "{pattern}".{meant} There are: {", ".join(listing(names))}.'
        )
    return matches


def predictions(
    model: nn.Module,
    tokenizer: Any,
    text: Text,
    count: int,
    source: Text | None = None,
    edits: Edits = (),
) -> list[JsonObject]:
    """For each token that a decoder reads its id, piece and log-probability (None for the first),
    and what is next.

    ``next`` holds the ``count`` likeliest tokens after it, each with its id, piece and
    log-probability; ``edits`` change the run, and the tokens told are those that it reads. Raises
    UserError for an encoder, which reads everything at once.
    """
    need(count > 0, f"The number of tokens to show is {count}; give 1 or more.")
    if not isinstance(model, Model):
        run = passes.record_foreign(model, tokenizer, text, source, edits)
        return _steps(
            run.answer[0], run.tokens[0].tolist(), cast("Tokenizer", run.tokenizer), count
        )
    need(
        model.config.main_body == "decoder",
        "An encoder does not predict the next token; `glassformer fill` shows its tokens for a "
        "blank.",
    )
    need(
        model.config.head is not None,
        "This model has no head over tokens, so it predicts none; give another model.",
    )
    logits = look(model, tokenizer, text, "logits", source=source, edits=edits)["logits"][0]
    ids = read_tokens(model, tokenizer, text, source, edits)["ids"]
    return _steps(logits, ids, tokenizer, count)


def _steps(
    logits: Tensor, ids: Sequence[int], tokenizer: Tokenizer, count: int
) -> list[JsonObject]:
    logprobs = logits.float().log_softmax(-1)
    likely = logprobs[:, : tokenizer.size].topk(min(count, tokenizer.size))

    def named(token: int, logprob: float | None) -> JsonObject:
        return {"token": token, "piece": tokenizer.token(token), "logprob": logprob}

    steps = []
    for at, pairs in enumerate(zip(likely.indices.tolist(), likely.values.tolist(), strict=True)):
        logprob = logprobs[at - 1, ids[at]].item() if at else None
        steps.append({**named(ids[at], logprob), "next": list(map(named, *pairs))})
    return steps


def read_tokens(
    model: Model,
    tokenizer: Tokenizer,
    text: Text,
    source: Text | None = None,
    edits: Edits = (),
) -> JsonObject:
    """The ids that the model reads, with the piece that each stands for; of a source too."""
    rows = token_ids(model, tokenizer, text, second=source is not None).tolist()
    sources = None if source is None else token_ids(model, tokenizer, source).tolist()
    reading = Reading(model, rows, sources, tokenizer)
    for edit in as_edit_list(edits):
        edit.read(reading)
    record = token_record(tokenizer, rows[0])
    if sources is not None:
        record["source"] = token_record(tokenizer.for_source, sources[0])
    return record


def paths(model: Model) -> list[str]:
    """The path of every value that can be looked at, in the order in which the model makes them."""
    return list(one_token(model))


def listing(names: Sequence[str]) -> list[str]:
    """Paths in short, one entry per place: ``decoder.blocks.*.ffn.{in,pre,hidden,write}``."""
    leaves: dict[str, dict[str, None]] = {}
    for path in names:
        above, _, leaf = re.sub(r"\.\d+\.", ".*.", path).rpartition(".")
        leaves.setdefault(above, {})[leaf] = None
    lines = []
    for above, group in leaves.items():
        line = ",".join(group)
        line = line if len(group) == 1 else f"{{{line}}}"
        lines.append(f"{above}.{line}" if above else line)
    return lines


def summarise(values: Mapping[str, Tensor], first: int = 4) -> list[JsonObject]:
    """One entry per value, as JSON holds it: path, shape, dtype, mean, std, min, max, and its first
    numbers.

    The four are of the finite numbers (None without any); ``infinite`` counts the others, such as
    masked scores.
    """
    return [{"path": path, **_numbers(value, first)} for path, value in values.items()]


def describe(values: Mapping[str, Tensor], first: int = 4) -> list[str]:
    """``summarise`` as a table to print, its heading first."""
    rows = []
    for entry in summarise(values, first):
        shape = "x".join(map(str, entry["shape"])) or "-"
        numbers = (_short(entry[name]) for name in STATISTICS)
        rows.append((entry["path"], shape, *numbers, " ".join(map(_short, entry["first"]))))
    heading = ("path", "shape", *STATISTICS, "first values")
    return text_table.lines(rows, heading, left_columns=(0, len(heading) - 1))


def to_dict(values: Mapping[str, Tensor]) -> JsonObject:
    """Every number, as JSON holds it: None for one that is not finite, such as a masked score."""
    return {
        path: {"shape": list(value.shape), "dtype": _name(value), "values": _plain(value.tolist())}
        for path, value in values.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _name(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _numbers(value: Tensor, first: int) -> JsonObject:
    flat = value.detach().double().flatten().cpu()
    finite = flat[flat.isfinite()]
    stats: dict[str, float | None] = dict.fromkeys(STATISTICS)
    if len(finite):
        numbers = (finite.mean(), finite.std(correction=0), finite.min(), finite.max())
        stats = dict(zip(STATISTICS, map(float, numbers), strict=True))
    return {
        "shape": list(value.shape),
        "dtype": _name(value),
        **stats,
        "infinite": len(flat) - len(finite),
        "first": _plain(flat[:first].tolist()),
    }


def _short(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}"
