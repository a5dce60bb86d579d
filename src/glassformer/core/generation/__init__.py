"""Generation: texts, token by token or by beams."""

from .beam import Hypothesis, beam, check_beams
from .generating import Generation, check_settings, generate
from .loop import Finish, Row, Step
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
