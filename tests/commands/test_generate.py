"""What a process of `glassformer generate` imports, and does not."""

from __future__ import annotations

import subprocess
import sys

ROOMS = {"commands", "core", "families", "fast", "formats"}
"""The rooms that a plain continuation enters: whole."""
PLACES = {"cli", "scale", "scale.parallel", "sight", "sight.labels", "sight.text_table"}
"""The modules of other rooms, none of which imports torch."""
OTHERS = {"sympy", "torch._dynamo", "torch._inductor", "pydantic", "transformers", "matplotlib"}


def test_a_continuation_imports_no_more_than_it_runs():
    code = (
        "import gc, sys; from glassformer.cli import main\n"
        "main(['generate', 'tiny', 'x', '--max-new', '1', '--temperature', '0'])\n"
        "print(*sys.modules, gc.isenabled(), gc.get_freeze_count() > 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    *modules, enabled, frozen = run.stdout.splitlines()[-1].split()
    assert not OTHERS & {*modules}
    names = [name.removeprefix("glassformer.") for name in modules if "glassformer." in name]
    assert "core.nn" in names
    assert {name for name in names if name.partition(".")[0] not in ROOMS} <= PLACES
    # torch was imported without the collector, which runs afterwards (fast/torch_import.py)
    assert (enabled, frozen) == ("True", "True")
