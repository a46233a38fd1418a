"""Objects with many optional properties, whose compiled grammars are large."""

from __future__ import annotations

import json

import pytest
from guideway import Engine, FinishReason, JsonSchema, SamplingParams


@pytest.mark.slow
def test_an_object_of_400_optional_properties_is_answered() -> None:
    names = [f"p{i}" for i in range(400)]
    schema = {"type": "object", "properties": {name: {"type": "string", "maxLength": 4} for name in names}}
    with Engine("demo", grammar=("xgrammar",)) as engine:
        params = SamplingParams(max_tokens=64, constraint=JsonSchema(json.dumps(schema)))
        (result,) = engine.generate("Some of them.", params)
    assert result.error is None
    assert result.strategy == "xgrammar"
    assert result.finish_reason is FinishReason.STOP
    assert json.loads(result.text).keys() <= set(names)
