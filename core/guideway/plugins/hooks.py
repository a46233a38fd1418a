"""Validators and observers, which a host calls for each request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from guideway.errors import InvalidRequest, PluginError, blame, contain, text_of
from guideway.plugins.loading import Loaded, hook_manager

if TYPE_CHECKING:
    from guideway.api.hooks import ValidationContext
    from guideway.api.types import Request, Submission

__all__ = ["Hook", "Hooks", "Validator", "observe", "validate"]

log = logging.getLogger(__name__)

Validator: TypeAlias = "Callable[[Any, ValidationContext], None]"
"""A function that validates a `Submission` or a `Request`."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One plugin's implementation of one hook. Call it with all of the hook's arguments, by keyword."""

    plugin: str
    """The plugin's id."""
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    """The names of the arguments it takes; as in pluggy, it may omit some."""

    def __call__(self, **arguments: Any) -> Any:
        return self.function(*[arguments[name] for name in self.arguments])


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The enabled hooks, in the order of calls: as `PluginSettings.enable` lists their plugins, except for
    implementations with ``tryfirst`` or ``trylast``. The caller handles exceptions as the hooks specify."""

    validate_submission: tuple[Hook, ...] = ()
    validate_request: tuple[Hook, ...] = ()
    request_started: tuple[Hook, ...] = ()
    request_finished: tuple[Hook, ...] = ()
    request_failed: tuple[Hook, ...] = ()

    @staticmethod
    def of(plugins: Sequence[Loaded]) -> Hooks:
        """Collect the hooks of loaded components."""
        manager = hook_manager()
        # several entries may name one module, which is called once
        first = {id(plugin.component): plugin for plugin in reversed(plugins)}
        once = [plugin for plugin in plugins if first[id(plugin.component)] is plugin]
        # pluggy calls the last registered one first
        for plugin in reversed(once):
            manager.register(plugin.component, name=plugin.record.id)
        return Hooks(**{name: _collect(getattr(manager.hook, f"guideway_{name}")) for name in Hooks.__slots__})


def validate(plugin: str, validator: Validator, subject: Submission | Request, context: ValidationContext) -> None:
    """Call one validator. Raises `InvalidRequest` if it refuses or fails: after a failure nothing is known about
    `subject`."""
    try:
        with blame(plugin, f"validate_{type(subject).__name__.lower()}", passing=(InvalidRequest,)):
            validator(subject, context)
    except PluginError as error:
        raise InvalidRequest(
            f"validator {plugin} failed, so the request is refused: {text_of(error.__cause__ or error)}",
            field="request",
        ) from error


def observe(hooks: Sequence[Hook], **arguments: object) -> None:
    """Call observers; an exception does not affect the request or other observers."""
    for hook in hooks:
        try:
            hook(**arguments)
        except BaseException as error:
            contain(error)
            log.warning("observer %s failed", hook.plugin, exc_info=True)


def _collect(caller: Any) -> tuple[Hook, ...]:
    return tuple(Hook(i.plugin_name, i.function, i.argnames) for i in reversed(caller.get_hookimpls()))
