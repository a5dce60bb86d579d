"""Where two values of JSON differ, by the path of each."""

from __future__ import annotations

import pytest

from glassformer.families.differences import differences

SIDES = [
    ({"a": 1, "b": [1, {"c": 2}]}, {"a": 1, "b": [1, {"c": 2}]}, []),
    ({"a": 1}, {"b": 2}, [("a", 1, None), ("b", None, 2)]),
    ({"a": {"type": "X", "n": 1}}, {"a": {"type": "X", "n": 2}}, [("a.n", 1, 2)]),
    ({"a": {"type": "X"}}, {"a": {"type": "Y"}}, [("a", {"type": "X"}, {"type": "Y"})]),
    ({"a": [1, {"n": 2}, 3]}, {"a": [1, {"n": 5}, 4]}, [("a.1.n", 2, 5), ("a.2", 3, 4)]),
    ({"a": [1]}, {"a": [1, 2]}, [("a", [1], [1, 2])]),
    (1, 2, [("", 1, 2)]),
]


@pytest.mark.parametrize("actual, reference, result", SIDES)
def test_each_value_that_differs_is_told_with_its_path(actual, reference, result):
    assert list(differences(actual, reference)) == result
