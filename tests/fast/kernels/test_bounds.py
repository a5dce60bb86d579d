"""No kernel reads or writes beyond its tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.fast.kernels.shared_library import builds

TESTS = Path(__file__).parents[2]
FILES = [f"fast/kernels/test_{name}.py" for name in ("matrices", "pages", "stack")]


@pytest.mark.parametrize("side", ["end", pytest.param("front", marks=pytest.mark.slow)])
def test_nothing_beyond_a_tensor_is_touched(side):
    """The tests of the kernels again, with forbidden memory beside every tensor."""
    if not builds():
        pytest.skip("needs the compiled kernels: python hatch_build.py")
    paths = os.pathsep.join([str(TESTS), *sys.path])
    command = [sys.executable, "-m", "pytest", "-p", "guarded", "-q", "-x", "-k", "bit_for_bit"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *FILES],
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": paths, "GUARD": side, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
