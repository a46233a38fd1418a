"""The sampling parameters that a vLLM processor gets for its request."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from guideway.api import InvalidRequest, SamplingParams, Vocabulary

__all__ = ["LACKING", "Lacking", "VllmParams"]

PASSED_ON = (
    "frequency_penalty",
    "ignore_eos",
    "logprobs",
    "max_tokens",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "prompt_logprobs",
    "repetition_penalty",
    "seed",
    "temperature",
    "top_k",
    "top_p",
)
"""Sampling parameters that have the same meaning in vLLM."""

LACKING = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "bad_words_token_ids",
        "detokenize",
        "flat_logprobs",
        "include_stop_str_in_output",
        "logprob_token_ids",
        "output_kind",
        "output_text_buffer_length",
        "prompt_logprob_start",
        "prompt_logprob_token_ids",
        "repetition_detection",
        "routed_experts_prompt_start",
        "skip_clone",
        "skip_reading_prefix_cache",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stream_interval",
        "structured_outputs",
        "thinking_token_budget",
        "trace_decode_token_ids",
        "watermarking",
    }
)
"""Attributes in vLLM that guideway does not know for every request in every host."""


class Lacking(AttributeError):
    """A processor read an attribute that it is not given."""


class VllmParams(SimpleNamespace):
    """A stand-in for ``vllm.SamplingParams``, with the values that vLLM would have."""

    extra_args: dict[str, Any]

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._missed: set[str] = set()

    @staticmethod
    def of(params: SamplingParams, vocabulary: Vocabulary, extra_args: Mapping[str, Any], field: str) -> VllmParams:
        """Return the parameters for `params`. Raises `InvalidRequest` if `extra_args` is not JSON: it is sent to the
        worker."""
        values = {name: getattr(params, name) for name in PASSED_ON}
        if params.temperature == 0:  # vLLM's values for greedy sampling
            values |= {"min_p": 0.0, "top_k": 0, "top_p": 1.0}
        values["n"] = 1  # in vLLM each sequence is a request of its own
        values["num_logprobs"] = params.logprobs
        values["sampling_type"] = 0 if params.temperature == 0 else 1 if params.seed is None else 2
        values["logit_bias"] = list(params.logit_bias.items())
        values["stop"], values["stop_token_ids"] = list(params.stop), list(params.stop_token_ids)
        values["all_stop_token_ids"] = sorted(vocabulary.stop_token_ids | frozenset(params.stop_token_ids))
        if params.constraint is None:
            values["structured_outputs"] = None
        if len(vocabulary.stop_token_ids) == 1:
            values["eos_token_id"] = None if params.ignore_eos else min(vocabulary.stop_token_ids)
        try:
            return VllmParams.from_json(json.dumps({**values, "extra_args": dict(extra_args)}).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"extra_args must be JSON: {error}", field=field) from error

    @staticmethod
    def from_json(text: bytes) -> VllmParams:
        """Read the result of `to_json`."""
        values = json.loads(text)
        values["logit_bias"] = dict(values["logit_bias"]) or None
        values["all_stop_token_ids"] = set(values["all_stop_token_ids"])
        return VllmParams(**values)

    def to_json(self) -> bytes:
        """Return the parameters as JSON, to be sent to the worker."""
        values = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        values["logit_bias"] = list((self.logit_bias or {}).items())
        values["all_stop_token_ids"] = sorted(self.all_stop_token_ids)
        return json.dumps(values).encode()

    def clone(self) -> VllmParams:
        """Return a deep copy, like vLLM's method."""
        return copy.deepcopy(self)

    @property
    def missed(self) -> str | None:
        """An attribute of vLLM's that was read but does not exist here, if any."""
        return min(self._missed, default=None)

    def __getattr__(self, name: str) -> Any:
        if name in LACKING or name == "eos_token_id":
            self._missed.add(name)
        known = ", ".join(sorted(each for each in vars(self) if not each.startswith("_")))
        raise Lacking(f"guideway hands vLLM processors {known} of the sampling parameters, not {name!r}", name=name)
