"""Computing the response to a request in a worker thread, where blocking is allowed."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from guideway.errors import UnsupportedCapability

from guideway_engine.engine import Engine
from guideway_engine.server.bodies import Body, ClassifyBody, EmbeddingsBody, RerankBody, inputs_of
from guideway_engine.server.errors import ModelNotFound, content_of

__all__ = ["ROUTES", "Call", "Left", "Route"]

Content = dict[str, Any]


class Left(Exception):
    """Raised if the client has disconnected."""


@dataclass(slots=True)
class Call:
    """One call of a client."""

    engine: Engine
    model: str
    """Name that clients know the model by."""
    request_id: str
    left: Event = field(default_factory=Event)
    """Set once the client has disconnected."""
    user: str = ""
    """The body's `user`, for the log."""
    tenant: str = ""
    """Tenant that the engine counts the inputs for."""

    def answer(self, route: Route, body: Body) -> Content:
        """Return the content of the response. Raises `GuidewayError` if no input has a result, and `Left`."""
        if body.model != self.model:
            raise ModelNotFound(f"there is no model {body.model!r} here; there is {self.model!r}", field="model")
        return {"id": self.request_id, "model": self.model, **route.answer(self, body)}

    def results(self, task: str, values: Sequence[Any], body: Body, **params: Any) -> list[Any]:
        """Return the result of each value. Raises the first error if all of them failed."""
        given = {"truncate": body.truncate, **params}
        try:
            results = self.engine.run(task, iter(values), given, priority=body.priority, tenant=self.tenant)
        except UnsupportedCapability as error:
            asked, own = (next((r.path for r in ROUTES if r.task == one), None) for one in (task, self.engine.workflow))
            hint = f"; send to {own}" if own else ""
            raise UnsupportedCapability(
                f"the model {self.model!r} is not for {asked}: {error}{hint}", field="model"
            ) from error
        found = []
        for result in results:
            found.append(result)
            if self.left.is_set():
                results.close()
                raise Left
        if all(result.error is not None for result in found):
            raise found[0].error
        return found

    def item(self, result: Any, made: Callable[[], Content], *nothing: str) -> Content:
        """Return the item of one input: the result of `made`, or the error, with null in the fields `nothing`."""
        if result.error is None:
            return made()
        return {**dict.fromkeys(nothing), "error": content_of(result.error, self.request_id, self.user)}


def _usage(results: Sequence[Any]) -> Content:
    tokens = sum(result.num_tokens for result in results)
    return {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def _embeddings(call: Call, body: EmbeddingsBody) -> Content:
    results = call.results("embed", inputs_of(body.input), body, dimensions=body.dimensions)

    def encoded(vector: Any) -> Any:
        return base64.b64encode(vector.astype("<f4")).decode() if body.encoding_format == "base64" else vector.tolist()

    def said(result: Any) -> Content:
        return call.item(result, lambda: {"embedding": encoded(result.vector)}, "embedding")

    data = [{"object": "embedding", "index": index, **said(result)} for index, result in enumerate(results)]
    return {"object": "list", "data": data, **_usage(results)}


def _rerank(call: Call, body: RerankBody) -> Content:
    documents = [_text_of(document) for document in inputs_of(body.documents, "documents")]
    results = call.results("rerank", [(body.query, document) for document in documents], body)

    def said(index: int) -> Content:
        result = results[index]
        text = {"document": {"text": documents[index]}} if body.return_documents else {}
        return text | call.item(result, lambda: {"relevance_score": result.score}, "relevance_score")

    scored = [index for index, result in enumerate(results) if result.error is None]
    best_first = sorted(scored, key=lambda index: results[index].score, reverse=True)[: body.top_n]
    failed = [index for index, result in enumerate(results) if result.error is not None]
    items = [{"index": index, **said(index)} for index in (*best_first, *failed)]
    return {"results": items, **_usage(results)}


def _text_of(document: Any) -> Any:
    if isinstance(document, Mapping) and set(document) == {"text"}:
        return document["text"]
    return document


def _classify(call: Call, body: ClassifyBody) -> Content:
    values = [_pair_of(value) for value in inputs_of(body.input)]
    results = call.results("classify", values, body)
    labels = next(list(result.probabilities) for result in results if result.error is None)

    def said(result: Any) -> Content:
        made = call.item(
            result,
            lambda: {"label": result.label, "probs": list(result.probabilities.values())},
            *("label", "probs"),
        )
        return {**made, "num_classes": len(labels)}

    data = [{"index": index, **said(result)} for index, result in enumerate(results)]
    return {"object": "list", "created": int(time.time()), "labels": labels, "data": data, **_usage(results)}


def _pair_of(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) and any(isinstance(item, str) for item in value) else value


@dataclass(frozen=True, slots=True)
class Route:
    """A path and its handler."""

    path: str
    task: str
    body: type[Body]
    answer: Callable[[Call, Any], Content]
    summary: str


ROUTES = (
    Route("/v1/embeddings", "embed", EmbeddingsBody, _embeddings, "A vector of each input"),
    Route("/v1/rerank", "rerank", RerankBody, _rerank, "The relevance of each document to a query, the best first"),
    Route("/v1/classify", "classify", ClassifyBody, _classify, "The label of each input"),
)
