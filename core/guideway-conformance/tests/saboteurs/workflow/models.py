"""Workflows that treat their model otherwise than they may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from guideway.api import (
    GuidewayError,
    ModelFolder,
    Prepared,
)

from saboteurs import saboteur
from saboteurs.workflow.base import Correct, Results, Sum, Sums, Words, with_part

__all__: list[str] = []


class LoadsForAll(Sums):
    loaded: ClassVar[list[float]] = []

    def load(self) -> None:
        seed = int(self.context.model.path.parent.name == "other")
        self.loaded[:] = [0.5 + seed]

    def execute(self, step: Any) -> Any:
        return np.array([self.loaded[0] * ids.sum() for ids in step])


@saboteur("workflow.each_runner_has_its_model")
class KeepsOneModel(Correct):
    """Keeps the model on the class, so that the last one loaded serves all."""

    parts: ClassVar[Mapping[str, str]] = {
        **with_part("runner", LoadsForAll),
        "request_processor": f"{Words.__module__}:Words",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        return None if model.config.get("model_type") == "bert" else "it takes bert"


class AsItLies(Sums):
    def load(self) -> None:
        super().load()
        self.model = torch.nn.Linear(2, 2)


@saboteur("workflow.weights_are_as_the_context_says")
class LoadsAsItLies(Correct):
    """Loads weights of the type in which they happen to be."""

    parts = with_part("runner", AsItLies)


class Raising(Results):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        if not np.isfinite(output).all():
            raise GuidewayError("the model gave numbers that are not finite")
        return super().results(work, output)


@saboteur("workflow.what_is_not_finite_ends_alone")
class FailsAStep(Correct):
    """Raises over all requests of a step if the numbers of one are not finite."""

    parts = with_part("output_processor", Raising)


class Filtering(Results):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        return [Sum(float(value)) for value in output if np.isfinite(value)]


@saboteur("workflow.what_is_not_finite_ends_alone")
class LeavesOutWhatIsNotFinite(Correct):
    """Has no result in the place of a request whose number is not finite."""

    parts = with_part("output_processor", Filtering)


class LoadsOnce(Sums):
    loaded: ClassVar[dict[str, float]] = {}

    def load(self) -> None:
        path = self.context.model.path
        self.weight = self.loaded.setdefault(path.name, 0.5 + (path.parent.name == "other"))


@saboteur("workflow.each_runner_has_its_model")
class KnowsModelsByName(Correct):
    """Takes two models whose folders have one name for the same."""

    parts: ClassVar[Mapping[str, str]] = {
        **with_part("runner", LoadsOnce),
        "request_processor": f"{Words.__module__}:Words",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        return None if model.config.get("model_type") == "bert" else "it takes bert"


class Pair(NamedTuple):
    sums: Any


class InATuple(Sums):
    def execute(self, step: Any) -> Any:
        return Pair(super().execute(step))


class AllOfATuple(Results):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        if not np.isfinite(output.sums).all():
            return [GuidewayError("the model gave numbers that are not finite") for _ in work]
        return super().results(work, output.sums)


@saboteur("workflow.what_is_not_finite_ends_alone")
class EndsAllOfAStep(Correct):
    """Ends every request of a step for one of which the model gave a number that is not finite."""

    parts: ClassVar[Mapping[str, str]] = {
        **with_part("runner", InATuple),
        "output_processor": f"{__name__}:AllOfATuple",
    }
