"""The parts of a process and its environment that change a model's results by more than rounding."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guideway_engine.model_folder import digests

if TYPE_CHECKING:
    from guideway_engine.settings import EngineSettings

__all__ = ["numerics", "planned"]

VARIABLES = (
    "DNNL_DEFAULT_FPMATH_MODE",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""Environment variables that let the libraries below torch multiply float32 in a narrower type."""

MATMUL = ("cuda", "mkldnn")
"""Backends of torch whose ``matmul.fp32_precision`` does the same."""


def numerics() -> dict[str, str]:
    """Return the settings, by name, that make float32 products be computed in a narrower type; empty if there are none.
    Settings of torch are read from this process."""
    found = {name: value for name in VARIABLES if (value := os.environ.get(name))}
    torch: Any = sys.modules.get("torch")
    for backend in MATMUL if torch is not None else ():
        precision = getattr(getattr(torch.backends, backend).matmul, "fp32_precision", "none")
        if precision not in ("none", "ieee"):
            found[f"torch.backends.{backend}.matmul.fp32_precision"] = str(precision)
    return found


def planned(config: EngineSettings, folder: Path) -> dict[str, Any]:
    """Return all inputs of a model's results except plugins, for the fingerprint."""
    return {
        "model": config.model,
        "files": digests(folder),
        "dtype": config.dtype,
        "device": config.device,
        "numerics": numerics(),
    }
