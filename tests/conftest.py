"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def find_shared_data() -> Path | None:
    """The folder of real data, where it is there: ``GLASSFORMER_DATA``, else ``../shared/data``."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    for folder in (os.environ.get("GLASSFORMER_DATA"), beside):
        if folder and (Path(folder) / "tinyshakespeare").is_dir():
            return Path(folder)
    return None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real tokenizers, weights and corpora; the test skips where they are missing."""
    folder = find_shared_data()
    if folder is None:
        pytest.skip("needs the shared data folder: set GLASSFORMER_DATA to it")
    return folder


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests never read or fill the user's own cache."""
    os.environ["GLASSFORMER_CACHE"] = str(tmp_path_factory.mktemp("cache"))
