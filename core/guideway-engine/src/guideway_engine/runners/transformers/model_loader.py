"""Loads a causal language model and its fast tokenizer from a local folder, offline and without running its code.

Everything `transformers` would let pass with a warning and random weights (a missing tensor, an encoder taken for a
decoder) is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from guideway.api.forward import ModelInfo
from guideway.errors import InvalidConfiguration
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

__all__ = ["load_model", "load_tokenizer", "model_info"]


def load_tokenizer(path: str | PathLike[str]) -> PreTrainedTokenizerFast:
    """The tokenizer of the model in the folder `path`. Raises `InvalidConfiguration` with field ``model``."""
    return _tokenizer(_model_folder(path))


def load_model(path: str | PathLike[str], dtype: str | torch.dtype, device: str | torch.device) -> PreTrainedModel:
    """The model in the folder `path`, ready to run.

    `dtype` is a floating-point type of torch or its name, or ``auto`` for the one the weights are stored in. (On a
    CPU float32 is the better choice for models of a few million parameters, whatever they are stored in: bfloat16
    decodes half as fast.) Raises `InvalidConfiguration` with field ``model``, ``dtype`` or ``device``.
    """
    resolved = _dtype(dtype)
    target = _device(device)
    model = _model(_model_folder(path), resolved)
    try:
        model.to(target)  # type: ignore[arg-type]
    # torch raises AssertionError for a device it was built without, RuntimeError and others for a full or absent one
    except Exception as error:
        raise InvalidConfiguration(f"the model cannot be moved to {str(target)!r}: {error}", field="device") from error
    return model


def model_info(model: PreTrainedModel) -> ModelInfo:
    """Collect what an engine has to know about `model` before it can make room for it."""
    config: Any = model.config.get_text_config()
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    stops = getattr(model.generation_config, "eos_token_id", None)
    return ModelInfo(
        logits_width=config.vocab_size if head is None else head.out_features,
        max_context=getattr(config, "max_position_embeddings", None),
        stop_token_ids=() if stops is None else (stops,) if isinstance(stops, int) else tuple(stops),
    )


def _model_folder(path: str | PathLike[str]) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        reason = "is not a folder" if folder.exists() else "does not exist"
        raise _refused(folder, f"{reason}; give the folder of a model in the format of transformers")
    if not (folder / "config.json").is_file():
        raise _refused(folder, "is no model folder: it has no config.json")
    _check_causal(folder)
    return folder


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


def _check_causal(folder: Path) -> None:
    try:
        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    # what is wrong with a configuration comes as errors of json, huggingface_hub, or whatever the class checks
    except Exception as error:
        raise _refused(folder, f"has a configuration transformers cannot use: {_first_line(error)}") from error
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    architectures = config.architectures or [causal]
    if causal is None or causal not in architectures:
        found = ", ".join(map(str, architectures)) if config.architectures else f"a {config.model_type} model"
        raise _refused(folder, f"holds {found}, which is not a causal language model")


def _tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise _refused(folder, f"has no fast tokenizer (tokenizer.json): {_first_line(error)}") from error
    if not tokenizer.is_fast:
        raise _refused(folder, f"has no fast tokenizer (tokenizer.json), only a {type(tokenizer).__name__}")
    return cast("PreTrainedTokenizerFast", tokenizer)


def _model(folder: Path, dtype: torch.dtype | str) -> PreTrainedModel:
    try:
        with _without_progress_bar():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, local_files_only=True, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:
        raise _refused(folder, f"has weights that cannot be loaded: {_first_line(error)}") from error
    model, info = cast("tuple[PreTrainedModel, dict[str, set[str]]]", loaded)
    missing = sorted(info["missing_keys"])
    if missing:
        raise _refused(folder, f"lacks {len(missing)} of the model's weights, the first being {missing[0]!r}")
    model.train(False)
    return model


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    if shown:
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _refused(folder: Path, reason: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"model {str(folder)!r} {reason}", field="model")
