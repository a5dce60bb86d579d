"""The example of the build is what the server answers today: run `python benchmarks/example.py`
where it is not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

import served

EXAMPLE = Path(__file__).parents[2] / "src/glassformer/static/example.trace"


def check_equal(saved: Any, now: Any, places: str) -> None:
    """Equal but for the last digits of numbers, which another processor rounds otherwise."""
    if isinstance(saved, dict):
        assert saved.keys() == now.keys(), places
        for key in saved.keys() - {"ms", "loaded", "found", "dtype", "src", "python"}:
            check_equal(saved[key], now[key], f"{places} {key}")
    elif isinstance(saved, list):
        assert len(saved) == len(now), places
        for at, (item, second) in enumerate(zip(saved, now, strict=True)):
            check_equal(item, second, f"{places} {at}")
    elif isinstance(saved, float):
        assert saved == pytest.approx(now, rel=1e-4, abs=1e-5), places
    else:
        assert saved == now, places


def test_every_answer_of_the_example_is_the_servers():
    raw = gzip.decompress(EXAMPLE.read_bytes())
    assert str(EXAMPLE.parents[1]).encode() not in raw, "it names no folder of a machine"
    tensors, client = served.tensors(raw), served.client(served.page())
    data = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    assert len(tensors) > 40 and EXAMPLE.stat().st_size < 200_000
    assert f'{{"cut":true,"model":"{data["model"]}","text":"{data["text"]}"}}' in " ".join(tensors)
    # the run before what is asked of it
    runs = sorted(tensors, key=lambda request: "api/runs {" not in request)
    for request in runs:
        method, path, *body = request.split(" ", 2)
        answer = (
            client.get(f"/{path}")
            if method == "GET"
            else client.post(f"/{path}", json=json.loads(body[0]))
        )
        assert answer.status_code == 200, (request, answer.text)
        content = tensors[request].tobytes()
        if answer.headers["content-type"] == "application/json":
            check_equal(json.loads(content), answer.json(), request)
        elif "api/vocab" in request:
            assert content == answer.content
        else:
            now = served.tensors(answer.content)
            for name, value in served.tensors(content).items():
                close = 1 if value.dtype == np.uint8 else 1e-4 * (1 + np.abs(value).max())
                assert np.abs(value.astype("f8") - now[name].astype("f8")).max() <= close, (
                    request,
                    name,
                )
