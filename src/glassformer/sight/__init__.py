"""Inspection: what happens inside a model while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.files import lazily

if TYPE_CHECKING:
    from .alignment import alignments as alignments
    from .alignment import svg as svg
    from .attribution import Attribution as Attribution
    from .attribution import attribute as attribute
    from .circuits import Circuit as Circuit
    from .circuits import circuit as circuit
    from .contexts import Contexts as Contexts
    from .contexts import word_in_contexts as word_in_contexts
    from .gradients import Saliency as Saliency
    from .gradients import saliency as saliency
    from .heads import HeadScores as HeadScores
    from .heads import head_scores as head_scores
    from .lens import logit_lens as logit_lens
    from .lens import logits_by_depth as logits_by_depth
    from .linear_probes import Probe as Probe
    from .linear_probes import probe as probe
    from .looking import describe as describe
    from .looking import look as look
    from .looking import paths as paths
    from .looking import predictions as predictions
    from .looking import read_tokens as read_tokens
    from .looking import summarise as summarise
    from .looking import to_dict as to_dict
    from .neurons import Neuron as Neuron
    from .neurons import top_activations as top_activations
    from .patching import PatchGrid as PatchGrid
    from .patching import patch_grid as patch_grid
    from .recording.trace import trace as trace
    from .tuned_lens import TunedLens as TunedLens
    from .tuned_lens import fit_tuned_lens as fit_tuned_lens
    from .verification import verify as verify

_NAMES = {
    "alignment": ("alignments", "svg"),
    "attribution": ("Attribution", "attribute"),
    "circuits": ("Circuit", "circuit"),
    "contexts": ("Contexts", "word_in_contexts"),
    "gradients": ("saliency", "Saliency"),
    "heads": ("HeadScores", "head_scores"),
    "lens": ("logit_lens", "logits_by_depth"),
    "linear_probes": ("Probe", "probe"),
    "looking": ("describe", "look", "paths", "predictions", "read_tokens", "summarise", "to_dict"),
    "neurons": ("Neuron", "top_activations"),
    "patching": ("PatchGrid", "patch_grid"),
    "recording.trace": ("trace",),
    "tuned_lens": ("fit_tuned_lens", "TunedLens"),
    "verification": ("verify",),
}
_HOME = {name: f".{home}" for home, names in _NAMES.items() for name in names}
__all__ = [*_HOME]
# each from its file on first use: ``masks`` beside them needs no torch
__getattr__, __dir__ = lazily(__name__, _HOME)
