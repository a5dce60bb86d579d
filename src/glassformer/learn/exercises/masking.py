"""Masked language modelling: what is hidden

BERT learns by filling gaps. Of the tokens some are chosen (15 %); of those

    80 %   are replaced by the mask token
    10 %   by another token, drawn at random
    10 %   stay as they are

and for all the chosen ones the model has to say what stood there. Elsewhere the target is -1: no
loss. Special tokens ([CLS], [SEP], padding) are never chosen.

The luck is given, so that everybody hides the same: a token is chosen where `choose` is below the
rate; it becomes the mask where `fate` is below 0.8, the token in `replacement` where `fate` is 0.9 or
above, and stays in between.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 8.2
HINTS = (
    "Ask of each place: is it chosen, what is shown there, and what is asked there?",
    "chosen = (choose < rate) & ~special",
    "torch.where(condition, this, that) chooses number by number.",
    "The targets are the old tokens where chosen, also where the token stays as it is; -1 "
    "elsewhere.",
)

# %% yours
import torch
from torch import Tensor


def hide(
    tokens: Tensor,
    special: Tensor,
    choose: Tensor,
    fate: Tensor,
    replacement: Tensor,
    mask: int,
    rate: float,
) -> tuple[Tensor, Tensor]:
    """All (B, T): tokens, special (booleans), choose and fate in [0, 1), replacement (tokens)
    -> what is shown; targets."""
    # TODO: which are chosen; what is shown there: mask, another or the same; the targets
    chosen = (choose < rate) & ~special
    inputs = torch.where(chosen & (fate < 0.8), mask, tokens)
    inputs = torch.where(chosen & (fate >= 0.9), replacement, inputs)
    return inputs, torch.where(chosen, tokens, -1)
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    B, T, mask = 6, 40, 103
    tokens, replacement = report.randint(10, 90, (B, T)), report.randint(10, 90, (B, T))
    special = torch.zeros(B, T, dtype=torch.bool)
    special[:, 0], special[:, 30:] = True, True

    choose, fate, rate = report.rand(B, T), report.rand(B, T), 0.3
    inputs, targets = hide(tokens, special, choose, fate, replacement, mask, rate)
    chosen = targets >= 0
    result = learner.hide(tokens, special, choose, fate, replacement, mask, rate)
    report.pair(result, "hide gives back two things: what is shown, the targets.")
    everywhere = choose < rate
    slips: Any = {
        "the special tokens: they are never chosen": torch.where(everywhere, tokens, -1),
        "the targets: -1 wherever nothing was chosen, else the model is asked for what it sees": tokens,
        "the targets: the tokens that stay as they are count too": torch.where(
            chosen & (inputs != tokens), tokens, -1
        ),
        "the targets: what stood there before, not what is shown": torch.where(chosen, inputs, -1),
        "the rate: it is an argument, and need not be 0.15": torch.where(
            (choose < 0.15) & ~special, tokens, -1
        ),
    }
    report.equal("the targets", result[1], targets, slips=slips)
    slips = {
        "the 80 %: only four in five of the chosen become the mask": torch.where(
            chosen, mask, tokens
        ),
        "the last tenth: another token where fate is 0.9 or above, the same between 0.8 and 0.9": torch.where(
            chosen & (fate < 0.8), mask, torch.where(chosen & (fate < 0.9), replacement, tokens)
        ),
        "the middle: between 0.8 and 0.9 the token stays": torch.where(
            chosen & (fate < 0.9), mask, inputs
        ),
    }
    report.equal("what is shown", result[0], inputs, slips=slips)
    report.say(f"{int(chosen.sum())} tokens are chosen and shown as they should be")

    lines = [line.split() for line in real_model.texts()]
    words = ["[MASK]", "[PAD]", *sorted({word for line in lines for word in line})]
    longest = max(map(len, lines))
    rows = torch.tensor(
        [[words.index(w) for w in [*line, *["[PAD]"] * (longest - len(line))]] for line in lines]
    )
    padding = rows == 1
    model = real_model.encoder(len(words)).train()
    pos = torch.arange(longest).expand_as(rows).where(~padding, torch.tensor(-1))

    def loss() -> Tensor:
        draws = report.rand(2, *rows.shape)
        replacements = report.randint(2, len(words), tuple(rows.shape))
        inputs, targets = learner.hide(rows, padding, *draws, replacements, 0, 0.3)
        logits = model(inputs, pos=pos).logits.flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=-1)

    losses = torch.tensor(real_model.optimise(model.parameters(), loss, 60, 3e-3))
    first, last = losses[:5].mean(), losses[-10:].mean()
    report.true(
        last < 0.8 * first,
        f"A small BERT learns nothing from it: its loss goes from {first:.2f} to {last:.2f}.",
    )
    report.say(
        "a small BERT trained for 60 steps on what you hid: its loss fell from "
        f"{first:.2f} to {last:.2f}"
    )
