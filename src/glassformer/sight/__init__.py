"""Inspection: what happens inside a model while it runs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .alignment import alignments, svg
    from .attribution import Attribution, attribute
    from .contexts import Contexts, word_in_contexts
    from .gradients import Saliency, saliency
    from .heads import HeadScores, head_scores
    from .lens import logit_lens, logits_by_depth
    from .looking import describe, look, paths, predictions, read_tokens, summarise, to_dict
    from .neurons import Neuron, top_activations
    from .patching import PatchGrid, patch_grid
    from .tracing import trace
    from .tuned_lens import TunedLens, fit_tuned_lens
    from .verification import verify

_HOME = {
    "alignments": ".alignment",
    "Attribution": ".attribution",
    "Contexts": ".contexts",
    "attribute": ".attribution",
    "describe": ".looking",
    "fit_tuned_lens": ".tuned_lens",
    "logit_lens": ".lens",
    "logits_by_depth": ".lens",
    "look": ".looking",
    "Neuron": ".neurons",
    "PatchGrid": ".patching",
    "patch_grid": ".patching",
    "paths": ".looking",
    "predictions": ".looking",
    "read_tokens": ".looking",
    "saliency": ".gradients",
    "Saliency": ".gradients",
    "summarise": ".looking",
    "svg": ".alignment",
    "to_dict": ".looking",
    "top_activations": ".neurons",
    "trace": ".tracing",
    "TunedLens": ".tuned_lens",
    "HeadScores": ".heads",
    "head_scores": ".heads",
    "verify": ".verification",
    "word_in_contexts": ".contexts",
}
__all__ = [
    "Attribution",
    "Contexts",
    "HeadScores",
    "Neuron",
    "PatchGrid",
    "Saliency",
    "TunedLens",
    "alignments",
    "attribute",
    "describe",
    "fit_tuned_lens",
    "head_scores",
    "logit_lens",
    "logits_by_depth",
    "look",
    "patch_grid",
    "paths",
    "predictions",
    "read_tokens",
    "saliency",
    "summarise",
    "svg",
    "to_dict",
    "top_activations",
    "trace",
    "verify",
    "word_in_contexts",
]


def __getattr__(name: str) -> Any:
    """Names of the room, each imported from its file on first use: ``masks`` beside them needs no
    torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name], __name__), name)
