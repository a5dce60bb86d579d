"""The verbs of the command line, one file each: HELP, ``options`` and ``run``. None imports torch before it runs."""

VERBS = (
    "train",
    "generate",
    "translate",
    "fill",
    "embed",
    "classify",
    "eval",
    "look",
    "masks",
    "recipes",
    "cost",
    "data",
    "convert",
    "average",
    "compare",
    "tokens",
    "words",
    "completion",
)
"""In the order of ``glassformer --help``; the name of the file is the name of the verb."""
