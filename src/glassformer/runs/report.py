"""What a run says of itself, in lines on standard error. No torch here."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time span in the unit a person would say."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"
