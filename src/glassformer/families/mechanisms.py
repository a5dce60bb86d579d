"""What single families of encoders have: ModernBERT's first block. No torch here."""

from __future__ import annotations

from ..core import config


@config.member(config.Block)
class FirstBlock(config.Block):
    """A block whose attention reads the stream without a norm, which the embeddings have (ModernBERT)."""
