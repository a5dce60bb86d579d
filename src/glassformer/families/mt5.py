"""mT5 and umT5: T5 1.1 in a hundred languages.

mT5 never scales its tied head. Each block of a umT5 has a table of biases; its head is scaled as its
config.json says, whereas transformers 5 scales that of every umT5.
"""

from __future__ import annotations

from typing import Any

from . import t5
from .recipe import page

DEFAULTS: Any = {
    "feed_forward_proj": "gated-gelu",
    "n_positions": 1024,
    "decoder_start_token_id": 0,
}
page("mt5", words=t5.words(scales=False, **DEFAULTS), weights=t5.table)
page("umt5", words=t5.words(inside=True, **DEFAULTS), weights=t5.table)
