"""The site's weight, how soon its pages are painted, how long it takes to build and to check.

    python benchmarks/site.py --site FOLDER [--pages 3] [--repeats 5] [--beside FOLDER] [--rates 1
    4] python benchmarks/site.py --build 1 2 [--source docs] [--repeats 1] python benchmarks/site.py
    --checks

--site: bytes of each page with the scripts and styles that it loads at once (a frame below the
window is loaded when it is near), and in Chromium, milliseconds from the click to the first paint,
the first and the largest text, the end of loading; of the heaviest pages, from disk (what
`glassformer docs` opens) and from a server on this machine, at full speed and with the processor
slowed down. --beside: another build, measured in turns with the first. --build: `make docs` into an
empty folder by so many processes, in turns; wall and processor's seconds. --checks: the site's
tests, the slow ones too, each with its seconds.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LOADS = re.compile(r'<(?:script|link)\b[^>]*?(?:src|href)="([^"#?]+\.(?:js|css))[^"]*"')
SEEN = """() => new Promise(done => {
  const seen = {};
  const keep = list => list.getEntries().forEach(one => {
    seen[one.entryType === 'paint' ? one.name : 'largest'] = one.startTime;
  });
  for (const type of ['paint', 'largest-contentful-paint']) {
    new PerformanceObserver(keep).observe({ type, buffered: true });
  }
  const end = () => {
    const [went] = performance.getEntriesByType('navigation');
    const interactive = went.domContentLoadedEventEnd, loaded = went.loadEventEnd;
    if (loaded && seen['first-contentful-paint'] && seen.largest) done({ ...seen, interactive, loaded });
    else setTimeout(end, 30);
  };
  end();
})"""
TIMES = ("first-paint", "first-contentful-paint", "largest", "interactive", "loaded")


def pages_of(site: Path) -> dict[str, tuple[int, int]]:
    """The bytes of each page, and of it with its scripts and styles."""
    result = {}
    for path in site.rglob("*.html"):
        if "live" in path.parts:
            continue
        beside = {
            (path.parent / name).resolve()
            for name in LOADS.findall(path.read_text(encoding="utf-8"))
        }
        st_size = path.stat().st_size
        result[str(path.relative_to(site))] = (
            st_size,
            st_size + sum(item.stat().st_size for item in beside),
        )
    return dict(sorted(result.items(), key=lambda item: -item[1][1]))


def weight(site: Path) -> None:
    """The heaviest pages and what the whole is made of."""
    pages, kinds = pages_of(site), Counter[str]()
    for path in site.rglob("*"):
        if path.is_file():
            first = path.relative_to(site).parts[0]
            kinds[
                "live frames"
                if first == "live"
                else "our source"
                if first == "source"
                else path.suffix
            ] += path.stat().st_size
    print(f"{site}: {sum(kinds.values()):,} bytes, {len(pages)} pages")
    print("  " + ", ".join(f"{kind or 'no ending'} {size:,}" for kind, size in kinds.most_common()))
    middle = statistics.median(pair for _, pair in pages.values())
    print(f"  a page with its scripts and styles: {middle:,.0f} bytes (median)")
    for name, (individual, pair) in list(pages.items())[:8]:
        print(f"  {individual:>9,} {pair:>9,}  {name}")


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The site behind a plain server of this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def painted(browser: Any, url: str, rate: int) -> dict[str, float]:
    """One page in a fresh context: milliseconds of TIMES."""
    context = browser.new_context(viewport={"width": 1366, "height": 900})
    tab = context.new_page()
    context.new_cdp_session(tab).send("Emulation.setCPUThrottlingRate", {"rate": rate})
    tab.goto(url)
    metrics: dict[str, float] = tab.evaluate(SEEN)
    context.close()
    return metrics


def paints(sites: list[Path], count: int, repeats: int, rates: list[int], chromium: str) -> None:
    """First paint of the heaviest pages of each site, in turns."""
    from playwright.sync_api import sync_playwright

    names = [
        "index.html",
        *[name for name in pages_of(sites[0]) if name != "genindex.html"][:count],
    ]
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        painted(browser, (sites[0] / "index.html").as_uri(), 1)  # the browser's own start
        print(f"\nmilliseconds, median (worst) of {repeats}: {', '.join(TIMES)}")
        for name in names:
            for rate in rates:
                runs: dict[str, list[dict[str, float]]] = {}
                for _ in range(repeats):
                    for number, site in enumerate(sites):
                        individual = f" {number}" if len(sites) > 1 else ""
                        runs.setdefault(f"disk{individual}", []).append(
                            painted(browser, (site / name).as_uri(), rate)
                        )
                        with served(site) as address:
                            runs.setdefault(f"server{individual}", []).append(
                                painted(browser, f"{address}/{name}", rate)
                            )
                for places, run in runs.items():
                    output = [[item[key] for item in run] for key in TIMES]
                    message = "  ".join(
                        f"{statistics.median(item):5.0f} ({max(item):5.0f})" for item in output
                    )
                    print(f"{name:28} {rate}x slower  {places:9} {message}")
        browser.close()


def build(source: Path, variants: list[int], repeats: int) -> None:
    """Seconds of a build by each number of processes, in turns."""
    result: dict[int, list[tuple[float, float]]] = {}
    for _ in range(repeats):
        for processes in variants:
            with tempfile.TemporaryDirectory() as folder:
                command = [
                    sys.executable,
                    "-m",
                    "sphinx",
                    "-W",
                    "--keep-going",
                    "-q",
                    "-E",
                    "-j",
                    str(processes),
                ]
                before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
                subprocess.run(
                    [*command, "-d", f"{folder}/trees", str(source), f"{folder}/site"], check=True
                )
                wall, after = (
                    time.perf_counter() - began,
                    resource.getrusage(resource.RUSAGE_CHILDREN),
                )
                in_use = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                result.setdefault(processes, []).append((wall, in_use))
                print(
                    f"build, {processes} at once: {wall:.1f} s, {in_use:.1f} of the processors",
                    flush=True,
                )
    if repeats > 1:
        for processes, runs in result.items():
            print(
                f"median, {processes} at once: {statistics.median(wall for wall, _ in runs):.1f} s"
            )


def checks() -> None:
    """The site's tests, slow ones too."""
    tests = ["tests/test_site.py", "tests/test_site_browser.py"]
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--durations=12", *tests], cwd=ROOT, check=False
    )
    print(f"all checks: {time.perf_counter() - began:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--site", type=Path, metavar="FOLDER", help="a built site")
    add("--beside", type=Path, metavar="FOLDER", help="another build of it")
    add(
        "--pages",
        type=int,
        default=3,
        metavar="N",
        help="the heaviest N and the first are opened (3)",
    )
    add("--repeats", type=int, metavar="N", help="turns (5 of a page, 1 of a build)")
    add(
        "--rates",
        type=int,
        nargs="+",
        default=[1, 4],
        metavar="N",
        help="the processor slowed down so many times (1 4)",
    )
    add("--build", type=int, nargs="+", metavar="N", help="build with N processes, for each N")
    add("--source", type=Path, default=ROOT / "docs", metavar="FOLDER", help="what is built (docs)")
    add("--checks", action="store_true", help="run the site's tests, slow ones too")
    add("--chromium", default="/usr/bin/chromium")
    args = parser.parse_args()
    print(
        json.dumps({"cores": os.cpu_count(), "load": [round(item, 1) for item in os.getloadavg()]})
    )
    if args.build:
        build(args.source, args.build, args.repeats or 1)
    if args.checks:
        checks()
    if args.site:
        sites = [item.resolve() for item in (args.site, args.beside) if item]
        for site in sites:
            weight(site)
        paints(sites, args.pages, args.repeats or 5, args.rates, args.chromium)


if __name__ == "__main__":
    main()
