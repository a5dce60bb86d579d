"""Every kind of operation of a plan has its three texts on the page."""

import re
from pathlib import Path

from glassformer.sight.tracing.kinds import KINDS

TEXTS = Path(__file__).parents[2] / "web/src/text/kinds.ts"


def test_every_kind_has_texts():
    table = TEXTS.read_text().partition("const TEXTS")[2].partition("\n};")[0]
    output = set(re.findall(r"^  (\w+): ", table, re.MULTILINE))
    assert output == set(KINDS)
