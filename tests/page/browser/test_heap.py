"""A page that is used for long, and two of them: what it holds does not grow with the runs that it
has shown."""

from __future__ import annotations

from typing import Any

import pytest

RUNS, MOST = 50, 20 << 20  # bytes of the heap
DIGEST = (
    "() => performance.getEntriesByType('resource').filter(one => "
    "one.name.endsWith('api/runs')).length"
)


def heap(tab: Any, session: Any) -> int:
    """Bytes in use once what nobody holds is gone."""
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


def run(tab: Any, text: str) -> None:
    """Read a text, and wait until its own strip of tokens and a number of it are there."""
    before = tab.evaluate(DIGEST)
    tab.fill("#prompt", text)
    tab.press("#prompt", "Enter")
    tab.wait_for_function(f"before => ({DIGEST})() > before", arg=before)
    tab.wait_for_selector("main .num[data-v]")


@pytest.mark.slow
def test_fifty_runs_leave_no_more_than_they_may_and_a_second_tab_its_own(site, tab):
    second = tab.context.new_page()
    session = tab.context.new_cdp_session(tab)
    for item in (tab, second):
        item.goto(f"{site.url}#inside?m=llama")
        item.wait_for_selector("main .num[data-v]")
    tab.bring_to_front()
    tab.evaluate("() => performance.setResourceTimingBufferSize(5000)")
    words = ("the cat", "a dog", "the mat", "a log")
    for at in range(4):  # every part of the page has been used once
        run(tab, f"{words[at]} sat")
    before = heap(tab, session)
    for at in range(RUNS):
        run(tab, f"{words[at % 4]} sat on {words[at // 4 % 4]} {at}")
    grown = heap(tab, session) - before
    assert grown < MOST, grown
    run(second, "a mat and a log")
    assert second.input_value("#prompt") == "a mat and a log" and "49" in tab.input_value("#prompt")
    second.close()
    run(tab, "the cat sat")  # and the first goes on
