"""Loading of models and tokenizers from a folder with `transformers`, offline and without running code of the model.

Whatever `transformers` accepts with a warning and random weights is refused here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from logging import ERROR
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, cast

import torch
from guideway.errors import InvalidConfiguration
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

__all__ = ["existing_folder", "fast_tokenizer", "first_line", "refused", "weights"]


def existing_folder(path: str | PathLike[str]) -> Path:
    """Return the folder `path` if it has a configuration. Raises `InvalidConfiguration`."""
    folder = Path(path)
    if not folder.is_dir():
        reason = "is not a folder" if folder.exists() else "does not exist"
        raise refused(folder, f"{reason}; give the folder of a model in the format of transformers")
    if not (folder / "config.json").is_file():
        raise refused(folder, "is no model folder: it has no config.json")
    return folder


def fast_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Return the model's fast tokenizer. Raises `InvalidConfiguration` if it has none."""
    try:
        # mistral_format: otherwise another tokenizer is used where mistral-common is installed
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, mistral_format=False
        )
    except Exception as error:
        raise refused(folder, f"has no fast tokenizer (tokenizer.json): {first_line(error)}") from error
    if not tokenizer.is_fast:
        raise refused(folder, f"has no fast tokenizer (tokenizer.json), only a {type(tokenizer).__name__}")
    return cast("PreTrainedTokenizerFast", tokenizer)


def weights(
    auto: Any, folder: Path, dtype: str | torch.dtype, device: str | torch.device, may_lack: Collection[str] = ()
) -> PreTrainedModel:
    """Return the model in `folder`, loaded with the `transformers` class `auto`, on `device`, ready to run. Weights
    whose names begin with one of `may_lack` may be missing. Raises `InvalidConfiguration`."""
    resolved, target = _dtype(dtype), _device(device)
    model = _load(auto, folder, resolved, may_lack)
    try:
        model.to(target)  # type: ignore[arg-type]
    # torch raises AssertionError for a device it was built without, RuntimeError and others for a full or absent one
    except Exception as error:
        raise InvalidConfiguration(f"the model cannot be moved to {str(target)!r}: {error}", field="device") from error
    return model


def _dtype(dtype: str | torch.dtype) -> torch.dtype | str:
    resolved = getattr(torch, dtype, None) if isinstance(dtype, str) and dtype != "auto" else dtype
    if resolved == "auto" or (isinstance(resolved, torch.dtype) and resolved.is_floating_point):
        return resolved
    raise InvalidConfiguration(f"dtype must be auto, float32, float16 or bfloat16, not {str(dtype)!r}", field="dtype")


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidConfiguration(f"{device!r} is no device torch knows: {error}", field="device") from error


def _load(auto: Any, folder: Path, dtype: torch.dtype | str, may_lack: Collection[str]) -> PreTrainedModel:
    try:
        with _quiet():
            config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            # use the implementations of `transformers`: a name in config.json may be code on the hub, run where kernels
            # is installed
            config._attn_implementation = config._experts_implementation = None
            loaded: Any = auto.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except Exception as error:
        raise refused(folder, f"has weights that cannot be loaded: {first_line(error)}") from error
    model, info = cast("tuple[PreTrainedModel, dict[str, set[str]]]", loaded)
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(tuple(may_lack)))
    if missing:
        raise refused(folder, f"lacks {len(missing)} of the model's weights, the first being {missing[0]!r}")
    model.train(False)
    return model


_QUIET = Lock()
"""Held while the logging of `transformers` is changed, which affects the whole process."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress progress bars and the report on weights of `transformers`; weights are checked here."""
    with _QUIET:
        shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
        if shown:
            logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        logging.set_verbosity(max(verbosity, ERROR))
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if shown:
                logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def first_line(error: Exception) -> str:
    """Return the first line of the message of `error`."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def refused(folder: Path, reason: str) -> InvalidConfiguration:
    """Return the error for a model that cannot be loaded."""
    return InvalidConfiguration(f"model {str(folder)!r} {reason}", field="model")
