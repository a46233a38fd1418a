"""Calls of an engine that embeds, reranks or classifies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from guideway.api.options import short_repr
from guideway.errors import InvalidRequest

if TYPE_CHECKING:
    from guideway_engine.task_results import Classification, Embedding, Score
    from guideway_engine.workflows.serving import Serving

__all__ = ["Input", "TaskCalls", "Truncate"]

Input: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids (with their special tokens), ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``."""

Truncate: TypeAlias = Literal["refuse", "right", "left"] | None
"""Policy for an input longer than the context: ``refuse`` it, or cut its ``right`` or ``left`` end; None: as
configured."""


class TaskCalls(ABC):
    """The calls `embed`, `rerank` and `classify`, and `run` for tasks of other workflows. May be used by several
    threads.

    A list of inputs returns a list, an iterator returns an iterator. Iterators are read as results are consumed, so
    that few inputs are in memory. Results are in the order of the inputs. If an input is refused or fails, its result
    has an `error`; the others are not affected. All calls raise `UnsupportedCapability` if the engine's workflow does
    not serve them, `EngineClosed`, and `InvalidRequest` for errors that concern all inputs.
    """

    @abstractmethod
    def _served(self, task: str) -> Serving:
        """Return the active workflow. Raises the errors of the calls."""

    @overload
    def embed(
        self,
        inputs: str | Sequence[Input],
        *,
        dimensions: int | None = ...,
        truncate: Truncate = ...,
        priority: int = ...,
        tenant: str = ...,
    ) -> list[Embedding]: ...
    @overload
    def embed(
        self,
        inputs: Iterator[Input],
        *,
        dimensions: int | None = ...,
        truncate: Truncate = ...,
        priority: int = ...,
        tenant: str = ...,
    ) -> Iterator[Embedding]: ...
    def embed(
        self,
        inputs: str | Sequence[Input] | Iterator[Input],
        *,
        dimensions: int | None = None,
        truncate: Truncate = None,
        priority: int = 0,
        tenant: str = "",
    ) -> list[Embedding] | Iterator[Embedding]:
        """Return the vector of each input, float32 ``[dimensions]``; a single text counts as a list. `dimensions` keeps
        that many first numbers of the vector (Matryoshka) and normalizes them; None: all. Lower priorities run first,
        and tenants share a busy engine fairly."""
        params = {"dimensions": dimensions, "truncate": truncate}
        found: list[Embedding] = self.run("embed", inputs, params, priority=priority, tenant=tenant)
        return found

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        truncate: Truncate = None,
        priority: int = 0,
        tenant: str = "",
    ) -> list[Score]:
        """Return the relevance of each document to the query, in the order of the documents; `sorted` puts the best
        first. If a pair is too long, the document is cut."""
        if isinstance(documents, str) or not isinstance(documents, Sequence):
            raise InvalidRequest(f"documents must be a list of texts, not {short_repr(documents)}", field="documents")
        pairs = [(query, document) for document in documents]
        scores = self.run("rerank", pairs, {"truncate": truncate}, priority=priority, tenant=tenant)
        return [replace(score, index=index) for index, score in enumerate(scores)]

    @overload
    def classify(
        self,
        inputs: str | Sequence[Input | tuple[str, str]],
        *,
        truncate: Truncate = ...,
        priority: int = ...,
        tenant: str = ...,
    ) -> list[Classification]: ...
    @overload
    def classify(
        self,
        inputs: Iterator[Input | tuple[str, str]],
        *,
        truncate: Truncate = ...,
        priority: int = ...,
        tenant: str = ...,
    ) -> Iterator[Classification]: ...
    def classify(
        self,
        inputs: str | Sequence[Input | tuple[str, str]] | Iterator[Input | tuple[str, str]],
        *,
        truncate: Truncate = None,
        priority: int = 0,
        tenant: str = "",
    ) -> list[Classification] | Iterator[Classification]:
        """Return the label of each input, which may be a pair of texts, and the probability of every label."""
        params = {"truncate": truncate}
        found: list[Classification] = self.run("classify", inputs, params, priority=priority, tenant=tenant)
        return found

    def run(
        self,
        task: str,
        inputs: str | Sequence[Any] | Iterator[Any],
        params: Mapping[str, Any] | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
    ) -> Any:
        """Return the results of a task of the engine's workflow; `params` are the task's parameters."""
        serving = self._served(task)
        many: Iterable[Any] = [inputs] if isinstance(inputs, str) else inputs
        if not isinstance(many, Sequence | Iterator) or isinstance(many, bytes | bytearray | memoryview):
            raise InvalidRequest(
                f"inputs must be a list or an iterator of inputs, not {short_repr(inputs)}", field="inputs"
            )
        results = serving.run(task, many, params or {}, priority=priority, tenant=tenant)
        return results if isinstance(many, Iterator) else list(results)
