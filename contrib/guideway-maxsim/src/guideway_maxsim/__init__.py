"""Late interaction, as in ColBERT: query and document pass through an encoder separately, and every token of the query
is matched with the closest token of the document. The score is the sum of their cosines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from guideway.api import ModelFolder, Workflow, hookimpl
from guideway.api.options import Range

__all__ = ["MaxSimOptions", "MaxSimWorkflow"]

Positive = Annotated[int, Range(1)]

FAMILIES = ("bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSimOptions:
    """The options of ``workflow.maxsim``."""

    truncate: Literal["refuse", "right"] = "refuse"
    """The treatment of a document that is longer than the model's context: ``refuse`` it, or cut off its ``right`` end.
    A query is never cut."""
    max_step_tokens: Positive = 8192
    """Maximum tokens of a step, including the queries."""
    max_step_requests: Positive = 64
    """Maximum pairs of a step."""


class MaxSimWorkflow(Workflow):
    """Scores pairs of a query and a document. It serves ``rerank``: `Engine.rerank`, ``guideway rerank`` and
    ``/v1/rerank`` use it."""

    contract = "1.0"
    name = "maxsim"
    tasks = ("rerank",)
    options = MaxSimOptions
    parts: ClassVar[Mapping[str, str]] = {
        "input_processor": "guideway_maxsim.requests:Pairs",
        "request_processor": "guideway_maxsim.requests:BothTexts",
        "scheduler": "guideway_engine.prefill.scheduler:PrefillScheduler",
        "step_builder": "guideway_maxsim.steps:PaddedSteps",
        "runner": "guideway_maxsim.steps:Encoder",
        "output_processor": "guideway_maxsim.scores:Scores",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        kind = model.config.get("model_type")
        if kind not in FAMILIES:
            return f"it takes {', '.join(FAMILIES)}, and this is {kind}"
        if not model.architecture.endswith(("Model", "ForMaskedLM")):
            return f"{model.architecture} gives labels, and no vectors of tokens"
        if not isinstance(model.config.get("max_position_embeddings"), int):
            return "its config.json does not say how many positions it has (max_position_embeddings)"
        return None

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        positions = int(model.config["max_position_embeddings"])
        if model.config["model_type"] in ("camembert", "mpnet", "roberta", "xlm-roberta"):
            positions -= 1 + int(model.config.get("pad_token_id") or 0)  # their positions begin after the padding's
        return 2 * positions


@hookimpl
def guideway_workflow() -> type[Workflow]:
    return MaxSimWorkflow
