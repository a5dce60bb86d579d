"""The blocks: torch, but no files, no network, nothing distributed."""

# ruff: noqa: F401
# mypy: implicit-reexport
import importlib
import pkgutil

from .build import build, builds, makers
from .cache import KV, Cache, CrossKV
from .encoders import Encoder, EncoderDecoder
from .flow import Flow, Memory, TracedModule
from .hooks import Tape
from .init import build_model
from .mask import Mask
from .model import Decoder, Model, Output

for _file in pkgutil.iter_modules(__path__):  # each file registers what it builds, a new one too
    importlib.import_module(f"{__name__}.{_file.name}")
