"""Checkpoints: folders, hub names and recipes read and written; safetensors, adapters, other
libraries' files.

Checkpoint.open(name)      its config, labels and tokenizers, and model()
store.save(model, folder)  and store.load(name)
"""

from .checkpoint import Checkpoint as Checkpoint
