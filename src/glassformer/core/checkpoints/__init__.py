"""Weights in files: safetensors, read and written in parts; a run's checkpoint is runs/run_checkpoints.py."""
