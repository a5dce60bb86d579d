"""Pooling, codes and the container, held against plain loops and the safetensors library."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load

from glassformer import UserError
from glassformer.sight.wire import coded, packed, pool_of, pooled


@pytest.mark.parametrize("shape", [(7, 5), (3, 10, 11), (64,), (2, 48, 48), (5, 100)])
@pytest.mark.parametrize("sizes", [(4, 4), (3, 7), (48, 48), (6,)])
def test_a_tile_shows_what_is_furthest_from_zero(shape, sizes):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    values[np.random.default_rng(1).random(shape) < 0.3] = -np.inf
    sizes = sizes[-len(shape) :]
    result = pooled(values, sizes)
    last = shape[-len(sizes) :]
    tiles = [min(size, side) for size, side in zip(sizes, last, strict=True)]
    assert result.shape == (*shape[: -len(sizes)], *tiles)
    for place in np.ndindex(*result.shape):
        cut = place[: -len(sizes)] + tuple(
            slice(i * side // n, (i + 1) * side // n)
            for i, side, n in zip(place[-len(sizes) :], last, tiles, strict=True)
        )
        inside = values[cut].ravel()
        group = inside[np.isfinite(inside)]
        assert result[place] == (max(group, key=abs) if group.size else -np.inf)


def test_one_hot_cell_of_a_million_stays():
    values = np.zeros((1, 1024, 1024), np.float32)
    values[0, 777, 333] = -3.0
    result = pooled(values, (48, 48))
    assert result.min() == -3.0 and (result != 0).sum() == 1


def test_the_container_is_what_the_library_reads_and_always_the_same():
    tensors = {
        "a": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "b": np.linspace(0, 1, 5, dtype=np.float32),
        "c": np.ones((3,), np.float16),
        "none": np.zeros((0, 4), np.float32),
    }
    data = packed(tensors, {"words": "Größe"})
    assert data == packed(dict(tensors), {"words": "Größe"})
    back = load(data)
    assert set(back) == set(tensors)
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype and np.array_equal(back[name], tensor)
    assert int.from_bytes(data[:8], "little") % 8 == 0


def test_what_is_constant_or_empty_of_numbers_has_a_code():
    for values in (np.full((2, 2), 3.0, np.float32), np.full((2, 2), -np.inf, np.float32)):
        codes, facts = coded(values, "u8")
        low, high = float(facts["min"]), float(facts["max"])
        assert codes.dtype == np.uint8 and low == high and low in (3.0, 0.0)
    large = np.array([1e9], np.float32)
    sent, facts = coded(large, "f16")
    assert sent.dtype == np.float32 and facts["as"] == "f32", (
        "what half precision cannot hold is sent whole"
    )


def test_pools_are_read_or_refused():
    assert pool_of("max:48x32") == (48, 32) and pool_of("max:7") == (7,) and pool_of(None) is None
    for wrong in (
        "mean:3",
        "max:",
        "max:3x",
        "max:-1",
        "max:1x2x3",
        "max:0",
        "max:9999999",
        "max:٣",
    ):
        with pytest.raises(UserError):
            pool_of(wrong)


def test_nan_and_minus_infinity_are_told_apart():
    """NaN stands in whatever tile has one, what is hidden only where a tile has nothing else; bytes
    hold no NaN."""
    values = np.array([[1.0, -np.inf, -np.inf, -3.0], [np.nan, 2.0, -np.inf, -np.inf]], np.float32)
    result = pooled(values, (1, 2))
    assert np.isnan(result[0, 0]) and result[0, 1] == -3.0
    assert pooled(values[:, 2:], (2, 1)).tolist() == [[-3.0], [-np.inf]]
    codes, output = coded(values, "u8")
    assert output["as"] == "f32" and np.array_equal(codes, values, equal_nan=True)
    codes, output = coded(values[:1], "u8")
    assert output["hole"] == "1" and codes[0].tolist() == [255, 0, 0, 1]
