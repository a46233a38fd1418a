"""The workflow ``decode``: which models it serves, and with which parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from guideway.api.workflow import ModelFolder, Workflow
from guideway.errors import InvalidConfiguration

from guideway_engine.settings import DECODE

__all__ = ["DecodeWorkflow", "is_causal"]

PACKAGE = "guideway_engine"


class DecodeWorkflow(Workflow):
    """Text, token by token.

    A request is in many steps and its sequences keep their state between them, so that the parts have methods of their
    own: what replaces one derives from the class that is named here, not from that of `guideway.api.workflow`.
    """

    contract = "1.0"
    name = DECODE
    tasks = ("generate",)
    parts: ClassVar[Mapping[str, str]] = {
        "input_processor": f"{PACKAGE}.decoding.inputs:DecodeInputs",
        "request_processor": f"{PACKAGE}.decoding.requests:DecodeRequests",
        "scheduler": f"{PACKAGE}.scheduling.scheduler:Scheduler",
        "step_builder": f"{PACKAGE}.scheduling.steps:DecodeSteps",
        "runner": f"{PACKAGE}.worker:Worker",
        "output_processor": f"{PACKAGE}.scheduling.outputs:DecodeOutputs",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        if is_causal(model):
            return None
        # slow to import, and few models have a class of another name
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        if model.architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            return None
        return "it is not a causal language model"

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        positions = model.config.get("max_position_embeddings")
        if not isinstance(positions, int):
            raise InvalidConfiguration(
                "the model's configuration has no context length; set max_model_len", field="max_model_len"
            )
        return positions


def is_causal(model: ModelFolder) -> bool:
    """Return whether the model may be one to generate with; `transformers` knows for sure when it loads it."""
    return model.architecture.endswith(("ForCausalLM", "LMHeadModel")) or not model.config.get("architectures")
