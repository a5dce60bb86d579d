"""Write the example that `glassformer page` shows while a model is still loaded: answers of our own
server.

    python benchmarks/example.py        (after another model was shipped, a change of the plan or of an answer's form)

The server runs the shipped model; Chromium opens the screens of VIEWS with TEXT, and every answer
that they ask for at their first show is kept, byte for byte, by its request: static/example.trace,
gzipped safetensors, a u8 tensor an answer. Nothing in it is computed otherwise than for any text;
tests/page/test_example.py asks the server again.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.core import files
from glassformer.serve.page.models import SHIPPED
from glassformer.sight import wire
from glassformer.sight.export import canonical

TARGET = Path(__file__).parents[1] / "src" / "glassformer" / "static" / "example.trace"
TEXT = "The animal didn't cross the street because it was too tired"
VIEWS = ("playground", "inside", "inside?l=0", "attention", "lens")
MOST = 200_000


def main() -> None:
    """Record and write."""
    command = [sys.executable, "-m", "glassformer", "page", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        answers = recorded(server.stdout.readline().strip())
    finally:
        server.terminate()
    fields = {"model": SHIPPED, "text": TEXT}
    tensors = {
        request: np.frombuffer(answer, np.uint8) for request, answer in sorted(answers.items())
    }
    data = gzip.compress(wire.packed(tensors, fields), 9, mtime=0)
    if len(data) > MOST:
        sys.exit(f"{len(data):,} bytes are more than {MOST:,}; keep fewer screens.")
    files.write(TARGET, data)
    print(f"{TARGET}: {len(answers)} answers, {len(data):,} bytes")


def recorded(link: str) -> dict[str, bytes]:
    """Each answer of the api by its request, as the screens ask."""
    from playwright.sync_api import sync_playwright

    result: dict[str, bytes] = {}

    def keep(response: Any) -> None:
        request = response.request
        path = request.url.removeprefix(link)
        if path.startswith("api/") and response.status == 200:
            sent = (
                f" {canonical(json.loads(request.post_data))}" if request.method == "POST" else ""
            )
            # as it was when first asked
            result.setdefault(f"{request.method} {path}{sent}", response.body())

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for view in VIEWS:
            tab = browser.new_page(viewport={"width": 1366, "height": 900})
            # the one before answers nothing
            tab.route("**/example.trace", lambda route: route.abort())
            tab.on("requestfinished", lambda query: keep(query.response()))
            tab.goto(f"{link}#{view}")
            tab.wait_for_selector("footer .badge", timeout=60_000)
            tab.wait_for_load_state("networkidle")
            tab.wait_for_timeout(1000)
        browser.close()
    return result


if __name__ == "__main__":
    main()
