"""Checkpoints: folders, hub names and recipes read and written; safetensors, adapters, other libraries' files."""
