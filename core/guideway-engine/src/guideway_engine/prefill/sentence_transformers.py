"""The files that sentence-transformers writes beside a model, which say how its vectors are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from guideway.api.workflow import ModelFolder

__all__ = ["Recipe", "is_embedder", "recipe_of", "why_not_pooled"]

Pooling = Literal["mean", "cls", "last"]

MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""The flags of ``1_Pooling/config.json`` that are understood."""

NEWER: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
"""The values of its ``pooling_mode``, which newer files have instead."""

MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The way to a vector, as far as the files say."""

    pooling: Pooling | None = None
    normalize: bool | None = None
    max_length: int | None = None
    lower_case: bool = False


def is_embedder(model: ModelFolder) -> bool:
    """Return whether sentence-transformers has written the model."""
    return model.json("modules.json") is not None


def recipe_of(model: ModelFolder) -> Recipe:
    """The recipe of a model that `why_not_pooled` has nothing against."""
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
    )


def why_not_pooled(model: ModelFolder) -> str | None:
    """Why vectors cannot be made as the files say; None if they can, or if there are none."""
    modules = _modules(model)
    unknown = [name for name, _ in modules if name not in MODULES]
    if unknown:
        return f"its modules.json has a module {unknown[0]}, and known are {', '.join(MODULES)}"
    if modules:
        modes = _modes(model, modules)
        if len(modes) != 1:
            found = f"{len(modes)} of these" if modes else "none of these"
            return f"its pooling must be one of {', '.join(MODES.values())}, and its file asks for {found}"
    return None


def _modules(model: ModelFolder) -> list[tuple[str, str]]:
    """The class and folder of each module, in order."""
    modules: list[dict[str, Any]] = model.json("modules.json") or []
    return [(str(module.get("type")).rpartition(".")[2], str(module.get("path", ""))) for module in modules]


def _modes(model: ModelFolder, modules: list[tuple[str, str]]) -> list[Pooling]:
    """The ways of pooling it asks for, one where it is understood."""
    path = next((path for name, path in modules if name == "Pooling"), None)
    if path is None:
        return []
    said: dict[str, Any] = model.json(f"{path}/config.json") or {}
    if isinstance(mode := said.get("pooling_mode"), str):
        return [NEWER[mode]] if mode in NEWER else []
    asked = [key for key, value in said.items() if key.startswith("pooling_mode_") and value]
    return [MODES[key] for key in asked] if all(key in MODES for key in asked) else []
