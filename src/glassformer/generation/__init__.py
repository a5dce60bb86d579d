"""Generation: from a prompt to text, one token at a time."""

from .loop import Finish, Generation, Row, Step, generate
from .prompt import Prompt
from .sample import Sampling

__all__ = ["Finish", "Generation", "Prompt", "Row", "Sampling", "Step", "generate"]
