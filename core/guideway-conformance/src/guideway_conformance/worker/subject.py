"""A worker mixin under test, and a worker for it."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from guideway.api import SequencesFailed, WorkerMixin

from guideway_conformance.subjects import CannotRunHere, Subject, expect

__all__ = [
    "Failed",
    "OneStep",
    "OneWorker",
    "WorkerSubject",
    "blaming",
    "public_methods",
    "try_method",
    "without_arguments",
]

PLAIN: dict[str, tuple[Any, ...]] = {
    "bool": (True, True, False, True),
    "int": (0, 1, 2, 4, 8, -1),
    "float": (0.0, 0.5, 2.0),
    "str": ("", "lm_head", "Linear"),
}
"""The values of arguments that methods are tried with."""
LIFE_CYCLE = ("on_model_loaded", "before_step", "after_step", "close")


class Failed(Exception):
    """A forward pass that failed, for a test."""


@dataclass(frozen=True)
class OneWorker:
    """Exactly what a mixin may know of its worker."""

    model: Any
    device: str = "cpu"
    rank: int = 0
    num_workers: int = 1

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"of its worker it used {name!r}, which the contract does not offer")


@dataclass(frozen=True)
class OneStep:
    """Exactly what a mixin may know of a step."""

    num_sequences: int = 2
    num_tokens: int = 7
    num_rows: int = 3
    first: int = 0
    """The number at which the names of its sequences begin."""
    companions: int = 0
    """So many of its sequences run beside the first one."""

    @property
    def sequence_ids(self) -> tuple[str, ...]:
        own = [f"request-{self.first + i}/0" for i in range(self.num_sequences - self.companions)]
        return (*own[:1], *own[:1] * self.companions, *own[1:])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"of a step it used {name!r}, which the contract does not offer")


class WorkerSubject(Subject):
    """Builds the mixin, and a worker with a small model of random weights."""

    kind = "worker"

    @classmethod
    def prepare(cls) -> None:
        with contextlib.suppress(ImportError):
            from transformers import LlamaForCausalLM  # noqa: F401 - slow to import

    def mixin(self, options: Mapping[str, Any] | None = None) -> WorkerMixin:
        """A new object, made as a host makes it."""
        made: WorkerMixin = self.component(self.settings.options if options is None else options)
        return made

    def worker(
        self, *, width: int = 16, dtype: str = "float32", rich: bool = False, seed: int | None = None
    ) -> OneWorker:
        """A worker with a model of its own; `rich`: with biases, and the weights of the embedding in its head. Raises
        `CannotRunHere` where there is no library of models."""
        try:
            from transformers import LlamaConfig, LlamaForCausalLM
        except ImportError as error:
            raise CannotRunHere("a worker needs a model: pip install 'guideway[engine]'") from error
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=width,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            attention_bias=rich,
            mlp_bias=rich,
            tie_word_embeddings=rich,
        )
        if seed is not None:
            import_module("torch").manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
        return OneWorker(model.to(getattr(import_module("torch"), dtype)))

    def step(self, mixin: WorkerMixin, worker: OneWorker, step: OneStep | None = None, *, factor: float = 1.0) -> None:
        """One step, as a host carries it out."""
        step = step or OneStep()
        with blaming(step):
            mixin.before_step(step)
        self.forward(worker, step, factor=factor)
        with blaming(step):
            mixin.after_step(step)

    def forward(self, worker: OneWorker, step: OneStep, *, factor: float = 1.0, fails: str | None = None) -> None:
        """The forward pass of a step. `factor`: what enters the first layer is multiplied by it. `fails`: the name of a
        module, ``""`` is the model itself, that raises `Failed` in the place of what it computes; ``>`` before that: it
        raises it when it has computed, and ``<``: when it would begin."""

        def spoil(_module: Any, _arguments: Any, output: Any) -> Any:
            return output * factor

        def fail(*_: Any) -> None:
            raise Failed("it failed for a test")

        hooks, stack = [], contextlib.ExitStack()
        if factor != 1.0:
            hooks.append(worker.model.get_input_embeddings().register_forward_hook(spoil))
        if fails is not None:
            module = worker.model.get_submodule(fails.lstrip("<>"))
            if fails.startswith("<"):
                hooks.append(module.register_forward_pre_hook(fail, prepend=True))
            elif fails.startswith(">"):
                hooks.append(module.register_forward_hook(fail))
            else:
                stack.enter_context(_failing(module))
        with stack:
            try:
                worker.model(**worker.model.dummy_inputs, **({} if step.num_rows else _no_rows()))
            finally:
                for hook in hooks:
                    hook.remove()


@contextlib.contextmanager
def _failing(module: Any) -> Iterator[None]:
    """A module that raises `Failed` in the place of what it computes: what stands before it on the module is called."""

    def fail(*_: Any, **__: Any) -> Any:
        raise Failed("it failed for a test")

    known = vars(module).get("forward")
    module.forward = fail
    try:
        yield
    finally:
        if known is None:
            del module.forward
        else:
            module.forward = known


def _no_rows() -> dict[str, Any]:
    """Arguments by which a model computes the logits of no token, as hosts call it amid a long prompt."""
    import torch

    return {"logits_to_keep": torch.empty(0, dtype=torch.int64)}


@contextlib.contextmanager
def blaming(step: OneStep) -> Iterator[None]:
    """A mixin may say that sequences cannot go on, and then names some of this step."""
    try:
        yield
    except SequencesFailed as failed:
        expect(failed.sequence_ids, f"SequencesFailed ({failed}) names no sequence")
        unknown = sorted(set(failed.sequence_ids) - set(step.sequence_ids))
        expect(not unknown, f"SequencesFailed ({failed}) names {', '.join(unknown)}: not in this step")


def public_methods(mixin: WorkerMixin) -> list[str]:
    """Return the methods that ``engine.call_workers`` reaches beside the life cycle."""
    return sorted(
        name
        for name in dir(type(mixin))
        if not name.startswith("_") and name not in LIFE_CYCLE and callable(getattr(type(mixin), name))
    )


def without_arguments(mixin: WorkerMixin) -> Iterator[str]:
    """Yield the public methods that need no arguments: others need what only their author knows."""
    for name in public_methods(mixin):
        try:
            inspect.signature(getattr(mixin, name)).bind()
        except (TypeError, ValueError):
            continue
        yield name


def try_method(mixin: WorkerMixin, name: str) -> None:
    """Call a public method as an operator might: with nothing, and with plain values of what it takes first."""
    method = getattr(mixin, name)
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):
        return
    needed = [each for each in parameters if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]
    ways: list[tuple[Any, ...]] = [()] if not needed else []
    if parameters and needed in ([], parameters[:1]):
        for kind in re.findall(r"\w+", _written(parameters[0])):
            ways += [(value,) for value in PLAIN.get(kind, ())]
    for arguments in ways:
        with contextlib.suppress(Exception):  # what it makes of them is its own
            method(*arguments)


def _written(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
