"""Loading of causal language models and their fast tokenizers from a folder, offline and without running their code.

Other models, such as encoders, are refused here.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch
from guideway.api.forward import ModelInfo
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from guideway_engine.model_files import existing_folder, fast_tokenizer, first_line, refused, weights

__all__ = ["load_model", "load_tokenizer", "model_info"]


def load_tokenizer(path: str | PathLike[str]) -> PreTrainedTokenizerFast:
    """Return the tokenizer of the model in the folder `path`. Raises `InvalidConfiguration` with field ``model``."""
    return fast_tokenizer(_model_folder(path))


def load_model(path: str | PathLike[str], dtype: str | torch.dtype, device: str | torch.device) -> PreTrainedModel:
    """Return the model in the folder `path`, ready to run.

    `dtype` is a floating-point type of torch or its name, or ``auto`` for the stored type of the weights. (On a CPU
    float32 is the better choice for models of a few million parameters, however they are stored: bfloat16 decodes half
    as fast.) Raises `InvalidConfiguration` with field ``model``, ``dtype`` or ``device``.
    """
    return weights(AutoModelForCausalLM, _model_folder(path), dtype, device)


def model_info(model: PreTrainedModel) -> ModelInfo:
    """Return the facts about `model` that an engine needs before it allocates memory for it."""
    config: Any = model.config.get_text_config()
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    stops = getattr(model.generation_config, "eos_token_id", None)
    return ModelInfo(
        logits_width=config.vocab_size if head is None else head.out_features,
        max_context=getattr(config, "max_position_embeddings", None),
        stop_token_ids=() if stops is None else (stops,) if isinstance(stops, int) else tuple(stops),
    )


def _model_folder(path: str | PathLike[str]) -> Path:
    folder = existing_folder(path)
    _check_causal(folder)
    return folder


def _check_causal(folder: Path) -> None:
    try:
        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    # wrong configurations raise errors of json or huggingface_hub, or any error of the class's own checks
    except Exception as error:
        raise refused(folder, f"has a configuration transformers cannot use: {first_line(error)}") from error
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    architectures = config.architectures or [causal]
    if causal is None or causal not in architectures:
        found = ", ".join(map(str, architectures)) if config.architectures else f"a {config.model_type} model"
        raise refused(folder, f"holds {found}, which is not a causal language model")
