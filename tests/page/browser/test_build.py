"""The committed bundle is what the sources give, and within its budget."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STATIC, WEB = ROOT / "src/glassformer/static", ROOT / "web"
EXAMPLE = "example.trace"


needs_node = pytest.mark.skipif(
    shutil.which("npm") is None or not (WEB / "node_modules/esbuild").is_dir(),
    reason="needs npm, and npm ci in web/",
)


@needs_node
@pytest.mark.parametrize("script", ["check", "test"])
def test_the_sources_types_and_pure_parts(script):
    done = subprocess.run(["npm", "run", script], cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_node
def test_the_bundle_is_the_sources(tmp_path):
    subprocess.run(
        ["node", "esbuild.mjs", "--out", str(tmp_path)], cwd=WEB, check=True, capture_output=True
    )
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    saved = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.name != EXAMPLE}
    assert built == saved, "run npm run build in web/"


def gzipped(*names: str) -> int:
    return sum(len(gzip.compress((STATIC / name).read_bytes(), 9)) for name in names)


def test_budget_and_nothing_foreign():
    first = re.findall(
        r'modulepreload" href="([^"]+)"', (STATIC / "index.html").read_text(encoding="utf-8")
    )
    scripts = [
        path.name for path in STATIC.glob("*.js") if path.name not in ("inline.js", "sandbox.js")
    ]
    assert "app.js" in first and set(first) < set(scripts)
    assert gzipped(*first) <= 70_000 and gzipped(*scripts) <= 124_000
    assert (
        gzipped("app.css") <= 12_000
        and gzipped("inline.js") <= 124_000
        and gzipped("sandbox.js") <= 24_000
    )
    assert (STATIC / EXAMPLE).stat().st_size <= 200_000
    for path in STATIC.iterdir():
        if path.name == EXAMPLE:  # numbers, which tests/page/test_example.py compares
            continue
        text = path.read_text(encoding="utf-8")
        assert "Math.random" not in text, path.name
        assert not set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}, path.name
