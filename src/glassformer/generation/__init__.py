"""Generation: from a prompt to text, one token at a time."""

from .beam import Hypothesis, beam
from .loop import Finish, Generation, Row, Step, generate
from .prompt import Prompt
from .sample import Sampling

__all__ = ["Finish", "Generation", "Hypothesis", "Prompt", "Row", "Sampling", "Step", "beam", "generate"]
