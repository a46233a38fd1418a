"""The vocabulary that a front end has read, for the engine cores and workers that it starts, which would take as long
to load the tokenizer and read it once more."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from guideway.api import Vocabulary

__all__ = ["Handover", "size_taken_over", "taken_over"]

VARIABLE = "GUIDEWAY_VLLM_VOCABULARY"
"""In the environment of processes that a front end starts: the id of its ``VllmConfig``, the number of tokens, and a
file in its memory."""


class Handover:
    """Holds a vocabulary in memory where processes that this one starts find it. Nothing is held where the operating
    system has no such memory: then each process reads its own."""

    def __init__(self, vocabulary: Vocabulary, vllm_config: Any) -> None:
        self._file: int | None = None
        if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
            return
        self._file = os.memfd_create("guideway-vocabulary")
        with open(self._file, "wb", closefd=False) as file:
            pickle.dump(vocabulary, file)
        self._told = f"{vllm_config.instance_id}:{len(vocabulary)}:/proc/{os.getpid()}/fd/{self._file}"
        os.environ[VARIABLE] = self._told

    def close(self) -> None:
        """Give the memory back. Closing twice is fine."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if os.environ.get(VARIABLE) == self._told:
                del os.environ[VARIABLE]


def taken_over(vllm_config: Any) -> Vocabulary | None:
    """Return the vocabulary that the front end of this configuration, in another process, has read; None: there is
    none."""
    _, path = _told(vllm_config)
    if path and not path.startswith(f"/proc/{os.getpid()}/"):
        with suppress(OSError):  # it has ended, or is in another container
            return _read(os.environ[VARIABLE])
    return None


def size_taken_over(vllm_config: Any) -> int | None:
    """Return how many tokens the vocabulary has that the front end of this configuration has read; None: there is
    none."""
    size, _ = _told(vllm_config)
    return size or None


def _told(vllm_config: Any) -> tuple[int, str]:
    """Return the number of tokens and the file; 0 and nothing if none is told of that is for this configuration."""
    instance, _, told = os.environ.get(VARIABLE, "").partition(":")
    size, _, path = told.partition(":")
    return (int(size), path) if path and instance == vllm_config.instance_id else (0, "")


@lru_cache(maxsize=1)
def _read(told: str) -> Vocabulary:
    with Path(told.rpartition(":")[2]).open("rb") as file:
        found: Vocabulary = pickle.load(file)  # out of the memory of the process that started this one
        return found
