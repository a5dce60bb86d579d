"""``glassformer patch``: where what tells two texts apart passes through a model."""

from __future__ import annotations

from typing import Annotated

from ..core.errors import UserError, need
from .options import ModelOptions
from .parsing import CommandOutput, Whole, Words

EXAMPLES = (
    'glassformer patch out/mine "The dog is" "The dogs are" --answer " here" --wrong " there"',
    'glassformer patch out/mine "The dog is" "The cat is" --answer " barking" --parts z '
    "--positions all --top 20",
)


def parse_positions(text: str) -> str | list[int]:
    """``each``, ``all``, or ``2,3``."""
    if text in ("each", "all"):
        return text
    try:
        return [int(index) for index in text.split(",")]
    except ValueError:
        raise UserError(
            f'--positions is "{text}"; give each, all, or numbers such as 2,3.'
        ) from None


def run(
    options: ModelOptions,
    clean: str,
    corrupted: str,
    *,
    answer: str,
    wrong: str | None = None,
    parts: str = "resid,attn.write,ffn.write",
    positions: Annotated[str | list[int], parse_positions] = "each",
    at: int | None = None,
    source: Words = (),
    top: Whole = 10,
) -> CommandOutput:
    """Patches values of one text into the pass of another.

    clean CLEAN: the text whose values are inserted
    corrupted CORRUPTED: the text that receives them, with equally many tokens
    answer WORD: the token whose logit is measured
    wrong WORD: the token whose logit is subtracted
    parts P,...: values of a block to patch; z patches head by head
    positions N,...: each one alone (each), all at once (all), or numbers (each)
    at N: the position of the answer (the last token; an encoder's mask)
    source TEXT: the source of an encoder-decoder; repeat it for a clean and a corrupted source
    top N: the N largest effects, below the grid
    json: every number as JSON
    """
    from ..sight import patch_grid

    need(
        len(source) < 3,
        f"There are {len(source)} --source texts; give one, or one for each text.",
    )
    grid = patch_grid(
        *options.load_with_tokenizer(),
        clean,
        corrupted,
        answer=answer,
        wrong=wrong,
        parts=[name.strip() for name in parts.split(",")],
        positions=positions,
        at=at,
        source=(source[0], source[1]) if len(source) == 2 else source[0] if source else None,
    )
    options.note_untrained()
    lines = [grid.text(), *(["", *grid.table(top)] if top else [])]
    return CommandOutput(grid.to_dict, lines, [f"{grid.measured}: {grid.scale}."])
