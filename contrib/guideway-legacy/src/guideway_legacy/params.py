"""The parameters that a vLLM processor is told about its request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from guideway.api import InvalidRequest, SamplingParams

__all__ = ["VllmParams"]

PASSED_ON = ("max_tokens", "min_p", "min_tokens", "seed", "temperature", "top_k", "top_p")
"""Sampling parameters that mean the same in vLLM."""


class VllmParams(SimpleNamespace):
    """Stands in for ``vllm.SamplingParams``: `extra_args`, and what the two have in common."""

    extra_args: dict[str, Any]

    @staticmethod
    def of(params: SamplingParams, extra_args: Mapping[str, Any], field: str) -> VllmParams:
        """Raises `InvalidRequest` if `extra_args` is not JSON, for it goes to the worker."""
        common = {name: getattr(params, name) for name in PASSED_ON if hasattr(params, name)}
        found = VllmParams(extra_args=dict(extra_args), **common)
        try:
            return VllmParams.from_json(found.to_json())
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"extra_args must be JSON: {error}", field=field) from error

    @staticmethod
    def from_json(text: bytes) -> VllmParams:
        """Read what `to_json` wrote."""
        return VllmParams(**json.loads(text))

    def to_json(self) -> bytes:
        """As text that crosses to the worker."""
        return json.dumps(vars(self)).encode()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"guideway hands vLLM processors {', '.join(sorted(vars(self)))} of the sampling parameters, not {name!r}"
        )
