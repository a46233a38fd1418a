"""Reading of the files that sentence-transformers writes with a model, which configure its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from guideway.api.workflow import ModelFolder

__all__ = ["Recipe", "activation_of", "is_embedder", "recipe_of", "why_no_score", "why_not_pooled", "why_prompted"]

Pooling = Literal["mean", "cls", "last"]

MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""Supported flags of ``1_Pooling/config.json``."""

NEWER: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
"""Supported values of its ``pooling_mode``, which newer files have instead."""

MODULES = ("Transformer", "Pooling", "Normalize")

PROMPTS = "config_sentence_transformers.json"
"""Name of the file with a model's prompts."""

ACTIVATIONS = ("Sigmoid", "Identity")
"""Supported torch classes for the activation between a cross-encoder's logit and its score."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Steps to compute vectors, as far as the files configure it."""

    pooling: Pooling | None = None
    normalize: bool | None = None
    max_length: int | None = None
    lower_case: bool = False
    prompt: str = ""
    """Text that is put before each text."""


def is_embedder(model: ModelFolder) -> bool:
    """Return whether sentence-transformers has written the model."""
    return model.json("modules.json") is not None


def recipe_of(model: ModelFolder) -> Recipe:
    """Return the recipe of a model for which `why_not_pooled` returns None."""
    modules = _modules(model)
    if not modules:
        return Recipe()
    names = [name for name, _ in modules]
    said = model.json("sentence_bert_config.json") or {}
    length = said.get("max_seq_length")
    return Recipe(
        pooling=_modes(model, modules)[0],
        normalize="Normalize" in names,
        max_length=length if isinstance(length, int) else None,
        lower_case=bool(said.get("do_lower_case")),
        prompt=_prompts(model)[name] if (name := _default_prompt(model)) else "",
    )


def why_not_pooled(model: ModelFolder) -> str | None:
    """Return why vectors cannot be computed as the files configure; None if they can, or if there are no such files."""
    modules = _modules(model)
    unknown = [name for name, _ in modules if name not in MODULES]
    if unknown:
        return f"its modules.json has a module {unknown[0]}, and known are {', '.join(MODULES)}"
    if modules:
        modes = _modes(model, modules)
        if len(modes) != 1:
            found = f"{len(modes)} of these" if modes else "none of these"
            return f"its pooling must be one of {', '.join(MODES.values())}, and its file asks for {found}"
        return _why_not_prompted(model)
    return None


def activation_of(model: ModelFolder) -> str:
    """Return the class of the activation between a cross-encoder's logit and its score, one of `ACTIVATIONS` if
    `why_no_score` returns None."""
    newer = model.config.get("sentence_transformers")
    said = newer.get("activation_fn") if isinstance(newer, Mapping) else None
    path = str(said or model.config.get("sbert_ce_default_activation_function") or "torch.nn.Sigmoid")
    name = path.rpartition(".")[2]
    return name if path.startswith("torch.nn.") and name in ACTIVATIONS else path


def why_no_score(model: ModelFolder) -> str | None:
    """Return why a cross-encoder's score cannot be computed as its files configure; None if it can."""
    activation = activation_of(model)
    if activation not in ACTIVATIONS:
        return f"its config.json asks for the activation {activation!r}, and known are torch's {', '.join(ACTIVATIONS)}"
    return why_prompted(model)


def why_prompted(model: ModelFolder) -> str | None:
    """Return why a model with a head cannot be served as its files configure, namely its default prompt; None if it has
    none."""
    name = _default_prompt(model)
    return f"its {PROMPTS} names the default prompt {name!r}, and only embed takes prompts" if name else None


def leaves_prompt_out(model: ModelFolder) -> bool:
    """Return whether the model's pooling excludes the tokens of a prompt (``include_prompt``)."""
    return _pooling(model, _modules(model)).get("include_prompt") is False


def _why_not_prompted(model: ModelFolder) -> str | None:
    name, prompts = _default_prompt(model), _prompts(model)
    if not name:
        return None
    if not isinstance(prompts.get(name), str):
        known = ", ".join(map(repr, prompts)) or "none"
        return f"the default_prompt_name in its {PROMPTS} is {name!r}, and its prompts are {known}"
    return None


def _default_prompt(model: ModelFolder) -> str:
    """Return the name of the prompt that is put before each text; empty if there is none."""
    return str((model.json(PROMPTS) or {}).get("default_prompt_name") or "")


def _prompts(model: ModelFolder) -> dict[str, Any]:
    """Return the model's prompts, by name."""
    return dict((model.json(PROMPTS) or {}).get("prompts") or {})


def _modules(model: ModelFolder) -> list[tuple[str, str]]:
    """Return the class and folder of each module, in order."""
    modules: list[dict[str, Any]] = model.json("modules.json") or []
    return [(str(module.get("type")).rpartition(".")[2], str(module.get("path", ""))) for module in modules]


def _modes(model: ModelFolder, modules: list[tuple[str, str]]) -> list[Pooling]:
    """Return the configured modes of pooling: exactly one if supported."""
    said = _pooling(model, modules)
    if isinstance(mode := said.get("pooling_mode"), str):
        return [NEWER[mode]] if mode in NEWER else []
    asked = [key for key, value in said.items() if key.startswith("pooling_mode_") and value]
    return [MODES[key] for key in asked] if all(key in MODES for key in asked) else []


def _pooling(model: ModelFolder, modules: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the content of the pooling's configuration file; empty if there is none."""
    path = next((path for name, path in modules if name == "Pooling"), None)
    return {} if path is None else model.json(str(Path(path, "config.json"))) or {}
