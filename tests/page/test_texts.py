"""Every kind that a plan gives a name of its own has its three texts on the page."""

import re
from pathlib import Path

from glassformer.sight.recording.plan import KINDS

TEXTS = Path(__file__).parents[2] / "web/src/text/kinds.ts"


def test_every_kind_has_texts():
    table = TEXTS.read_text().partition("const TEXTS")[2].partition("\n};")[0]
    texts = set(re.findall(r"^  (\w+): ", table, re.MULTILINE))
    assert set(KINDS.values()) | {"classify", "leaf", "edit", "generic"} <= texts
    functions = {"softmax", "linear", "add", "topk"}  # by their own names
    assert texts <= set(KINDS.values()) | functions | {"classify", "leaf", "edit", "generic"}
