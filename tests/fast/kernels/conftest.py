"""Every build that this processor can run, and torch's path."""

from __future__ import annotations

import pytest

from glassformer.fast.kernels import use
from glassformer.fast.kernels.shared_library import BUILDS, builds


@pytest.fixture(params=[*BUILDS, "torch"])
def build(request):
    """Inside, this build packs and computes."""
    if request.param != "torch" and request.param not in builds():
        pytest.skip(f"{request.param}: not compiled, or not for this processor")
    with use(request.param):
        yield request.param
