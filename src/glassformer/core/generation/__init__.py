"""Generation: texts, token by token or by beams."""

# ruff: noqa: F401
# mypy: implicit-reexport
from .beam import Hypothesis, beam, check_beams
from .decode_loop import Row, Step
from .generating import Generation, check_settings, generate
from .prompt import Prompt
from .sample import Sampling
