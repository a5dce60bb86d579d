"""How a model that ships with the package agrees a verb with its subject, and how many neurons decide it.

    python benchmarks/agreement.py [--model tiny-stories] [--least 0.005]

First, 96 texts ("The little girl", "The little girls", ...): is the logit of the right one of "was" and
"were" the higher? Then a circuit of single neurons for each plural whose singular has a text of as many
tokens: its neurons, its heads, and the share of the difference that they keep alone, beside 20 random
circuits of as many nodes.
"""

from __future__ import annotations

import argparse

import torch

import glassformer

NOUNS = [
    "girl", "boy", "cat", "dog", "bird", "toy", "tree", "ball", "flower", "friend", "bear", "car",
]  # fmt: skip
OPENINGS = ("The little", "One day, the", "Once upon a time, the big", "Tom saw that the")


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tiny-stories")
    parser.add_argument("--least", type=float, default=0.005)
    args = parser.parse_args()
    model, tokenizer = glassformer.load(args.model, dtype="float32")
    verbs = [tokenizer.encode(f"the {verb}")[-1] for verb in ("was", "were")]
    for opening in OPENINGS:
        right = 0
        for noun in NOUNS:
            for number, ending in enumerate(("", "s")):
                ids = torch.tensor([tokenizer.encode(f"{opening} {noun}{ending}")])
                with torch.no_grad():
                    was, were = model(ids).logits[0, -1, verbs].tolist()
                right += (were > was) == bool(number)
        print(f"{opening}: {right} of {2 * len(NOUNS)} right")
    print("noun   neurons  heads  the model  circuit  without  corrupted  kept  random  best")
    for noun in NOUNS:
        text, corrupted = f"The little {noun}s", f"The big little {noun}"
        if len(tokenizer.encode(text)) != len(tokenizer.encode(corrupted)):
            continue
        options = {"answer": " were", "instead": " was", "corrupted": corrupted}
        result = glassformer.circuit(
            model, tokenizer, text, neurons=True, least=args.least, **options
        )
        run = result.faithfulness
        kinds = [node.kind for node in result.nodes]
        answers = (run.circuit, *run.random)
        share, *drawn = [(x - run.nothing) / (run.model - run.nothing) for x in answers]
        print(
            f"{noun:6} {kinds.count('neuron'):7} {kinds.count('head'):6} {run.model:10.2f} "
            f"{run.circuit:8.2f} {run.without:8.2f} {run.nothing:10.2f} {share:5.0%} "
            f"{sum(drawn) / len(drawn):7.0%} {max(drawn):5.0%}"
        )


if __name__ == "__main__":
    main()
