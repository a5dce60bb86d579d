"""Which build computes, and why."""

from __future__ import annotations

import pytest

from glassformer.fast.kernels import features, path, reason, shared_library, use


def test_the_best_build_computes_unless_another_is_asked_for():
    assert path() == (shared_library.builds() or ["torch"])[0]
    assert (path() in reason()) == (path() != "torch")
    with use("torch"):
        assert path() == "torch"
        assert "asked for" in reason()
        for build in shared_library.builds():
            with use(build):
                assert path() == build
    with pytest.raises(ValueError, match='no build "sse"'), use("sse"):
        pass


def test_a_build_runs_only_where_the_processor_can():
    for build in shared_library.builds():
        assert all(features()[flag] for flag in shared_library.BUILDS[build])


def test_without_a_library_torch_computes(monkeypatch):
    for cached in (shared_library.library, shared_library.builds):
        cached.cache_clear()
    monkeypatch.setattr(shared_library, "NAME", "none.so")
    try:
        assert path() == "torch"
        assert "torch" not in shared_library.builds()
        assert reason().endswith(".")
    finally:
        for cached in (shared_library.library, shared_library.builds):
            cached.cache_clear()
