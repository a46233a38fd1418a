"""The environment variables that the processes of hosts get."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase

from guideway_hosts.joining import VARIABLE

__all__ = ["host_environment", "variables_like"]

ALLOWED = (
    # folders, language and time
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TEMP", "TMP", "XDG_*_HOME"),
    *("LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR"),
    # Python, and the dynamic loader
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_*", "GLIBC_TUNABLES", "MALLOC_*", "RUST_BACKTRACE"),
    # threads and devices of numerical libraries
    *("OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "VECLIB_*", "NUMEXPR_*", "RAYON_*"),
    "*_VISIBLE_DEVICES",
    # the folder of models, and the ban on downloads
    *("HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM"),
)
"""Names of the variables that hosts get, as patterns. Names of keys and credentials do not match."""


def host_environment(more: Sequence[str]) -> dict[str, str]:
    """Return this process's variables that its hosts get: the variables above, and the ones that match the operator's
    patterns `more`. Excludes the secret that serving processes share."""
    found = variables_like((*ALLOWED, *more))
    found.pop(VARIABLE, None)
    return found


def variables_like(patterns: Sequence[str]) -> dict[str, str]:
    """Return this process's variables whose names match one of the patterns."""
    return {
        name: value for name, value in os.environ.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
