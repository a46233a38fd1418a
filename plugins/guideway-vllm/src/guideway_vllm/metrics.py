"""guideway's metrics of the engine cores at the server's ``/metrics``, where vLLM shows only those of its own process.

If ``PROMETHEUS_MULTIPROC_DIR`` is set, as vLLM does for several API servers, the client library adds up all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from typing import Any

from guideway.runtime.work import metrics
from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from guideway_vllm.cores import Question

__all__ = ["METHOD", "samples", "show_cores"]

METHOD = "guideway_samples"
"""Name of a method added to vLLM's engine core."""

WITHIN = 1.0
"""Seconds that a scrape waits for the values of the cores."""

METRICS = [getattr(metrics, name) for name in metrics.__all__]


def samples(_core: object) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    """Return name, labels and value of the samples of guideway's metrics in the process of an engine core, by
    metric."""
    return {
        family.name: [(each.name, each.labels, each.value) for each in family.samples if _adds_up(each)]
        for metric in METRICS
        for family in metric.collect()
    }


def _adds_up(sample: Sample) -> bool:
    return not sample.name.endswith("_created")


class CoreMetrics(Collector):
    """guideway's metrics, each the sum of this process and of what the engine cores said last."""

    def __init__(self) -> None:
        self._question = Question(METHOD, WITHIN)
        self._answers: list[dict[str, Any]] = []

    async def update(self, client: Any) -> None:
        """Ask the cores of this client."""
        self._answers = await self._question.ask(client)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        for family in chain.from_iterable(metric.collect() for metric in METRICS):
            values: dict[tuple[Any, ...], float] = {}
            own = [(each.name, each.labels, each.value) for each in family.samples]
            for name, labels, value in chain(own, *(answer[family.name] for answer in self._answers)):
                key = (name, *labels.items())
                values[key] = values.get(key, 0.0) + value
            family.samples = [Sample(name, dict(labels), value) for (name, *labels), value in values.items()]
            yield family


@cache
def _core_metrics() -> CoreMetrics:
    """Return the metrics with those of the cores, in place of this process's alone in its registry."""
    for metric in METRICS:
        REGISTRY.unregister(metric)
    REGISTRY.register(collector := CoreMetrics())
    return collector


def show_cores(app: Any) -> None:
    """Let a server's ``/metrics`` ask the cores."""
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    if get_prometheus_registry() is REGISTRY:
        app.add_middleware(_AsksCores, metrics=_core_metrics())


class _AsksCores:
    """The ASGI application `app`, which asks the cores before it shows metrics."""

    def __init__(self, app: Callable[..., Any], metrics: CoreMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Any, *channels: Any) -> None:
        if scope["type"] == "http" and scope["path"].rstrip("/").endswith("/metrics"):
            engine = getattr(scope["app"].state, "engine_client", None)
            core = getattr(engine, "engine_core", None)
            if core is not None:  # a server that only renders prompts has none
                await self._metrics.update(core)
        await self._app(scope, *channels)
