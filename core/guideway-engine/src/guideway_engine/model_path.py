"""Find the folder of a model."""

from __future__ import annotations

from pathlib import Path

from guideway.errors import InvalidConfiguration, PluginNotFound
from guideway.plugins import Plugins
from guideway.plugins.building import building

__all__ = ["model_path"]


def model_path(model: str, plugins: Plugins) -> Path:
    """The folder of an installed model component or of a path. Raises `InvalidConfiguration`."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if model.startswith((".", "/", "~", "\\")):
        raise InvalidConfiguration(f"there is no model {model!r}: there is no such folder", field="model")
    try:
        component = plugins.load("model", model)
    except PluginNotFound as error:
        if "/" in model:
            why = (
                "it is neither a folder nor an installed component, and guideway downloads nothing; fetch it first "
                f"(hf download {model} --local-dir FOLDER) and give the folder"
            )
        else:
            why = f"it is no folder, and {str(error)[:1].lower()}{str(error)[1:]}"
        raise InvalidConfiguration(f"there is no model {model!r}: {why}", field="model") from error
    with building(f"model.{component.name}"):
        return component().path()
