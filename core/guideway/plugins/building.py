"""Create objects from the configured classes, with errors that name the failing plugin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from guideway.api.limits import check_limits
from guideway.api.types import Request, Submission
from guideway.errors import (
    GuidewayError,
    InvalidConfiguration,
    PluginLoadError,
    PluginUnavailable,
    blame,
    close_each,
)
from guideway.plugins.contract import check_built
from guideway.plugins.hooks import Hook, Hooks, Validator

if TYPE_CHECKING:
    from guideway.api import (
        DeviceBackend,
        GrammarStrategy,
        LogitModifier,
        ModifierContext,
        Vocabulary,
    )

__all__ = [
    "build_device",
    "build_modifiers",
    "build_strategies",
    "building",
    "closing_if_it_fails",
    "limits_of",
    "validators",
]

Options = Mapping[str, Mapping[str, Any]]
"""Options of components by ``kind.name``."""


def building(plugin: str) -> blame:
    """Return a context manager around the construction of a plugin's class. It converts errors, except guideway's own,
    to a `PluginLoadError` that names the plugin."""
    return blame(plugin, "while it was built", error=PluginLoadError, passing=(GuidewayError,))


@contextmanager
def closing_if_it_fails(kind: str, built: Iterable[Any]) -> Iterator[None]:
    """Close the `built` components, the last one first, if the block raises."""
    try:
        yield
    except BaseException:
        close_each((f"{kind}.{component.name}", component.close) for component in reversed(list(built)))
        raise


def build_device(backend: type[DeviceBackend], device: str) -> DeviceBackend:
    """Build the backend on `device`. Raises `PluginUnavailable` with the reason if it cannot run here."""
    plugin = f"device.{backend.name}"
    _check_available(plugin, backend)
    with building(plugin):
        built = backend(device)
        with closing_if_it_fails("device", [built]):
            check_built("device", built)
    return built


def build_strategies(
    classes: Sequence[type[GrammarStrategy]], vocabulary: Vocabulary, options: Options
) -> dict[str, GrammarStrategy]:
    """Build the strategies, with their limits, and return them by name, in the given order. Raises `PluginUnavailable`
    with the reason if one cannot be built here."""
    for cls in classes:
        _check_available(f"grammar.{cls.name}", cls)
    strategies: dict[str, GrammarStrategy] = {}
    with closing_if_it_fails("grammar", strategies.values()):
        for cls in classes:
            plugin = f"grammar.{cls.name}"
            limits = limits_of(cls, options)
            own = {name: value for name, value in options.get(plugin, {}).items() if name != "limits"}
            _check_reads(cls, own, f"options.{plugin}")
            with building(plugin):
                strategies[cls.name] = cls(vocabulary, own)
            strategies[cls.name].limits = limits
    return strategies


def _check_reads(cls: type[GrammarStrategy], options: Mapping[str, Any], where: str) -> None:
    from guideway.api.grammar import GrammarStrategy

    if options and cls.__init__ is GrammarStrategy.__init__:  # which reads no options
        raise InvalidConfiguration(
            f"{where} has {', '.join(map(repr, options))}, but this strategy takes none but 'limits'; leave it out",
            field=where,
        )


def limits_of(cls: type[GrammarStrategy], options: Options) -> Mapping[str, int]:
    """Return the limits that a strategy declares or its operator sets, by rule of the admission guard. Raises
    `InvalidConfiguration`."""
    plugin = f"grammar.{cls.name}"
    limits = options.get(plugin, {}).get("limits", {})
    check_limits(cls.limits, where=f"{cls.__qualname__}.limits")
    check_limits(limits, where=f"options.{plugin}.limits")
    return {**cls.limits, **limits}


def build_modifiers(
    classes: Sequence[type[LogitModifier[Any]]], context: ModifierContext, options: Options
) -> list[LogitModifier[Any]]:
    """Build the modifiers, in the given order."""
    modifiers: list[LogitModifier[Any]] = []
    with closing_if_it_fails("modifier", modifiers):
        for cls in classes:
            with building(plugin := f"modifier.{cls.name}"):
                modifiers.append(cls(dict(options.get(plugin, {})), context))
                check_built("modifier", modifiers[-1])
    return modifiers


def validators(hooks: Hooks) -> dict[type, list[tuple[str, Validator]]]:
    """Return the validating hooks with their plugins' ids, by the class they validate, `Submission` or `Request`."""

    def calling(hook: Hook, argument: str) -> Validator:
        return lambda subject, context: hook(**{argument: subject, "context": context})

    return {
        Submission: [(hook.plugin, calling(hook, "submission")) for hook in hooks.validate_submission],
        Request: [(hook.plugin, calling(hook, "request")) for hook in hooks.validate_request],
    }


def _check_available(plugin: str, component: type[DeviceBackend] | type[GrammarStrategy]) -> None:
    with building(plugin):
        reason = component.available()
    if reason is not None:
        kind, _, name = plugin.partition(".")
        raise PluginUnavailable(f"{kind} {name!r} cannot run here: {reason}", plugin=plugin)
