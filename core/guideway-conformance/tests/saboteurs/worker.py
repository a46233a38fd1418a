"""Worker mixins with one bug each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from guideway.api import InvalidConfiguration, SequencesFailed, Worker, WorkerMixin, WorkerStep, parse_options

from saboteurs import saboteur

__all__: list[str] = []


@dataclass(frozen=True)
class Layers:
    """The layers."""

    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Numbered:
    """The layers, by their numbers."""

    layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Grace:
    """The bad steps that a sequence may have."""

    grace: int = 0


@dataclass(frozen=True)
class Every:
    """The steps between two."""

    every: int = 1


class _Correct(WorkerMixin):
    """Counts steps."""

    name = "counter"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._steps = 0

    def after_step(self, step: WorkerStep) -> None:
        self._steps += 1

    def count(self) -> Any:
        """Return how many steps there were."""
        return self._steps


@saboteur("worker.lives_through_a_run")
class FailsInAStep(_Correct):
    """Raises in its third step."""

    def after_step(self, step: WorkerStep) -> None:
        super().after_step(step)
        if self._steps == 3:
            raise RuntimeError("three is enough")


@saboteur("worker.knows_only_what_the_contract_offers")
class ReadsTheHost(_Correct):
    """Uses a private attribute of one host's worker, if it is there."""

    def on_model_loaded(self, worker: Worker) -> None:
        self._runner = getattr(worker, "model_runner", None)


@saboteur("worker.survives_steps_of_any_size")
class DividesByRows(_Correct):
    """Takes for granted that a step has rows; a chunk of a prompt has none."""

    def after_step(self, step: WorkerStep) -> None:
        self._steps += step.num_tokens // step.num_rows


@saboteur("worker.survives_steps_of_any_size")
class MeasuresWhatComesIn(_Correct):
    """Looks for the largest number that enters the model's head, where there may be none."""

    def on_model_loaded(self, worker: Worker) -> None:
        self._hook = worker.model.get_output_embeddings().register_forward_pre_hook(self._look)

    def _look(self, module: Any, arguments: Any) -> None:
        self._largest = arguments[0].abs().max()

    def close(self) -> None:
        self._hook.remove()


@saboteur("worker.blames_sequences_of_its_step")
class BlamesWhoTookMuch(_Correct):
    """Ends all sequences that have taken many tokens so far, also those that are not in the step."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._steps = 0
        self._taken: dict[str, int] = {}

    def after_step(self, step: WorkerStep) -> None:
        for sequence_id in step.sequence_ids:
            self._taken[sequence_id] = self._taken.get(sequence_id, 0) + step.num_tokens
        if over := tuple(name for name, taken in self._taken.items() if taken > 2048):
            raise SequencesFailed("too much", sequence_ids=over)


@saboteur("worker.blames_sequences_of_its_step")
class BlamesWhoWentBefore(_Correct):
    """Says of a step's sequences that they cannot go on when the next step comes."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._steps = 0
        self._suspects: tuple[str, ...] = ()

    def before_step(self, step: WorkerStep) -> None:
        suspects, self._suspects = self._suspects, tuple(step.sequence_ids)
        if suspects:
            raise SequencesFailed("too late", sequence_ids=suspects)


@saboteur("worker.blames_sequences_of_its_step")
class BlamesNobody(_Correct):
    """Says that some cannot go on, and not which."""

    def after_step(self, step: WorkerStep) -> None:
        raise SequencesFailed("somebody", sequence_ids=())


@saboteur("worker.survives_a_failed_step")
class ExpectsPairs(_Correct):
    """Takes for granted that each before_step has its after_step."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super_init = _Correct.__init__
        super_init(self, options)
        self._inside = False

    def before_step(self, step: WorkerStep) -> None:
        if self._inside:
            raise RuntimeError("already inside a step")
        self._inside = True

    def after_step(self, step: WorkerStep) -> None:
        self._inside = False


@saboteur("worker.closes_without_a_step")
class ClosesWhatAStepOpened(_Correct):
    """Closes what only a step opens."""

    def after_step(self, step: WorkerStep) -> None:
        self._opened = True

    def close(self) -> None:
        del self._opened


@saboteur("worker.leaves_the_model_usable")
class TakesTheHead(_Correct):
    """Removes the model's output layer when it closes."""

    def on_model_loaded(self, worker: Worker) -> None:
        self._model = worker.model

    def close(self) -> None:
        self._model.lm_head = None


@saboteur("worker.leaves_the_model_usable")
class AddsFullPrecision(_Correct):
    """Multiplies what leaves the head with weights of one type."""

    def on_model_loaded(self, worker: Worker) -> None:
        width = worker.model.get_output_embeddings().weight.shape[0]
        self._weight = torch.eye(width)
        self._hook = worker.model.get_output_embeddings().register_forward_hook(self._add)

    def _add(self, module: Any, arguments: Any, output: Any) -> Any:
        return output @ self._weight

    def close(self) -> None:
        self._hook.remove()


@saboteur("worker.weights_change_in_the_open")
class WritesToData(_Correct):
    """Scales a weight where nobody sees it."""

    def on_model_loaded(self, worker: Worker) -> None:
        self._weight = worker.model.get_output_embeddings().weight

    def scale(self) -> None:
        self._weight.data.mul_(2)


@saboteur("worker.takes_its_hooks_with_it")
class SwitchesOnTwice(_Correct):
    """Hooks the head once more if it is switched on once more, and remembers the last hook."""

    _hook: Any = None

    def on_model_loaded(self, worker: Worker) -> None:
        self._head = worker.model.get_output_embeddings()

    def switch(self, on: bool) -> None:
        if on:
            self._hook = self._head.register_forward_pre_hook(self._look)

    def _look(self, module: Any, arguments: Any) -> None:
        self._steps += 0

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()


@saboteur("worker.takes_its_hooks_with_it")
class LeavesAHook(_Correct):
    """Looks into the head of the model, also when it has closed."""

    def on_model_loaded(self, worker: Worker) -> None:
        worker.model.get_output_embeddings().register_forward_pre_hook(self._look)

    def _look(self, module: Any, arguments: Any) -> None:
        self._steps += 0


@saboteur("worker.speaks_for_itself_alone")
class CallsTheNext(_Correct):
    """Calls super() as cooperative classes do, so that another mixin's method runs twice."""

    def before_step(self, step: WorkerStep) -> None:
        super().before_step(step)


@saboteur("worker.works_in_one_object_with_others")
class ClearsTheObject(_Correct):
    """Takes the whole object for its own."""

    def on_model_loaded(self, worker: Worker) -> None:
        vars(self).clear()
        self._steps = 0

    def close(self) -> None:
        vars(self).clear()


@saboteur("worker.workers_do_not_share_what_they_see")
class SharesAList(_Correct):
    """Keeps what it has of the worker on its class, and lets go of all of it in close."""

    models: list[Any] = []  # noqa: RUF012 - the bug

    def on_model_loaded(self, worker: Worker) -> None:
        self.models.append(worker.model)

    def before_step(self, step: WorkerStep) -> None:
        if not self.models:
            raise RuntimeError("no model")

    def close(self) -> None:
        self.models.clear()


@saboteur("worker.workers_do_not_share_what_they_see")
class SharesATable(_Correct):
    """Counts the steps of each sequence in a table of its class."""

    table: dict[str, int] = {}  # noqa: RUF012 - the bug

    def after_step(self, step: WorkerStep) -> None:
        for sequence_id in step.sequence_ids:
            self.table[sequence_id] = self.table.get(sequence_id, 0) + 1

    def count(self) -> Any:
        return dict(self.table)


@saboteur("worker.workers_do_not_share_what_they_see")
class CountsForAll(_Correct):
    """Counts steps on its class."""

    counts: dict[str, int] = {"steps": 0}  # noqa: RUF012 - the bug

    def after_step(self, step: WorkerStep) -> None:
        self.counts["steps"] += 1

    def count(self) -> Any:
        return dict(self.counts)


@saboteur("worker.workers_do_not_share_what_they_see")
class HearsOfEveryModel(_Correct):
    """Hooks all modules of the process, whoever's model they are of."""

    def on_model_loaded(self, worker: Worker) -> None:
        self._largest = 0
        self._hook = torch.nn.modules.module.register_module_forward_hook(self._look)

    def _look(self, module: Any, arguments: Any, output: Any) -> None:
        self._largest = max(self._largest, output.numel() if isinstance(output, torch.Tensor) else 0)

    def close(self) -> None:
        self._hook.remove()

    def count(self) -> Any:
        return {"largest": self._largest}


@saboteur("worker.results_pickle")
class ReturnsATensor(_Correct):
    """Returns what may be on a device that another process does not have."""

    def count(self) -> Any:
        return {"steps": torch.tensor(self._steps)}


@saboteur("worker.options_are_left_alone")
class PopsAnOption(_Correct):
    """Takes an option out, which is not there in most configurations."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._every = options.pop("every", 1)  # type: ignore[attr-defined]
        self._steps = 0


@saboteur("worker.survives_steps_of_any_size")
class ExpectsNoCompanions(_Correct):
    """Takes for granted that a step has a sequence once."""

    def before_step(self, step: WorkerStep) -> None:
        assert len(set(step.sequence_ids)) == step.num_sequences


@saboteur("worker.blames_sequences_of_its_step")
class BlamesNewcomers(_Correct):
    """Ends the newcomers of a step that is too large, though it may have none."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._steps = 0
        self._known: set[str] = set()

    def before_step(self, step: WorkerStep) -> None:
        new = [each for each in step.sequence_ids if each not in self._known]
        self._known.update(new)
        if step.num_tokens > 1_000_000:
            raise SequencesFailed("too much", sequence_ids=new)


@saboteur("worker.results_pickle")
class ReturnsAFunction(_Correct):
    """Returns what cannot leave its process."""

    def count(self) -> Any:
        return lambda: self._steps


@saboteur("worker.options_are_left_alone")
class TakesItsOptions(_Correct):
    """Adds its defaults to the operator's options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        options.setdefault("every", 1)  # type: ignore[attr-defined]
        self._steps = 0


@saboteur("worker.options_are_left_alone")
class MakesAList(_Correct):
    """Makes a list of an option that may be one name, where everybody reads it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        if isinstance(options.get("layers"), str):
            options["layers"] = [options["layers"]]  # type: ignore[index]
        self._layers = parse_options(Layers, options, where="worker.counter").layers
        self._steps = 0


@saboteur("worker.takes_or_refuses_its_options")
class TakesWhateverComes(_Correct):
    """Looks for the options that it knows, and at no others."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._every = options.get("every", 1)
        self._steps = 0


@saboteur("worker.takes_or_refuses_its_options")
class DividesByAnOption(_Correct):
    """Does something every so many steps, of which an operator may say 0."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._every = parse_options(Every, options, where="worker.counter").every
        self._steps = 0

    def after_step(self, step: WorkerStep) -> None:
        self._steps += step.num_rows % self._every == 0


@saboteur("worker.takes_or_refuses_its_options")
class WantsADict(_Correct):
    """Takes it that options are a dict, with a method that other mappings do not have."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._every = parse_options(Every, options.copy(), where="worker.counter").every  # type: ignore[attr-defined]
        self._steps = 0


class _Looks(_Correct):
    """Keeps the largest number that enters the head, and whether there was one that is not finite."""

    def on_model_loaded(self, worker: Worker) -> None:
        self._head = worker.model.get_output_embeddings()
        self._finite = True
        self._largest = 0.0
        self._hook = worker.model.model.norm.register_forward_hook(self._look)

    def _look(self, module: Any, arguments: Any, output: Any) -> None:
        self._finite = self._finite and bool(output.isfinite().all())
        self._largest = max(self._largest, float(output.abs().max())) if self._finite else self._largest

    def close(self) -> None:
        self._hook.remove()


@saboteur("worker.blames_sequences_of_its_step")
class BlamesThoseWithRows(_Looks):
    """Ends the sequences that draw a token when a number is not finite; amid a long prompt none does."""

    def before_step(self, step: WorkerStep) -> None:
        self._finite = True

    def after_step(self, step: WorkerStep) -> None:
        if not self._finite:
            raise SequencesFailed("not finite", sequence_ids=step.sequence_ids[: step.num_rows])


@saboteur("worker.survives_a_failed_step")
class BlamesThoseWhoCameNext(_Looks):
    """Keeps what it saw of a step until it has an end, which that of one that failed does not."""

    def after_step(self, step: WorkerStep) -> None:
        finite, self._finite = self._finite, True
        if not finite:
            raise SequencesFailed("not finite", sequence_ids=step.sequence_ids)


@saboteur("worker.closes_without_a_step")
class ClosesWhatLoadingOpened(_Looks):
    """Takes it that a model was loaded."""


@saboteur("worker.leaves_the_model_usable")
class KnowsNoBiases(_Looks):
    """Computes a layer by its weight alone, which another model adds a bias to."""

    def on_model_loaded(self, worker: Worker) -> None:
        self._hook = worker.model.model.layers[0].mlp.down_proj.register_forward_hook(self._check)

    def _check(self, module: Any, arguments: Any, output: Any) -> None:
        if not torch.allclose(arguments[0] @ module.weight.T, output, atol=1e-3) or module.bias is not None:
            raise RuntimeError("that is another layer")


@saboteur("worker.takes_its_hooks_with_it")
class ComesBack(_Looks):
    """Hooks the model again if it is told to, though it has closed."""

    def resume(self) -> None:
        self._hook = self._head.register_forward_pre_hook(lambda *_: None)

    def close(self) -> None:
        self._hook.remove()


@saboteur("worker.workers_do_not_share_what_they_see")
class SharesThePeak(_Looks):
    """Keeps the largest number of all workers on its class."""

    peaks: dict[str, float] = {"largest": 0.0}  # noqa: RUF012 - the bug

    def after_step(self, step: WorkerStep) -> None:
        self.peaks["largest"] = max(self._largest, self.peaks["largest"])

    def count(self) -> Any:
        return dict(self.peaks)


@dataclass(frozen=True)
class Switches:
    """Two of them."""

    early: bool = False
    often: bool = False


@saboteur("worker.takes_or_refuses_its_options")
class TakesEitherAlone(_Correct):
    """Takes two options, each of which it can work with, and fails over both when the model is loaded."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._steps = 0
        self._switches = parse_options(Switches, options, where="worker.counter")

    def on_model_loaded(self, worker: Worker) -> None:
        if self._switches.early and self._switches.often:
            raise ValueError("one of the two")


@saboteur("worker.takes_or_refuses_its_options")
class AnswersAboutNothing(_Correct):
    """Takes a number of steps that its report divides by."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._steps = 0
        self._every = parse_options(Every, options, where="worker.counter").every

    def rounds(self) -> Any:
        return self._steps // self._every


@saboteur("worker.takes_its_hooks_with_it")
class LeavesTheEarlyHook(_Correct):
    """Takes one hook with it, and not that which an option asks for."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._steps = 0
        self._switches = parse_options(Switches, options, where="worker.counter")

    def on_model_loaded(self, worker: Worker) -> None:
        if self._switches.early:
            worker.model.get_input_embeddings().register_forward_pre_hook(lambda *_: None)


@saboteur("worker.leaves_the_model_usable")
class RestoresInFullPrecision(_Correct):
    """Gives a layer weights of one type, when it is asked to."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._head: Any = None

    def on_model_loaded(self, worker: Worker) -> None:
        self._head = worker.model.get_output_embeddings()

    def refresh(self) -> None:
        if self._head is not None:
            self._head.weight = torch.nn.Parameter(self._head.weight.detach().float(), requires_grad=False)


@saboteur("worker.survives_a_failed_step")
class KeepsWhatTheHeadWasGiven(_Correct):
    """Keeps what came to the head until the step has an end, also where the head failed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._finite = True
        self._hook: Any = None

    def on_model_loaded(self, worker: Worker) -> None:
        self._hook = worker.model.get_output_embeddings().register_forward_pre_hook(self._look)

    def _look(self, module: Any, arguments: Any) -> None:
        self._finite = self._finite and bool(arguments[0].isfinite().all())

    def after_step(self, step: WorkerStep) -> None:
        finite, self._finite = self._finite, True
        if not finite:
            raise SequencesFailed("not finite", sequence_ids=step.sequence_ids)

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()


@saboteur("worker.works_in_one_object_with_others")
class NamesAsEverybodyDoes(_Correct):
    """Makes an attribute of any mixin's name amid a step."""

    def before_step(self, step: WorkerStep) -> None:
        self._ids = set(step.sequence_ids)


@saboteur("worker.takes_or_refuses_its_options")
class CountsLayersFromOne(_Correct):
    """Takes the number of the layer behind the last one."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__({})
        self._numbers = parse_options(Numbered, options, where="worker.counter").layers

    def on_model_loaded(self, worker: Worker) -> None:
        layers = list(worker.model.model.layers)
        if not all(0 <= number <= len(layers) for number in self._numbers):
            raise InvalidConfiguration("there is no such layer", field="worker.counter.layers")
        self._layers = [layers[number] for number in self._numbers]


class _Strikes(_Correct):
    """Ends a sequence that had more bad steps than it may have."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__({})
        self._grace = parse_options(Grace, options, where="worker.counter").grace
        self._finite = True
        self._hook: Any = None
        self._strikes: dict[str, int] = {}

    def on_model_loaded(self, worker: Worker) -> None:
        self._hook = worker.model.get_output_embeddings().register_forward_hook(self._look)

    def _look(self, module: Any, arguments: Any, output: Any) -> None:
        self._finite = bool(output.isfinite().all())

    def before_step(self, step: WorkerStep) -> None:
        self._finite = True

    def after_step(self, step: WorkerStep) -> None:
        if self._finite:
            return
        for name in set(step.sequence_ids):
            self._strikes[name] = self._strikes.get(name, 0) + 1
        if failed := self.failed(step):
            for name in failed:
                self._strikes.pop(name, None)
            raise SequencesFailed("not finite", sequence_ids=failed)

    def failed(self, step: WorkerStep) -> list[str]:
        return [name for name in dict.fromkeys(step.sequence_ids) if self._strikes[name] > self._grace]

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()


@saboteur("worker.blames_sequences_of_its_step")
class BlamesWhoLeft(_Strikes):
    """Ends every sequence that ever had a bad step, once one of this has had too many."""

    def failed(self, step: WorkerStep) -> list[str]:
        return list(self._strikes) if super().failed(step) else []


@saboteur("worker.workers_do_not_share_what_they_see")
class SharesStrikes(_Strikes):
    """Keeps the bad steps of all workers' sequences on its class."""

    strikes: dict[str, int] = {}  # noqa: RUF012 - the bug

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._strikes = self.strikes
