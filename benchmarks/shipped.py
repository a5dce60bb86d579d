"""Put a trained run into the package as the model that `glassformer page` opens without arguments:
fp16, 2 MB at most.

glassformer train runs/tiny-page.toml --out out/tiny-page
python benchmarks/shipped.py out/tiny-page
"""

from __future__ import annotations

import sys
from pathlib import Path

from glassformer.formats import store

TARGET = Path(__file__).parents[1] / "src" / "glassformer" / "models" / "tiny"
MOST = 2 << 20


def main(run: str) -> None:
    """Write the model of the run's best checkpoint."""
    model, tokenizer = store.load(run, dtype="float16")
    store.save(model, TARGET, tokenizer)
    size = sum(path.stat().st_size for path in TARGET.iterdir())
    print(f"{TARGET}: {size:,} bytes")
    if size > MOST:
        sys.exit(f"That is more than {MOST:,}; make it smaller.")


if __name__ == "__main__":
    main(*sys.argv[1:])
