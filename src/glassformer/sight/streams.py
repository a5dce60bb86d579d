"""The stream of hidden states at every depth, and what a user names in it: a text, places in it, a
word.

T tokens, C model dim.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.errors import UserError, need
from ..core.nn import Model, Tape
from ..core.nn.finite import must_be_finite
from ..core.nn.model import inference
from ..core.tokenizer.framing import decoder_start
from ..core.tokenizer.framing import source as framed_source
from . import passes
from .inputs import Read as Read
from .inputs import blanks_masked as blanks_masked
from .inputs import prepare as prepare
from .inputs import text_frame
from .labels import TokenLabel as TokenLabel
from .labels import display_texts as display_texts
from .labels import pieces as pieces
from .labels import visible as visible
from .word_places import word_id as word_id

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class States:
    """Hidden states (T, C) by their path, from the embedding to the last block, and ``out``: after
    the last norm."""

    body: str  # "decoder" or "encoder"
    by_path: dict[str, Tensor]
    out: Tensor

    def at(self, columns: Sequence[int]) -> States:
        """States of some tokens alone."""
        return States(
            self.body,
            {path: x[list(columns)] for path, x in self.by_path.items()},
            self.out[list(columns)],
        )


def is_recurrent(model: Model) -> bool:
    """True for a recurrent body, which has states but no residual stream."""
    return model.config.main_body in model.config.recurrent


def states(model: Model, inputs: Read) -> States:
    """Every depth's states of one text, in one pass without logits."""
    body = model.config.main_body
    # its answer is no layer's state
    crossed = is_recurrent(model) and getattr(model.config, body).cross is not None
    last = [f"{body}.out"] if crossed else []
    tape = Tape(*depths(body), *last, edits=inputs.edits)
    hidden = inputs.run(model, tape).hidden[0]
    return States(body, {path: value[0] for path, value in tape.records.items()}, hidden)


def depths(body: str) -> tuple[str, ...]:
    """Patterns of the states at every depth of a body."""
    return f"{body}.embed", f"{body}.blocks.*.resid", f"{body}.cells.*.state"


def padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of ids (T,) as one table (N, T), and their positions, -1 behind a row's end."""
    pos = [torch.arange(len(row), device=row.device) for row in rows]
    return pad_sequence(list(rows), batch_first=True), pad_sequence(
        pos, batch_first=True, padding_value=-1
    )


def read_texts(model: Model, tokens: Tensor, pos: Tensor | None, tape: Tape) -> dict[str, Tensor]:
    """The tape's records of texts (N, T), which an encoder-decoder's encoder reads."""
    run: Any = model.encode if model.config.has_source else partial(model, logits="none")
    with inference(model):
        must_be_finite(model, run(tokens, pos=pos, tape=tape).hidden)
    return tape.records


@contextmanager
def frozen(model: torch.nn.Module) -> Iterator[None]:
    """Meanwhile no weight asks for a gradient, so that a backward pass keeps and makes only what
    others ask for."""
    asking = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in asking:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in asking:
            weight.requires_grad_(True)


def windows(
    model: Model, tokenizer: Tokenizer, texts: Iterable[str], length: int | None = None
) -> Iterator[Tensor]:
    """Texts as rows of ids (1, T), in pieces where they are longer than ``length`` tokens (None:
    the model's context).

    Each begins and ends as the model reads a text, an encoder-decoder's encoder its source. Raises
    UserError for a length without room.
    """
    limit = passes.limit(model)
    tokenizer, before, after = text_frame(model.config, tokenizer)
    inside = min(limit, length or limit) - len(before) - len(after)
    need(
        inside > 0,
        f"The context is {length or limit} tokens, too few for a text; give more.",
    )
    device = next(model.parameters()).device
    for text in texts:
        ids = tokenizer.encode(text)
        for low in range(0, len(ids), inside):
            yield torch.tensor([[*before, *ids[low : low + inside], *after]], device=device)


def pairs(
    model: Model, tokenizer: Tokenizer, texts: Iterable[tuple[str, str]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """(source, target) texts as an encoder-decoder reads them: what the decoder reads (1, T), and
    its source (1, S).

    What is longer than the context loses its end.
    """
    limit = passes.limit(model)
    device = next(model.parameters()).device
    reads = tokenizer.for_source
    for source, target in texts:
        opened = [*decoder_start(tokenizer, model.config), *tokenizer.encode(target)][:limit]
        source_ids = framed_source(reads, reads.encode(source)[: limit - 1])
        yield torch.tensor([opened], device=device), torch.tensor([source_ids], device=device)


def places(positions: str | Sequence[int] | None, length: int, most: int = 0) -> list[int]:
    """Positions in a text of so many tokens: a list, or as ``"0,3-5,-1"`` or ``"all"``; None is the
    last ``most``.

    Negative ones count from the end. Raises UserError for one that the text does not have.
    """
    if positions is None:
        return list(range(max(0, length - most), length))
    if isinstance(positions, str):
        if positions.strip() == "all":
            return list(range(length))
        positions = [
            number for span in positions.split(",") for number in _span(span.strip(), length)
        ]
    columns = []
    for number in positions:
        need(
            -length <= number < length,
            f"Position {number} is not in the text; it has tokens 0 to {length - 1}.",
        )
        columns.append(number % length)
    need(bool(columns), "No position is named; give some, such as 0,3-5,-1, or all.")
    return list(dict.fromkeys(columns))


def _span(span: str, length: int) -> list[int]:
    form = re.fullmatch(r"(-?\d+)(?:-(-?\d+))?", span)
    if form is None or max(map(len, form.groups(""))) > 12:
        raise UserError(
            f'"{span}" is no position; give numbers and spans, such as 0,3-5,-1, or all.'
        )
    first = int(form[1])
    if form[2] is None:
        return [first]
    low, high = (number + length if number < 0 else number for number in (first, int(form[2])))
    need(low <= high, f'"{span}" ends before it begins; give the smaller position first.')
    need(
        low >= 0 and high < length,
        f"Positions {span} are not all in the text; it has 0 to {length - 1}.",
    )
    return list(range(low, high + 1))


def place(position: int | None, tokens: Tensor, tokenizer: Tokenizer | None) -> int:
    """One position of a text (1, T); None is its only mask token where it has one, else its
    last."""
    if position is not None:
        return places([position], tokens.shape[1])[0]
    mask = None if tokenizer is None else tokenizer.mask
    masks = [at for at, token in enumerate(tokens[0].tolist()) if token == mask]
    if len(masks) == 1:
        return masks[0]
    return tokens.shape[1] - 1


def answer_kind(model: Model, of: str | None, kinds: Sequence[str] = ("logit", "label")) -> str:
    """The kind of answer, a token's or a label's; None is "label" for a model with labels and no
    head, else "logit".

    Raises UserError where it is none of ``kinds``, and where the model has no labels.
    """
    labels = model.config.labels > 0
    of = of or ("label" if labels and model.head is None else "logit")
    choices = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
    need(of in kinds, f'There is no answer "{of}"; give {choices}.')
    need(of != "label" or labels, "This model has no labels for a text; ask for a token's logit.")
    return of


def choice(
    model: Model | int,
    tokenizer: Tokenizer | None,
    logits: Tensor,
    word: str | int | None,
    of_labels: bool = False,
) -> tuple[int, TokenLabel]:
    """The token or label that a word names, and its name; None is the likeliest of ``logits`` (V)
    that the tokenizer knows."""
    known = len(logits) if tokenizer is None or of_labels else min(tokenizer.size, len(logits))
    if word is None:
        number = int(logits[:known].argmax())
    elif of_labels:
        number = int(word) if str(word).isdecimal() else -1
        available = f"this model has 0 to {known - 1}"
        need(0 <= number < known, f'There is no label "{word}"; {available}.')
    else:
        number = word_id(model, tokenizer, word)
    return number, TokenLabel(f"label {number}") if of_labels else pieces(tokenizer, [number])[0]


def last_norm(model: Model) -> Any:
    """The norm between the last block and the head; a recurrent body has none."""
    body = model.get_submodule(model.config.main_body)
    return getattr(body, "last_norm", torch.nn.Identity())


def needs_head(model: Model, instead: str) -> Any:
    """The model's head over tokens; UserError, which ends with ``instead``, where it has none."""
    need(
        model.head is not None,
        f"This model has no head over tokens, so it predicts none; {instead}",
    )
    return model.head


def random_direction(direction: Tensor, seed: int) -> Tensor:
    """A random direction of the same length, to compare a direction with."""
    draw = torch.randn(direction.shape, generator=torch.Generator().manual_seed(seed))
    length: Tensor = direction.norm().cpu() / draw.norm()
    return (draw * length).to(direction.device)


def fp64(x: Tensor) -> Tensor:
    """``x`` in fp64, on the CPU where its device has none."""
    return (x.cpu() if x.device.type == "mps" else x).double()


def wide(x: Tensor) -> Tensor:
    """In fp32 at least: what sums are made in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
