"""The page's times in a real browser: first paint of `glassformer page`, a long text, hover and
zoom on its matrix.

    python benchmarks/sight_page.py [--rows start long huge] [--model DIR] [--big DIR] [--tries 3]
    [--chromium PATH]

``start`` counts from the start of the server's process (the browser is open already): the link
printed, the first paint, the first number of a model on the screen, the first run by the live
server. ``long`` opens the Attention screen with 400 tokens of DIR (a model of that context; without
--model one of random weights is made), moves the pointer, zooms and drags: milliseconds from frame
to frame, the handlers' own, tasks beyond 50 ms. ``huge`` does so with 2,048 tokens. The worst of
the tries is printed beside the median; p95 of 17 is 60 frames a second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
WORDS = (
    "once upon a time there was a little girl named lily who loved to play in the big green "
    "park with her dog "
)
WATCH = """(() => {
  window.__seen = { tasks: [] };
  const keep = list => list.getEntries().forEach(one => __seen.tasks.push(one.duration));
  new PerformanceObserver(keep).observe({ type: 'longtask', buffered: true });
  const now = () => performance.timeOrigin + performance.now();
  const first = (name, there) => { if (!__seen[name] && there) __seen[name] = now(); };
  const look = () => {
    first('number', document.querySelector('main .num[data-v]'));
    first('live', document.querySelector('footer')?.textContent.startsWith('forward'));
    first('matrix', document.querySelector('[aria-label="one head"] canvas')?.width > 1);
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()"""
FRAMES = """async ([what, count]) => {
  const grid = document.querySelector('[aria-label="one head"] [role=grid]'), box = grid.getBoundingClientRect();
  const gaps = [], own = [], high = Math.min(box.height, 600);
  const x = i => box.left + box.width * (0.3 + 0.5 * ((i * 7) % 97) / 97);
  const y = i => box.top + high * (0.3 + 0.5 * ((i * 5) % 89) / 89);
  const at = i => ({ bubbles: true, cancelable: true, pointerId: 1, clientX: x(i), clientY: y(i) });
  const kind = name => (name === 'wheel' ? WheelEvent : PointerEvent);
  const send = (name, i, more) => grid.dispatchEvent(new (kind(name))(name, { ...at(i), ...more }));
  const zoom = up => send('wheel', 40, { ctrlKey: true, deltaY: up ? -50 : 50 });
  const frame = () => new Promise(requestAnimationFrame);
  if (what === 'pan') { for (let i = 0; i < 6; i++) zoom(true); send('pointerdown', 0); }
  __seen.tasks.length = 0;
  let before = await frame();
  for (let i = 0; i < count; i++) {
    const begun = performance.now();
    if (what === 'zoom') zoom(Math.floor(i / 12) % 2 === 0);
    else send('pointermove', i);
    own.push(performance.now() - begun);
    const now = await frame();
    gaps.push(now - before);
    before = now;
  }
  send('pointerleave', 0);
  const p95 = list => [...list].sort((a, b) => a - b)[Math.floor(list.length * 0.95)];
  return { 'frame p95': p95(gaps), 'own p95': p95(own), 'longest task': Math.max(0, ...__seen.tasks) };
}"""
RUN = """() => {
  const found = performance.getEntriesByType('resource').find(one => one.name.endsWith('api/runs'));
  return [found.startTime, found.responseEnd];
}"""
PAINT = (
    "() => performance.timeOrigin + "
    "performance.getEntriesByName('first-contentful-paint')[0].startTime"
)


def main() -> None:
    """Every row asked for."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--rows", nargs="+", choices=["start", "long", "huge"], default=["start", "long", "huge"]
    )
    options.add_argument("--model", type=Path, metavar="DIR", help="for 400 tokens")
    options.add_argument("--big", type=Path, metavar="DIR", help="for 2,048 tokens")
    options.add_argument("--tries", type=int, default=3)
    options.add_argument("--chromium", default="/usr/bin/chromium")
    args = options.parse_args()
    from playwright.sync_api import sync_playwright

    print(
        f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores; milliseconds: median "
        f"(worst) of {args.tries}"
    )
    with sync_playwright() as play, tempfile.TemporaryDirectory() as result:
        browser = play.chromium.launch(executable_path=args.chromium, args=FLAGS)
        for row in args.rows:
            if row == "start":
                tries = [start(browser) for _ in range(args.tries)]
            else:
                length = 400 if row == "long" else 2048
                folder = (args.model if row == "long" else args.big) or random_model(
                    Path(result) / row, length
                )
                tries = long(browser, folder, length, args.tries)
            for name in tries[0]:
                actual_result = [item[name] for item in tries]
                print(
                    f"{row:<6} {name:<28} {statistics.median(actual_result):>8.1f} ({max(actual_result):.1f})",
                    flush=True,
                )
        browser.close()


@contextmanager
def server(*models: str) -> Iterator[tuple[str, float, float]]:
    """The command, its link, when it was begun and when it printed the link (seconds since the
    epoch)."""
    start = time.time()
    command = [sys.executable, "-m", "glassformer", "page", *models, "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        yield link, start, time.time()
    finally:
        process.terminate()
        process.wait(10)


def start(browser: Any) -> dict[str, float]:
    """From the start of the process to what is seen first."""
    tab = browser.new_context(viewport={"width": 1366, "height": 900}).new_page()
    tab.add_init_script(WATCH)
    with server() as (link, started, printed):
        tab.goto(link)
        tab.wait_for_function("() => __seen.number && __seen.live", timeout=120_000)
        metrics = tab.evaluate("() => __seen")
        paint = tab.evaluate(PAINT)
        opened = tab.evaluate("() => performance.timeOrigin")
    tab.context.close()
    fields = {
        "link printed": printed * 1000,
        "first paint": paint,
        "first number": metrics["number"],
        "live": metrics["live"],
    }
    fields = {name: at - started * 1000 for name, at in fields.items()}
    return fields | {"navigation to first number": metrics["number"] - opened}


def long(browser: Any, folder: Path, length: int, tries: int) -> list[dict[str, float]]:
    """A text of so many tokens on the Attention screen."""
    results = []
    with server(str(folder)) as (link, _, _):
        for turn in range(tries):
            tab = browser.new_context(viewport={"width": 1366, "height": 900}).new_page()
            tab.add_init_script(WATCH)
            tab.goto(f"{link}#tokens")  # the model is loaded by then
            tab.request.post(
                f"{link}api/runs", data={"model": folder.name, "text": "a", "cut": True}
            )
            tab.goto("about:blank")
            text = f"{turn} " + WORDS * (length // 10)
            tab.goto(f"{link}#attention?{urlencode({'m': folder.name, 't': text[: 5 * length]})}")
            tab.wait_for_function("() => __seen.matrix", timeout=120_000)
            metrics, opened = (
                tab.evaluate("() => __seen"),
                tab.evaluate("() => performance.timeOrigin"),
            )
            query, ids = tab.evaluate(RUN)
            fields = {
                "navigation to matrix": metrics["matrix"] - opened,
                "of it the run": ids - query,
            }
            fields["run to matrix"] = metrics["matrix"] - opened - ids
            tab.wait_for_timeout(1500)
            fields["longest task of opening"] = max([0, *tab.evaluate("() => __seen.tasks")])
            for kind in ("hover", "zoom", "pan"):
                for name, value in tab.evaluate(FRAMES, [kind, 90]).items():
                    fields[f"{kind}: {name}"] = value
            fields["tokens"] = tab.evaluate(
                "() => document.querySelectorAll('.text .token').length"
            )
            results.append(fields)
            tab.context.close()
    return results


def random_model(folder: Path, context: int) -> Path:
    """A decoder of 4 layers of 8 heads with random weights and the shipped model's tokenizer."""
    from glassformer import config as c
    from glassformer.core.nn import build_model
    from glassformer.formats import store
    from glassformer.serve.page.models import shipped

    _, tokenizer = store.load(str(shipped()))
    block = c.Block(c.Attention(8), c.GatedMLP(512), norm=c.RMSNorm())
    body = c.Stack(4, (block,), c.Rotary(), last_norm=c.RMSNorm())
    model = build_model(c.Decoder(256, context, c.Embed(tokenizer.size), body, c.Head()), seed=1)
    store.save(model, folder, tokenizer)
    return folder


if __name__ == "__main__":
    main()
