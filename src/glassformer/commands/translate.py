"""``glassformer translate``: from a source text to a target text by beam search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.errors import UserError, need, note
from ..sight.labels import pieces
from .common import progress_counter
from .options import Edits, ModelOptions, Texts
from .parsing import CommandOutput, Count
from .sources import Prompts

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

EXAMPLES = (
    'glassformer translate tiny-translator "The black cat does not sleep."',
    "glassformer translate tiny-translator --prompts source.txt --beams 8 --json",
)


def run(
    options: ModelOptions,
    text: Texts = (),
    *,
    prompts: Prompts = (),
    batch: Count = 32,
    beams: int = 5,
    best: int = 1,
    length_penalty: float = 1.0,
    start: str | None = None,
    max_new: int = 200,
    cut: str = "no",
    edit: Edits = (),
) -> Iterator[CommandOutput]:
    """Translates each text by beam search.

    text TEXT: one text or several; - is standard input, one text
    beams K: width of the beam search; 1: greedy (5)
    best N: show the N best translations of each text
    length_penalty A: 0 favours short texts, 2 long ones
    start TOKENS: first tokens of the target, as ids or pieces: "</s> de_DE"
    max_new N: at most N new tokens
    cut SIDE: truncate long sources at the end or start (by default they are refused)
    json: tokens, log-probabilities and scores as JSON, a text a line
    """
    from ..core import generation
    from ..tasks import translation

    sources = [*text, *prompts]
    need(all(source.strip() for source in sources), "A text is empty; give one on each line.")
    need(bool(sources), "There is no text; give at least one.")
    generation.check_beams(beams, best, length_penalty, max_new)
    model, tokenizer = options.load_with_tokenizer()
    need(
        not model.config.is_encoder,
        f"{options.model} is an encoder and writes no text; use `glassformer fill`, `embed` "
        "or `classify`.",
    )
    objective = options.run_objective()
    if model.config.is_decoder and objective not in ("Seq2Seq", None):
        raise UserError(
            f"{options.model} was trained with the objective {objective}, not on pairs of texts; "
            "use `glassformer "
            "generate`, or train it with the objective Seq2Seq."
        )
    count = len(sources)
    outputs = translation.translate(
        model,
        tokenizer,
        sources,
        batch=batch,
        progress=progress_counter(f"of {count:,} texts") if count > batch else None,
        beams=beams,
        best=best,
        length_penalty=length_penalty,
        max_new=max_new,
        cut=cut,  # type: ignore[arg-type]  # search checks it
        edits=edit,
        start=None if start is None else parse_tokens(start, tokenizer),
    )
    for source, hypotheses in zip(sources, outputs, strict=True):
        records = [
            {**hypothesis.to_dict(), "pieces": pieces(tokenizer, hypothesis.tokens)}
            for hypothesis in hypotheses
        ]
        lines = [hypotheses[0].text]
        if best > 1:
            scored = (f"  {entry.score:8.4f}  {entry.text}" for entry in hypotheses)
            lines = [source, *scored]
        yield CommandOutput({"source": source, "best": records}, lines)
    unended = sum(hypotheses[0].finish == "length" for hypotheses in outputs)
    if unended:
        note(f"{unended} of {count} did not end within --max-new {max_new} tokens.")


def parse_tokens(words: str, tokenizer: Tokenizer) -> list[int]:
    """The ids that words name: numbers are ids, all else pieces of the vocabulary; UserError for
    what is neither."""
    ids = []
    for word in words.split():
        id = int(word) if word.isdecimal() else tokenizer.id(word)
        if id is None:
            raise UserError(
                f'--start: there is no token "{word}"; give an id, or a piece of the vocabulary.'
            )
        ids.append(id)
    return ids
