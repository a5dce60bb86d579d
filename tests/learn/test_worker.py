"""A notebook of an exercise as learners leave it, and code that waits: what the check says, and
where."""

from __future__ import annotations

import re
import time

import pytest

from folders import read_json, write_json
from glassformer.learn import starting
from glassformer.learn.checking import Checker
from glassformer.learn.exercise import find


@pytest.mark.parametrize(
    "wait",
    [
        "    import time\n    while True: time.sleep(0.01)\n",
        "    import threading\n    one = threading.Lock()\n    one.acquire(), one.acquire()\n",
        "    import os\n    os.read(os.pipe()[0], 1)\n",
        "    import subprocess\n    subprocess.run(['sleep', '1000'])\n",
    ],
)
def test_what_waits_for_ever_is_stopped_by_the_wall(wait, checker, tmp_path):
    start = time.monotonic()
    path = tmp_path / "mine.py"
    path.write_text(f"# exercise: causal-mask\ndef causal_mask(queries, keys):\n{wait}")
    result = checker.check(path, seconds=0.3)
    assert (
        result.state == "stopped"
        and result.where in ("line 4", "line 5")
        and time.monotonic() - start < 20
    ), result
    by_the_wall = re.search(r"or 1\.5 by the clock: it computed (\d\.\d) and", result.message)
    assert by_the_wall and float(by_the_wall[1]) < 0.3 and "What does it wait for" in result.look, (
        result
    )


def test_a_seed_repeats_what_the_learners_code_draws_too(checker, tmp_path):
    """In another worker as well; and its draws are not the inputs."""
    slip = find("lora").solution.replace(
        "torch.zeros(linear.out_features, rank)", "torch.ones(linear.out_features, rank)"
    )
    path = tmp_path / "mine.py"
    path.write_text(f"# exercise: lora\n{slip}")
    message = checker.check(path, seed=1).message
    with Checker() as another:
        assert another.check(path, seed=1).message == message
    assert "before training[" in message


def test_a_notebook_as_learners_leave_it(checker, tmp_path, terminal):
    """Cells of their own before and after: magics, pictures, slips; each is told by its cell and
    line."""
    path = starting.write(find("causal-mask"), tmp_path, as_notebook=True)
    data = read_json(path)
    at = next(at for at, cell in enumerate(data["cells"]) if cell["cell_type"] == "code")
    individual = data["cells"][at]
    solved = f"# exercise: causal-mask\n{find('causal-mask').solution}"

    def verdict_of(before, after):
        around = [
            {**individual, "id": name, "source": code}
            for name, code in (("a", before), ("b", solved), ("c", after))
        ]
        write_json(
            path, {**data, "cells": [*data["cells"][:at], *around, *data["cells"][at + 1 :]]}
        )
        return checker.check(path)

    before = "%matplotlib inline\nfiles = !ls\nimport torch\ntorch.tril?"
    assert verdict_of(before, "%%time\nseen = causal_mask(3, 3)\ndisplay(seen)").state == "passed"
    assert verdict_of("rest = (7\n% 4)", "%%bash\nexit 1").state == "passed"
    late = verdict_of("import torch", "%%time\nseen = causal_mask(3, 3)\nseen.nothing")
    assert (late.state, late.where, late.code) == (
        "error",
        "code cell 3, line 3",
        "seen.nothing",
    ), late
    typo = verdict_of("x = 1\n", "y = (1,\n")
    assert (typo.state, typo.where) == (
        "error",
        "code cell 3, line 1",
    ) and "was never closed" in typo.message, typo
    assert "code cell 3, line 1: '(' was never closed" in terminal(f"learn check {path}", code=1)
