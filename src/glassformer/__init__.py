"""Glassformer: the whole Transformer family in one small, fast library that you can see through.

    model, tokenizer = glassformer.load("folder, hub name or recipe")
    for step in glassformer.generate(model, tokenizer, "Once upon a time"): print(step.text, end="")
    for step in glassformer.train(model, batches, objective, config): ...
    glassformer.look(model, tokenizer, "some text", "*.pattern")

Importing the package does not import torch; the first use of a verb does. Import it before torch:
it sets how torch's threads wait for each other (``threads.py``), which nothing changes once torch
is loaded.
"""

from __future__ import annotations

import gc
import importlib
import sys
from contextlib import contextmanager

from .core import registry
from .core.errors import UserError
from .fast import threads

TYPE_CHECKING = False  # as in typing, whose import is a tenth of the time that --help takes
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .commands.compare import compare
    from .commands.convert import convert
    from .commands.eval import evaluate
    from .commands.quantize import quantize
    from .core.generation import generate
    from .core.training import train
    from .formats.extend import use
    from .formats.hub import push
    from .formats.store import load, save
    from .runs.head_history import head_history
    from .runs.history import training_log
    from .runs.influences import influence
    from .runs.replay import replay
    from .runs.updates import update_texts, weight_history
    from .serve.engine import Engine
    from .sight import (
        Probe,
        TunedLens,
        attribute,
        circuit,
        fit_tuned_lens,
        head_scores,
        logit_lens,
        look,
        patch_grid,
        probe,
        saliency,
        top_activations,
        trace,
        verify,
        word_in_contexts,
    )
    from .tasks.predictions import classify, embed, fill, tag
    from .tasks.translation import translate

__version__ = "0.2.0"
__all__ = [
    "Engine",
    "Probe",
    "TunedLens",
    "UserError",
    "__version__",
    "attribute",
    "circuit",
    "classify",
    "compare",
    "convert",
    "embed",
    "evaluate",
    "fill",
    "fit_tuned_lens",
    "generate",
    "head_history",
    "head_scores",
    "influence",
    "load",
    "logit_lens",
    "look",
    "patch_grid",
    "probe",
    "push",
    "quantize",
    "replay",
    "saliency",
    "save",
    "tag",
    "top_activations",
    "trace",
    "train",
    "training_log",
    "translate",
    "update_texts",
    "use",
    "verify",
    "weight_history",
    "word_in_contexts",
]

_HOME = {
    "Engine": ".serve.engine",
    "load": ".formats.store",
    "save": ".formats.store",
    "generate": ".core.generation",
    "train": ".runs",
    "training_log": ".runs",
    "replay": ".runs.replay",
    "influence": ".runs.influences",
    "head_history": ".runs.head_history",
    **dict.fromkeys(("update_texts", "weight_history"), ".runs.updates"),
    "look": ".sight",
    "patch_grid": ".sight",
    "Probe": ".sight",
    "TunedLens": ".sight",
    "attribute": ".sight",
    "circuit": ".sight",
    "fit_tuned_lens": ".sight",
    "logit_lens": ".sight",
    "probe": ".sight",
    "saliency": ".sight",
    "top_activations": ".sight",
    "trace": ".sight",
    "word_in_contexts": ".sight",
    "head_scores": ".sight",
    "verify": ".sight",
    "use": ".formats.extend",
    "push": ".formats.hub",
    **{name: f".commands.{name}" for name in ("compare", "convert", "quantize")},
    "evaluate": ".commands.eval",
    **dict.fromkeys(("classify", "embed", "fill", "tag"), ".tasks.predictions"),
    "translate": ".tasks.translation",
}
_MODULES = {  # on first use, too
    **{
        name: f".core.{name}"
        for name in ("checkpoints", "config", "generation", "nn", "tokenizer", "training")
    },
    **{name: f".{name}" for name in ("families", "runs", "sight")},
    "data": ".formats.data",
    "engine": ".serve.engine",
    "evaluation": ".tasks.evaluation",
}


registry.MODULES.update(
    nn=[
        "families.modules.differential",
        "families.modules.gated_expert",
        "families.modules.delta",
        "families.modules.short_conv",
        "families.modules.ssm",
        "families.modules.latent",
        "families.modules.mechanisms",
        "families.modules.routed",
        "families.modules.rwkv",
        "families.modules.sinks",
        "families.modules.sparse_mixer",
        "families.modules.disentangled",
        "families.modules.longformer",
        "families.modules.tuned",
        "fast.quantized",
        "formats.tuning",
        "formats.rope_scaling",
        "tasks.pool",
        "tasks.recurrence",
    ],
    engines=["fast.attention_engines"],
    acceleration=["fast.acceleration"],
    execution=["fast.training.execution"],
    rollouts=["serve.rollouts"],
    orders=["scale.order"],
    stores=["formats.store"],
    objectives=["tasks.objectives"],
    synonyms=["runs.synonyms"],
    edits=["sight.edits"],
    tokenizer_files=["formats.tokenizer_saving"],
    tokenizer_trainers=["formats.tokenizer_trainers"],
    tokenizer_backends=["formats.tiktoken_backend"],
)

# here, since every door leads through the package: commands, their processes, notebooks
threads.prepare()


def __getattr__(name: str) -> Any:
    if name not in _HOME and name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _nothing_to_collect():
        module = importlib.import_module(_HOME.get(name) or _MODULES[name], __name__)
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


@contextmanager
def _nothing_to_collect() -> Iterator[None]:
    """Torch's import makes a great many objects and all of them stay: looking for garbage among
    them takes 0.1 s."""
    if "torch" in sys.modules or not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # and back: everything counts as old now, without having been looked through
        gc.unfreeze()
        gc.enable()


def __dir__() -> list[str]:
    return __all__
