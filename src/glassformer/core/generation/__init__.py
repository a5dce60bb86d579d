"""Generation: texts, token by token or by beams."""

# ruff: noqa: F401
# mypy: implicit-reexport
from .beam import Hypothesis, beam, check_beams
from .generating import Generation, check_settings, generate
from .loop import Finish, Row, Step
from .prompt import Prompt
from .sample import Sampling
