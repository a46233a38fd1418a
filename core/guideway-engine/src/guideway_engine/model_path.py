"""Finding the folder of a model and checking it."""

from __future__ import annotations

from pathlib import Path

from guideway.errors import InvalidConfiguration, PluginNotFound
from guideway.plugins import Plugins
from guideway.plugins.building import building

from guideway_engine.model_folder import LoadFormat, check_files, check_weights

__all__ = ["model_path"]


def model_path(model: str, plugins: Plugins, load_format: LoadFormat | None = None) -> Path:
    """Return the folder of an installed model component or of a path, after checking its files; nothing is loaded
    before that, here or in a worker. Pass `load_format` if the weights will be loaded too. Raises
    `InvalidConfiguration`."""
    folder = _find(model, plugins)
    check_files(folder)
    if load_format is not None:
        check_weights(folder, load_format)
    return folder


def _find(model: str, plugins: Plugins) -> Path:
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
