"""Source texts to target texts, many at a time, by beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, get_args

from ..core import config
from ..core.config.run import Cut
from ..core.errors import need
from ..core.generation.beam import Hypothesis, beam
from ..core.generation.prompt import Start
from ..core.nn import Model
from ..core.nn.hooks import ModelEdit
from ..core.tokenizer.framing import question, source

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer


def _source(cfg: config.Model, tokenizer: Tokenizer, ids: list[int], cut: Cut) -> list[int]:
    """A source's ids with what closes it, cut to the context where that is allowed."""
    close = question if cfg.is_decoder else source
    room = cfg.context - (len(close(tokenizer, ids)) - len(ids))
    if cut != "no" and len(ids) > room > 0:
        ids = ids[:room] if cut == "end" else ids[-room:]
    return close(tokenizer, ids)


def source_ids(
    cfg: config.Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    cut: Cut = "no",
    source_tokenizer: Tokenizer | None = None,
) -> list[list[int]]:
    """Source texts as the model reads them in ``search``."""
    pair = cfg.has_source
    reads = (source_tokenizer or tokenizer.for_source) if pair else tokenizer
    return [_source(cfg, reads, ids, cut) for ids in reads.encode_batch(texts)]


def translate(
    model: Model,
    tokenizer: Tokenizer,
    texts: str | Sequence[str],
    *,
    batch: int = 32,
    progress: Callable[[int], None] | None = None,
    beams: int = 4,
    best: int = 1,
    length_penalty: float = 1.0,
    max_new: int = 256,
    cut: Cut = "no",
    start: Start = None,
    source_tokenizer: Tokenizer | None = None,
    edits: Sequence[ModelEdit | str] = (),
) -> list[list[Hypothesis]]:
    """Writes the target of each source text by beam search, ``batch`` texts at once.

    Args:
        model: An encoder-decoder, or a decoder trained with the objective Seq2Seq. The decoder reads
            a source closed by the separator or its start token, as it was trained.
        tokenizer: The tokenizer that came with it.
        texts: One source text or several.
        batch: Texts searched at once.
        progress: Called with the number of texts done.
        beams: Continuations followed at once; 1 is greedy.
        best: Hypotheses returned for each text.
        length_penalty: 0 favours short targets, 2 long ones.
        max_new: The most tokens of a target.
        cut: What a source that is too long loses: its "end", its "start", or "no" to refuse it.
        start: Ids that a target begins with.
        source_tokenizer: The tokenizer of the source, where it is not the tokenizer's own.
        edits: Changes to what the model computes (``glassformer.sight.edits``).

    Returns:
        For each text its best hypotheses, in the order of the texts.

    Raises:
        UserError: A text is empty or too long, or the model writes no targets.

    Example:
        >>> ((best,),) = glassformer.translate(model, tokenizer, "two dogs run on the beach .")
        >>> print(best.text, best.score)
    """
    texts = [texts] if isinstance(texts, str) else texts
    need(batch >= 1, f"batch is {batch}; give 1 or more.")
    need(cut in get_args(Cut), f'cut is "{cut}"; give one of {", ".join(get_args(Cut))}.')
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    results: list[list[Hypothesis]] = [[] for _ in texts]
    for first in range(0, len(order), batch):
        places = order[first : first + batch]
        hypotheses = beam(
            model,
            tokenizer,
            source_ids(
                model.config, tokenizer, [texts[place] for place in places], cut, source_tokenizer
            ),
            beams=beams,
            best=best,
            length_penalty=length_penalty,
            max_new=max_new,
            start=start,
            edits=edits,
        )
        for place, answer in zip(places, hypotheses, strict=True):
            results[place] = answer
        if progress is not None:
            progress(first + len(places))
    return results
