"""Registry of the model types that prefill-only workflows run, read only from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from guideway.api.workflow import ModelFolder
from guideway.errors import InvalidConfiguration

__all__ = ["Family", "family_of", "has_head", "max_length", "num_labels", "why_no_encoder"]

HEAD = "ForSequenceClassification"


@dataclass(frozen=True, slots=True)
class Family:
    """Facts about models of one type that their configuration does not contain."""

    causal: bool = False
    """True if a token sees only itself and the tokens before it, so the last token represents the text."""
    padding_offset: bool = False
    """True if positions begin after the id of the padding token, which reduces the number of positions for tokens."""


ENCODER, DECODER, OFFSET = Family(), Family(causal=True), Family(padding_offset=True)

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("bert", "distilbert", "electra", "modernbert"), ENCODER),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), OFFSET),
    **dict.fromkeys(("gemma", "gemma2", "llama", "mistral", "phi3", "qwen2", "qwen3"), DECODER),
}
"""Families by ``model_type``. Tests compare each with the padded forward pass of `transformers`."""


def family_of(model: ModelFolder) -> Family:
    """Return the family of a model. Raises `InvalidConfiguration` if its type is not registered."""
    family = FAMILIES.get(model.config.get("model_type", ""))
    if family is None:
        raise InvalidConfiguration(f"model {str(model.path)!r}: {_unknown(model)}", field="model")
    return family


def why_no_encoder(model: ModelFolder) -> str | None:
    """Return why the model cannot be run in one pass; None if it can."""
    if model.config.get("model_type") not in FAMILIES:
        return _unknown(model)
    if has_head(model) and family_of(model).causal and model.config.get("pad_token_id") is None:
        return "a decoder with a head for labels must say its pad_token_id, by which the last token is found"
    return None


def _unknown(model: ModelFolder) -> str:
    kind, known = model.config.get("model_type"), ", ".join(sorted(FAMILIES))
    return f"models of type {kind!r} are not in the registry, which has {known}"


def has_head(model: ModelFolder) -> bool:
    """Return whether the model classifies sequences."""
    return model.architecture.endswith(HEAD)


def num_labels(model: ModelFolder) -> int:
    """Return the number of labels of a model with a head; 2 if the configuration does not have it, as in
    `transformers`."""
    labels = model.config.get("id2label")
    return len(labels) if labels else int(model.config.get("num_labels", 2))


def max_length(model: ModelFolder) -> int:
    """Return the maximum number of tokens that the model has positions for. Raises `InvalidConfiguration` if its
    configuration does not have it."""
    positions = model.config.get("max_position_embeddings")
    if not isinstance(positions, int):
        raise InvalidConfiguration(
            f"model {str(model.path)!r} does not say how long its context is; set max_model_len", field="max_model_len"
        )
    if family_of(model).padding_offset:
        positions -= int(model.config.get("pad_token_id", 1)) + 1
    return positions
