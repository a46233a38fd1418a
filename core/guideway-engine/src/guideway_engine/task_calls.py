"""The calls of an engine that embeds, ranks or classifies."""

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
"""``refuse`` an input that is longer than the context, or cut its ``right`` or ``left`` end off; None: as is
configured."""


class TaskCalls(ABC):
    """`embed`, `rerank` and `classify`, and `run` for tasks of other workflows. May be called by several threads.

    What comes back is what went in: a list for a list, an iterator for an iterator, which then is read as results are,
    so that few of any number of inputs are in memory. Results are in the order of the inputs. An input that is refused
    or fails has a result that says so in its `error`; the others are not affected. All raise `UnsupportedCapability`
    if the engine's workflow does not serve them, `EngineClosed`, and `InvalidRequest` for what is wrong for all inputs.
    """

    @abstractmethod
    def _served(self, task: str) -> Serving:
        """The workflow in service. Raises as the calls do."""

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
        """The vector of each input, float32 ``[dimensions]``; one text is a list of one. `dimensions`: as many of the
        vector's first numbers (Matryoshka), normalized afterwards; None: all. Lower priorities go first, and tenants
        share a busy engine fairly."""
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
        """The relevance of each document to the query, in the order of the documents; `sorted` puts the best first.
        Of a pair that is too long the document is cut."""
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
        """The label of each input, which may be a pair of texts, and the probability of every label."""
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
        """The results of a task of the engine's workflow, by its name; `params` are the task's own."""
        serving = self._served(task)
        many: Iterable[Any] = [inputs] if isinstance(inputs, str) else inputs
        if not isinstance(many, Sequence | Iterator) or isinstance(many, bytes | bytearray | memoryview):
            raise InvalidRequest(
                f"inputs must be a list or an iterator of inputs, not {short_repr(inputs)}", field="inputs"
            )
        results = serving.run(task, many, params or {}, priority=priority, tenant=tenant)
        return results if isinstance(many, Iterator) else list(results)
