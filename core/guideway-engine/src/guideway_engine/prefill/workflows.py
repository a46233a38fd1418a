"""The workflows ``embed``, ``rerank`` and ``classify``: the models they serve, their parts and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from guideway.api.options import Range
from guideway.api.workflow import ModelFolder, Workflow

from guideway_engine.prefill.families import has_head, max_length, num_labels, why_no_encoder
from guideway_engine.prefill.sentence_transformers import recipe_of, why_no_score, why_not_pooled, why_prompted

__all__ = ["WORKFLOWS", "EmbedOptions", "PrefillOptions"]

PACKAGE = "guideway_engine.prefill"

Positive = Annotated[int, Range(1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillOptions:
    """Options of every workflow that only prefills."""

    truncate: Literal["refuse", "right", "left"] = "refuse"
    """Policy for an input longer than the context, unless a call sets it: ``refuse`` it, or cut its ``right`` or its
    ``left`` end. In a pair the second text is cut."""
    max_input_bytes: Positive = 16 << 20
    """Maximum number of bytes of text of one input; larger ones are refused before they are tokenized."""
    max_step_tokens: Positive = 8192
    """Maximum number of tokens of a step; a longer input gets its own step."""
    max_step_requests: Positive = 128
    """Maximum number of inputs of a step."""
    attention: str = "auto"
    """Name of the attention backend or ``auto``, as for `Forward`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedOptions(PrefillOptions):
    """Options of ``embed``. The defaults None follow the model's sentence-transformers files; without such files
    vectors are the mean, or the last token of a decoder, normalized, without a prompt."""

    pooling: Literal["mean", "cls", "last"] | None = None
    """Pooling of token vectors: their ``mean``, the first (``cls``) or the ``last`` one."""
    normalize: bool | None = None
    """True if vectors are scaled to length 1."""
    prompt: str | None = None
    """Text before each text, such as ``"query: "``; None: the default prompt of the model's files."""


class _Prefill(Workflow):
    """Base of the three workflows, with their shared parts."""

    parts: ClassVar[Mapping[str, str]] = {
        "input_processor": f"{PACKAGE}.inputs:TextInputs",
        "request_processor": f"{PACKAGE}.requests:Tokenizing",
        "scheduler": f"{PACKAGE}.scheduler:PrefillScheduler",
        "step_builder": f"{PACKAGE}.steps:RaggedSteps",
        "runner": f"{PACKAGE}.runner:HeadRunner",
    }
    options: ClassVar[type] = PrefillOptions

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        return max_length(model)


class EmbedWorkflow(_Prefill):
    """Computes one vector per text."""

    contract = "1.0"
    name = "embed"
    tasks = ("embed",)
    options = EmbedOptions
    parts: ClassVar[Mapping[str, str]] = {
        **_Prefill.parts,
        "runner": f"{PACKAGE}.runner:PoolingRunner",
        "output_processor": f"{PACKAGE}.outputs:Embeddings",
    }

    @classmethod
    def default_length(cls, model: ModelFolder) -> int:
        return min(max_length(model), recipe_of(model).max_length or max_length(model))

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        if has_head(model):
            return f"{model.architecture} gives labels and no vectors; use {' or '.join(_of_head(model))}"
        return why_no_encoder(model) or why_not_pooled(model)


class RerankWorkflow(_Prefill):
    """Scores a query and a document, read together."""

    contract = "1.0"
    name = "rerank"
    tasks = ("rerank",)
    parts: ClassVar[Mapping[str, str]] = {**_Prefill.parts, "output_processor": f"{PACKAGE}.outputs:Scores"}

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        if not has_head(model):
            return f"{model.architecture} is no sequence classifier, which gives a pair of texts a score"
        if num_labels(model) != 1:
            return f"it has {num_labels(model)} labels, and a cross-encoder has one; use classify"
        return why_no_encoder(model) or why_no_score(model)


class ClassifyWorkflow(_Prefill):
    """Labels a text or a pair of texts."""

    contract = "1.0"
    name = "classify"
    tasks = ("classify",)
    parts: ClassVar[Mapping[str, str]] = {**_Prefill.parts, "output_processor": f"{PACKAGE}.outputs:Classifications"}

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        if not has_head(model):
            return f"{model.architecture} is no sequence classifier"
        if num_labels(model) < 2:
            return "it has a single label, which is a score; use rerank"
        if model.config.get("problem_type") == "regression":
            return "its problem_type is regression: its outputs are numbers, and no labels of which one is likeliest"
        return why_no_encoder(model) or why_prompted(model)


def _of_head(model: ModelFolder) -> list[str]:
    return ["rerank"] if num_labels(model) == 1 else ["classify"]


WORKFLOWS: Mapping[str, type[Any]] = {cls.name: cls for cls in (EmbedWorkflow, RerankWorkflow, ClassifyWorkflow)}
