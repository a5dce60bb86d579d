"""What clients call a model, and which one answers."""

from __future__ import annotations

import pytest

from glassformer.serve.asgi.limits import LONGEST_NAME
from glassformer.serve.asgi.replies import HttpError
from glassformer.serve.served_models import Registry, model_id


def test_a_model_is_called_after_its_folder_its_file_or_its_name(tmp_path):
    (tmp_path / "my model").mkdir()
    (tmp_path / "small.gguf").touch()
    assert model_id(str(tmp_path / "my model"), []) == "my-model"
    assert model_id(str(tmp_path / "small.gguf"), []) == "small"
    assert (
        model_id("gpt2", []) == "gpt2"
        and model_id("openai-community/gpt2", []) == "openai-community/gpt2"
    )
    assert model_id(str(tmp_path / "my model"), ["my-model", "my-model-2"]) == "my-model-3"
    (tmp_path / "…").mkdir()
    assert model_id(str(tmp_path / "…"), []) == "model"
    (tmp_path / ("a" * 255)).mkdir()
    assert len(model_id(str(tmp_path / ("a" * 255)), [])) <= LONGEST_NAME


def test_a_name_that_is_not_there_is_said_with_those_that_are():
    registry = Registry([])
    registry.entries.update(one=1, two=2)
    assert registry["two"] == 2 and registry[None] == 1
    with pytest.raises(HttpError) as result:
        registry["th\nree"]
    message = str(result.value)
    assert result.value.status == 404 and "one, two" in message and "\n" not in message
