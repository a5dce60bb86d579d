"""Weights in files: safetensors, and tables of names between a published checkpoint and a model."""
