"""Generation: what a model says: texts, token by token or by beams; vectors, labels and words for
blanks."""

from .beam import Hypothesis, beam, check_beams
from .continuation import Finish
from .loop import Generation, Row, Step, check_settings, generate
from .prompt import Prompt
from .sample import Sampling

__all__ = [
    "Finish",
    "Generation",
    "Hypothesis",
    "Prompt",
    "Row",
    "Sampling",
    "Step",
    "beam",
    "check_beams",
    "check_settings",
    "generate",
]
