"""Combine the worker mixins of a configuration into one object, in order, and refuse clashes."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from guideway.api.steps import Fault
from guideway.api.worker import Worker, WorkerMixin, WorkerStep
from guideway.errors import (
    ConformanceError,
    GuidewayError,
    InvalidConfiguration,
    PluginConflict,
    PluginLoadError,
    SequencesFailed,
    UnsupportedCapability,
    blame,
    close_each,
    did_you_mean,
    passable,
)

__all__ = ["Mixins"]

LIFECYCLE = frozenset({"on_model_loaded", "before_step", "after_step", "close"})
"""The methods that the host calls for every mixin in order."""

OF_EVERY_CLASS = frozenset(vars(type("", (), {}))) | LIFECYCLE | {
    "__init__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__firstlineno__",
    "__static_attributes__", "__orig_bases__", "__parameters__", "__abstractmethods__", "_abc_impl", "contract", "name",
}  # fmt: skip
"""Attributes that every class has, which are not a clash."""


class Mixins:
    """The configured mixins of one worker.

    Raises `PluginConflict` if two mixins define the same attribute, `PluginLoadError` if one cannot be built, and the
    `InvalidConfiguration` of a mixin that refuses its options.
    """

    def __init__(self, mixins: Sequence[tuple[type[WorkerMixin], Mapping[str, Any]]]) -> None:
        self._classes = {cls.name: cls for cls, _ in mixins}
        self._object = _instance(_compose(list(self._classes.values())), mixins)
        self._open = True

    def on_model_loaded(self, worker: Worker) -> None:
        """Call every mixin. Raises `PluginLoadError`, naming the mixin that failed."""
        for name, cls in self._classes.items():
            with blame(f"worker.{name}", "on_model_loaded", error=PluginLoadError):
                cls.on_model_loaded(self._object, worker)

    def before_step(self, step: WorkerStep) -> dict[str, Fault]:
        """Call every mixin. Return failures by sequence id. Raises `PluginError`, naming the mixin that failed."""
        return self._call_each("before_step", step)

    def after_step(self, step: WorkerStep) -> dict[str, Fault]:
        """Call every mixin. Return failures by sequence id. Raises `PluginError`, naming the mixin that failed."""
        return self._call_each("after_step", step)

    def _call_each(self, phase: str, step: WorkerStep) -> dict[str, Fault]:
        blamed: dict[str, Fault] = {}
        for name, cls in self._classes.items():
            plugin = f"worker.{name}"
            try:
                with blame(plugin, phase, passing=(SequencesFailed,)):
                    getattr(cls, phase)(self._object, step)
            except SequencesFailed as failed:
                with blame(plugin, phase):
                    _check_blamed(failed, step)
                    fault = Fault(plugin, phase, passable(str(failed)))
                for sequence_id in failed.sequence_ids:
                    blamed.setdefault(sequence_id, fault)
        return blamed

    def call(self, address: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the method ``name.method`` and return its result. Raises `UnsupportedCapability` if there is no such
        method or it may not be called, and `PluginError` for its exceptions, except guideway's own errors."""
        name, dot, method = address.partition(".") if isinstance(address, str) else ("", "", "")
        if not dot:
            raise UnsupportedCapability(
                f"write the method of a worker as 'name.method', not {address!r}", field="method"
            )
        if name not in self._classes:
            raise UnsupportedCapability(
                f"no worker mixin named {name!r} is configured{_hint(name, self._classes)}", field="method"
            )
        methods = sorted(_methods(self._classes[name]))
        if method not in methods:
            why = ": only the host calls it" if method in LIFECYCLE else _hint(method, methods)
            raise UnsupportedCapability(f"worker mixin {name!r} has no method {method!r} to call{why}", field="method")
        with blame(f"worker.{name}", method, passing=(GuidewayError,)):
            return getattr(self._object, method)(*args, **kwargs)

    def close(self) -> None:
        """Close the mixins in reverse order, once. Exceptions are logged."""
        if self._open:
            self._open = False
            _close(self._object, list(self._classes.values()))


def _compose(classes: list[type[WorkerMixin]]) -> type[WorkerMixin]:
    """Return a class that inherits from all mixins."""
    owner: dict[str, tuple[type[WorkerMixin], type]] = {}
    for cls in classes:
        for attribute, definer in _attributes(cls):
            other, other_definer = owner.setdefault(attribute, (cls, definer))
            # two mixins may inherit the same attribute from one helper class
            if other_definer is not definer:
                raise _clash(attribute, other, cls)
    try:
        return types.new_class("+".join(cls.name for cls in classes), tuple(classes) or (WorkerMixin,))
    except TypeError as error:
        names = ", ".join(f"{cls.name!r} ({cls.__module__}.{cls.__qualname__})" for cls in classes)
        raise PluginConflict(
            f"worker mixins {names} cannot be composed into one class: {error}; configure fewer of them, or "
            "change their order",
            plugin=f"worker.{classes[-1].name}",
        ) from error


def _instance(
    composed: type[WorkerMixin], mixins: Sequence[tuple[type[WorkerMixin], Mapping[str, Any]]]
) -> WorkerMixin:
    """Create an object of the composed class by calling every mixin's ``__init__``."""
    instance = composed.__new__(composed)
    on_classes = {attribute: cls for cls, _ in mixins for attribute, _ in _attributes(cls)}
    kept: dict[str, Any] = {}
    owner: dict[str, type[WorkerMixin]] = {}
    built: list[type[WorkerMixin]] = []
    try:
        for cls, options in mixins:
            with blame(f"worker.{cls.name}", "__init__", error=PluginLoadError, passing=(InvalidConfiguration,)):
                # each starts with an empty object of its own class, to separate its attributes from other mixins', and
                # so that ``super().__init__`` calls no other mixin's
                instance.__class__ = cls
                instance.__dict__ = {}
                cls.__init__(instance, options)
            for attribute in vars(instance):
                other = owner.setdefault(attribute, on_classes.get(attribute, cls))
                if other is not cls:
                    _close(instance, [cls])
                    raise _clash(attribute, other, cls)
            kept |= vars(instance)
            built.append(cls)
    except BaseException:
        instance.__class__ = composed
        instance.__dict__ = kept
        _close(instance, built)
        raise
    instance.__class__ = composed
    instance.__dict__ = kept
    return instance


def _check_blamed(failed: SequencesFailed, step: WorkerStep) -> None:
    """Raise `ConformanceError` unless `failed` names only sequences of the step, and at least one."""
    unknown = [sequence_id for sequence_id in failed.sequence_ids if sequence_id not in step.sequence_ids]
    if unknown or not failed.sequence_ids:
        whom = f"{unknown[0]!r}, which is not in the step" if unknown else "no sequence at all"
        raise ConformanceError(f"SequencesFailed names {whom} ({failed})") from failed


def _close(instance: WorkerMixin, classes: Sequence[type[WorkerMixin]]) -> None:
    """Close the mixins of these classes, the last one first."""
    close_each((f"worker.{cls.name}", partial(cls.close, instance)) for cls in reversed(classes))


def _attributes(cls: type[WorkerMixin]) -> Iterator[tuple[str, type]]:
    """Yield each attribute of `cls`, and the class that defines it."""
    seen: set[str] = set()
    for definer in cls.__mro__:
        if definer is WorkerMixin or definer is object:
            continue
        for attribute in vars(definer).keys() - OF_EVERY_CLASS - seen:
            seen.add(attribute)
            yield attribute, definer


def _methods(cls: type[WorkerMixin]) -> Iterator[str]:
    """Yield the methods that may be called by name."""
    for attribute, _ in _attributes(cls):
        if not attribute.startswith("_") and callable(inspect.getattr_static(cls, attribute, None)):
            yield attribute


def _clash(attribute: str, first: type[WorkerMixin], second: type[WorkerMixin]) -> PluginConflict:
    return PluginConflict(
        f"worker mixins {first.name!r} ({first.__module__}.{first.__qualname__}) and {second.name!r} "
        f"({second.__module__}.{second.__qualname__}) both define the attribute {attribute!r}, but all mixins of a "
        "worker share one object; configure only one of them, or ask an author to rename it",
        plugin=f"worker.{second.name}",
    )


def _hint(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    return f"; {did_you_mean(name, names) or 'there is ' + (', '.join(names) or 'none')}"
