"""The environment variables that processes of hosts are given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase

from guideway_hosts.joining import VARIABLE

__all__ = ["host_environment"]

ALLOWED = (
    # places, language and time
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TEMP", "TMP", "XDG_*_HOME"),
    *("LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR"),
    # Python, and the loader of libraries
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_*", "GLIBC_TUNABLES", "MALLOC_*", "RUST_BACKTRACE"),
    # threads and devices of numerical libraries
    *("OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "VECLIB_*", "NUMEXPR_*", "RAYON_*"),
    "*_VISIBLE_DEVICES",
    # where models are, and that none is to be downloaded
    *("HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM"),
)
"""The names that hosts are given, as patterns. Keys and credentials have none of these."""


def host_environment(more: Sequence[str]) -> dict[str, str]:
    """Return the variables of this process that its hosts are given: those above, and those that match `more`, the
    operator's patterns. Never the secret that serving processes share."""
    patterns = (*ALLOWED, *more)
    return {
        name: value
        for name, value in os.environ.items()
        if name != VARIABLE and any(fnmatchcase(name, pattern) for pattern in patterns)
    }
