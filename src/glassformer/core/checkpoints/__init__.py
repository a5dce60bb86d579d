"""Weights in files: safetensors read and written in parts, and the tables of names that lie between
a published checkpoint and a model."""
