"""Contracts that may still change inside v1: models, executors, workflows, attention backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

__all__ = ["AttentionBackend", "Executor", "Model", "Workflow"]


class Model(ABC):
    """A model that ships as a Python package."""

    contract: ClassVar[str] = "1.0"
    name: ClassVar[str]

    @abstractmethod
    def path(self) -> Path:
        """A folder ``transformers`` can load: configuration, weights, tokenizer, chat template."""


class Executor(ABC):
    """Runs steps on one or several workers. Not yet used by any host."""

    contract: ClassVar[str] = "1.0"
    name: ClassVar[str]


class Workflow(ABC):
    """A serving workflow built from several generations. Not yet used by any host."""

    contract: ClassVar[str] = "1.0"
    name: ClassVar[str]


class AttentionBackend(ABC):
    """An attention implementation for the engine's own runner. Not yet used by any host."""

    contract: ClassVar[str] = "1.0"
    name: ClassVar[str]
