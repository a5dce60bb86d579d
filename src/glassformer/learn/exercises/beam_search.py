"""Beam search

Greedy decoding takes the likeliest token and never looks back; the likeliest text may begin with a
less likely word. Beam search keeps the few best texts so far (the beams), tries every next token
after each, and keeps the best again:

    score of a text = sum of the log-probabilities of its new tokens

With one beam it is greedy; with as many beams as there are texts it finds the best of all. Here
every text gets `length` new tokens, and none ends early.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 7.2
HINTS = (
    "A beam is a pair: its score and its tokens. Begin with one beam: 0.0 and no token.",
    "log_softmax turns logits into log-probabilities; add each to the score of the beam that it "
    "goes on from.",
    "Collect all candidates of all beams, sort by score, keep the first `beams` of them.",
)

# %% yours
from collections.abc import Callable

import torch
from torch import Tensor


def beam_search(
    logits_after: Callable[[list[int]], Tensor], beams: int, length: int
) -> list[tuple[float, list[int]]]:
    """The best texts of ``length`` tokens, at most ``beams`` of them: (score, tokens), the best
    first.

    ``logits_after(tokens)`` gives the logits (V,) of what comes after these new tokens ([] in the
    beginning).
    """
    # TODO: go on from each beam with every token, keep the best `beams` of all candidates, `length`
    # times
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(length):
        candidates = []
        for score, tokens in best:
            scores = logits_after(tokens).log_softmax(-1)
            for value, token in zip(
                *(tensor.tolist() for tensor in scores.topk(min(beams, len(scores)))), strict=True
            ):
                candidates.append((score + value, [*tokens, int(token)]))
        best = sorted(candidates, key=lambda candidate: -candidate[0])[:beams]
    return best
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    V, length = 5, 3
    tables = report.randn(length, V, V) * 2

    def after(tokens: list[int]) -> Tensor:
        look = (
            "a beam is not changed: each candidate is a new list, tokens + [token]; append "
            "changes the beam itself"
        )
        message = (
            f"Your search asked what follows {len(tokens)} new tokens; a text gets "
            f"{length} and no more."
        )
        report.true(len(tokens) < length, message, look)
        return tables[len(tokens), tokens[-1] if tokens else 0].clone()

    def keep(
        beams: int, logs: bool = True, apart: bool = False
    ) -> tuple[list[float], list[list[int]]]:
        best: list[tuple[float, list[int]]] = [(0.0, [])]
        for _ in range(length):
            grown = []
            for total, tokens in best:
                x = after(tokens)
                extensions = [
                    (total + float(v), [*tokens, t])
                    for t, v in enumerate(x.log_softmax(-1) if logs else x)
                ]
                grown += (
                    sorted(extensions, reverse=True)[:1]
                    if apart and len(best) == beams
                    else extensions
                )
            best = sorted(grown, key=lambda candidate: -candidate[0])[:beams]
        return [score for score, _ in best], [tokens for _, tokens in best]

    def check_beams(name: str, beams: int) -> None:
        result, right = learner.beam_search(after, beams, length), keep(beams)
        shaped = isinstance(result, list) and all(
            isinstance(pair, tuple) and len(pair) == 2 for pair in result
        )
        report.true(shaped, "beam_search gives back a list of tuples (score, tokens).")
        slips = {
            "the score: log-probabilities, not logits: log_softmax first": keep(beams, False)[1],
            "the choice: all candidates of all beams compete; yours keeps the best of each": keep(
                beams, True, True
            )[1],
            "the order: the best first": right[1][::-1],
        }
        look = "go on from each beam with every token, and keep the best of all these candidates"
        scores, texts = [float(score) for score, _ in result], [list(text) for _, text in result]
        report.equal(f"the texts of {name}", texts, right[1], slips=slips, look=look)
        look = "the sum of the log-probabilities (log_softmax) of its own tokens"
        report.equal(f"the scores of {name}", scores, right[0], look=look)

    check_beams("beam_search(logits_after, 1, 3), which is greedy", 1)
    check_beams("beam_search(logits_after, 3, 3)", 3)
    check_beams("beam_search with as many beams as texts", V**length)
    report.say(
        f"1 beam is greedy, 3 beams keep the best of each step, {V**length} beams find "
        "the best of all texts"
    )

    from glassformer.core.generation.beam import beam

    model, tokenizer = real_model.real()
    ids = tokenizer.encode(real_model.PROMPT)

    @torch.no_grad()
    def logits_after(tokens: list[int]) -> Tensor:
        return model(torch.tensor([ids + list(tokens)]), logits="last").logits[0, -1]

    reference = beam(
        model, tokenizer, real_model.PROMPT, beams=4, best=1, length_penalty=0.0, max_new=8, eos=()
    )[0][0]
    total, tokens = learner.beam_search(logits_after, 4, 8)[0]
    report.equal("what your search finds in the real model", list(tokens), reference.tokens)
    report.equal("its score", float(total), reference.score, tolerance=1e-3)
    report.say(
        f"in the real model 4 beams find {tokenizer.decode(tokens)!r}, as ours do: {total:.3f}"
    )
