"""Generation: what a model says: texts, token by token or by beams; vectors, labels and words for blanks."""

from .answers import Filled, classify, embed, fill, tag, tags
from .beam import Hypothesis, beam, search
from .loop import Finish, Generation, Row, Step, generate
from .prompt import Prompt
from .sample import Sampling

__all__ = [
    "Filled",
    "Finish",
    "Generation",
    "Hypothesis",
    "Prompt",
    "Row",
    "Sampling",
    "Step",
    "beam",
    "classify",
    "embed",
    "fill",
    "generate",
    "search",
    "tag",
    "tags",
]
