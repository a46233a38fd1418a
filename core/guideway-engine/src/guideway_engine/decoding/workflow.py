"""The workflow ``decode``: the models it serves, and its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from guideway.api.workflow import ModelFolder, Workflow
from guideway.errors import InvalidConfiguration

from guideway_engine.settings import DECODE

__all__ = ["DecodeWorkflow", "is_causal"]

PACKAGE = "guideway_engine"


class DecodeWorkflow(Workflow):
    """Generation of text, token by token.

    A request takes many steps, and its sequences keep state between them, so its parts have methods of their own: a
    replacement derives from the class named here, not from the base in `guideway.api.workflow`.
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
        # slow to import, and few models need it
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
    """Return whether the model can probably generate text; `transformers` decides when it loads the model."""
    return model.architecture.endswith(("ForCausalLM", "LMHeadModel")) or not model.config.get("architectures")
