"""The page as it was last looked at: some screens, wide and narrow, light and dark, dot by dot.

The pictures in ``looks/`` hold for the Chromium and the fonts that ``looks/made.json`` names; with
others the test is skipped by name. After a change that is meant, GLASSFORMER_LOOKS=new pytest
tests/page/browser/test_looks.py writes them anew: look at them.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from folders import read_json

LOOKS = Path(__file__).with_name("looks")
TEXT = "m=llama&t=the+cat+sat+on+a+mat"
PATTERN = "op=decoder.blocks.0.attn.pattern&c=decoder.blocks.0.attn.pattern[0,2,1]"
SCREENS = {
    "playground": (f"playground?{TEXT}", "aside .bars .num"),
    "inside": (f"inside?{TEXT}&l=0", "main .op"),
    "cell": (f"inside?{TEXT}&l=0&{PATTERN}", "section.cell .value .num"),
    "attention": (f"attention?{TEXT}&q=5", ".looks [data-sum]"),
    "lens": (f"lens?{TEXT}", "main .num"),
}
TAKEN = [
    ("playground", 1366, "light"),
    ("playground", 390, "dark"),
    ("inside", 1366, "dark"),
    ("cell", 900, "light"),
    ("attention", 1366, "light"),
    ("attention", 390, "light"),
    ("attention", 900, "dark"),
    ("lens", 1366, "light"),
]
# share of dots that may differ, and from what difference of a channel (of 255) on they do
MOST, NEAR = 0.002, 24
# times and the port
HIDE = "() => { document.querySelector('footer').style.visibility = 'hidden' }"
Picture = np.ndarray[Any, Any]


def picture(data: bytes) -> Picture:
    """A PNG as (height, width, 3) bytes."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def differing(item: Picture, second: Picture) -> float:
    """The share of dots that differ; all of them where the sizes do."""
    if item.shape != second.shape:
        return 1.0
    return float((np.abs(item.astype(int) - second.astype(int)).max(-1) >= NEAR).mean())


def made_by(chromium: Any) -> dict[str, str]:
    """Versions that decide how letters are drawn."""
    fonts = (
        subprocess.run(["fc-match", name, "file"], capture_output=True, text=True).stdout
        for name in ("system-ui", "sans-serif", "monospace")
    )
    return {"chromium": chromium.version, "fonts": " ".join(" ".join(fonts).split())}


@pytest.mark.parametrize(("name", "width", "scheme"), TAKEN)
def test_it_looks_as_it_did(name, width, scheme, chromium, site, tab):
    new, saved = os.environ.get("GLASSFORMER_LOOKS") == "new", LOOKS / "made.json"
    if not new and made_by(chromium) != (was := read_json(saved)):
        pytest.skip(f"these pictures were made with Chromium {was['chromium']} and {was['fonts']}")
    view, ready = SCREENS[name]
    tab.set_viewport_size({"width": width, "height": 900})
    tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    tab.goto(f"{site.url}#{view}")
    tab.wait_for_selector(ready, state="attached")
    tab.wait_for_load_state("networkidle")
    tab.evaluate(HIDE)
    path = LOOKS / f"{name}-{width}-{scheme}.png"
    shot = tab.screenshot(animations="disabled")
    if new:
        LOOKS.mkdir(exist_ok=True)
        path.write_bytes(shot)
        saved.write_text(json.dumps(made_by(chromium), indent=1) + "\n")
        return
    for _ in range(10):  # what comes late on a busy machine
        if (share := differing(picture(shot), picture(path.read_bytes()))) <= MOST:
            return
        tab.wait_for_timeout(500)
        shot = tab.screenshot(animations="disabled")
    observed = Path(os.environ.get("TMPDIR", "/tmp")) / f"seen-{path.name}"
    observed.write_bytes(shot)
    raise AssertionError(f"{share:.2%} of the dots differ; compare {observed} with {path}")


def test_a_small_change_is_seen():
    """Everything one dot lower is a difference in each of the pictures, and so is a word that is
    not there."""
    for name, width, scheme in TAKEN:
        full = picture((LOOKS / f"{name}-{width}-{scheme}.png").read_bytes())
        assert differing(full, np.roll(full, 1, axis=0)) > MOST
        gone = full.copy()
        gone[200:240, 20:120] = 255 - gone[200:240, 20:120]
        assert differing(full, gone) > MOST
    assert sum(path.stat().st_size for path in LOOKS.iterdir()) < 1_000_000
