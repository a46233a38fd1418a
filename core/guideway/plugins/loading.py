"""Import the class that a record names. No other module imports plugins.

A component that failed stays failed in this process: loading it again raises the same error without running its code.
Selecting a component does not activate others, even of the same module.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any

from guideway import api
from guideway.errors import PluginExited, PluginLoadError, contain, did_you_mean, text_of
from guideway.plugins import moved
from guideway.plugins.contract import ContractViolation, check_class
from guideway.plugins.index import PluginRecord
from guideway.plugins.kinds import GROUP, HOOKS, KINDS
from guideway.plugins.operator_files import module_name
from guideway.plugins.requirements import extra_with, missing_distributions, version_conflict
from guideway.plugins.trial import ending, marked_interrupts
from guideway.version import __version__

__all__ = ["Loaded", "hook_manager", "incompatibility", "load", "missing_extra", "outcome", "record_of"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A component that is ready to use."""

    record: PluginRecord
    component: Any
    """The class; for the kind ``hooks`` the object with the hook implementations."""
    import_seconds: float
    """Seconds that importing its module took; about 0 if it was already imported."""


OF_THE_PROGRAM = ("guideway", "guideway-engine", "guideway-conformance")
"""Distributions of the program itself, which need not be loaded in a fork first."""

forks_first = False
"""True in the program `guideway`: plugins of other distributions are loaded in a fork first."""

_LOCK = threading.RLock()
_OUTCOMES: dict[PluginRecord, Loaded | PluginLoadError] = {}


def load(record: PluginRecord) -> Loaded:
    """Check, import and verify `record`, once per process. Raises `PluginLoadError`, whose first line names plugin,
    version, location, phase and cause, and whose ``__cause__`` is the cause."""
    with _LOCK:
        if record not in _OUTCOMES:
            try:
                with marked_interrupts():
                    if forks_first and record.distribution not in OF_THE_PROGRAM:
                        with _phase(record, "importing"):
                            _try(record)
                    _OUTCOMES[record] = _load(record)
            except PluginLoadError as error:
                _OUTCOMES[record] = error
                raise
        found = _OUTCOMES[record]
    if isinstance(found, PluginLoadError):
        # a new error: raising the same one twice would keep the first traceback
        raise _error(record, str(found), found.__cause__) from found.__cause__
    return found


def outcome(record: PluginRecord) -> Loaded | PluginLoadError | None:
    """Return the result or error of `load` for `record` in this process; None if it was not loaded."""
    return _OUTCOMES.get(record)


def record_of(component: Any) -> PluginRecord | None:
    """Return the record for which `component` was loaded in this process; None if it was not loaded from an entry
    point."""
    found = (o for o in _OUTCOMES.values() if isinstance(o, Loaded) and o.component is component)
    return next((loaded.record for loaded in found), None)


def incompatibility(record: PluginRecord) -> str | None:
    """Return why `record` is incompatible with this guideway by its contract or requirements; None if it is not."""
    if record.group != GROUP:
        theirs = record.group.removeprefix("guideway.")
        return f"it is written for contract {theirs}, and this guideway has {api.CONTRACT}"
    requirement = version_conflict(record.requires, "guideway", __version__)
    return requirement and f"it requires {requirement!r}, but this is guideway {__version__}"


def _load(record: PluginRecord) -> Loaded:
    with _phase(record, "checking its requirements"):
        _check_requirements(record)
    getattr(api, KINDS[record.kind].base or "hookimpl")  # not part of the plugin's import time
    began = time.perf_counter()
    with _phase(record, "importing"):
        module, _, attributes = (part.strip() for part in record.value.partition(":"))
        plugin: Any = import_module(module_name(record.value, record.version) if record.is_file else module)
        if attributes:
            plugin = reduce(getattr, attributes.split("."), plugin)
        if record.is_file and record.kind == HOOKS:
            plugin = plugin()
    seconds = time.perf_counter() - began
    if record.is_file and record.kind != HOOKS:  # it names the class itself
        with _phase(record, "checking its class"):
            check_class(record, plugin)
        return Loaded(record, plugin, seconds)
    with _phase(record, "registering its hooks"):
        manager = hook_manager()
        manager.register(plugin, name=record.id)
        _check_hook_names(manager, plugin)
    if record.kind == HOOKS:
        with _phase(record, "checking its hooks"):
            _check_hooks(manager, plugin)
        return Loaded(record, plugin, seconds)
    hook = KINDS[record.kind].hook
    with _phase(record, f"calling its {hook}"):
        caller = getattr(manager.hook, hook)
        if not caller.get_hookimpls():
            raise LookupError(f"{record.value} has no @hookimpl function {hook}")
        component = caller(name=record.name)
        if component is None:
            raise LookupError(f"{hook}(name={record.name!r}) returned None")
    with _phase(record, "checking its class"):
        check_class(record, component)
    return Loaded(record, component, seconds)


class Ended(Exception):
    """Importing the plugin ended the process, with this status."""

    def __init__(self, status: int) -> None:
        how = f"with status {status}"
        if status < 0:
            how = f"by {signal.Signals(-status).name if -status in set(signal.Signals) else f'signal {-status}'}"
        super().__init__(f"it ends the process that imports it, {how}")
        self.status = status


def _try(record: PluginRecord) -> None:
    """Raise `Ended` if loading `record` ends a fork of this process."""
    status = ending(lambda: _load(record))
    if status is not None:
        raise Ended(status)


def _status(cause: BaseException | None) -> int | None:
    """Return the exit status of a process that does not catch `cause`; None for ordinary errors."""
    if isinstance(cause, Ended):
        return cause.status
    if isinstance(cause, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(cause, SystemExit):
        return cause.code if isinstance(cause.code, int) else int(cause.code is not None)
    return None


def _error(record: PluginRecord, message: str, cause: BaseException | None) -> PluginLoadError:
    status = _status(cause)
    if status is None:
        return PluginLoadError(message, plugin=record.id)
    return PluginExited(message, plugin=record.id, status=status)


def hook_manager() -> Any:
    """Return a new pluggy manager with guideway's hooks and no plugin."""
    # programs that only list plugins do not import pluggy
    import pluggy

    from guideway.api import hookspecs

    manager = pluggy.PluginManager("guideway")
    manager.add_hookspecs(hookspecs)
    return manager


@contextmanager
def _phase(record: PluginRecord, phase: str) -> Iterator[None]:
    """Convert exceptions in the block to `PluginLoadError`. Unlike `blame`, adds the plugin's location and hints."""
    try:
        yield
    except BaseException as cause:
        contain(cause)
        notes: list[str] = getattr(cause, "__notes__", [])
        text = text_of(cause).removesuffix(": ")
        if isinstance(cause, Ended):
            text = str(cause)
        elif (status := _status(cause)) is not None:
            text = f"{text} (exit status {status})"
        first, *more = [*text.splitlines(), *notes]
        lines = [
            f"{record.kind} {record.name!r} ({record.distribution} {record.version} at {record.location}) failed while "
            f"{phase}: {first}",
            *more,
        ]
        if isinstance(cause, ImportError) and not isinstance(cause, MissingDistribution | IncompatibleVersion):
            lines.append(f"hint: {_import_hint(record, cause)}")
        elif instead := _hint_for_keyword(cause):
            lines.append(f"hint: {instead}")
        if not record.is_file:
            lines.append(f"hint: guideway plugins doctor --import {record.id} imports it in a separate process")
        raise _error(record, "\n  ".join(lines), cause) from cause


def _import_hint(record: PluginRecord, cause: ImportError) -> str:
    if install := missing_extra(record, cause):
        return f"pip install '{install}'"
    if (instead := _hint_for_name(cause)) is not None:
        return instead
    module = record.value.partition(":")[0].strip()
    if isinstance(cause, ModuleNotFoundError) and f"{module}.".startswith(f"{cause.name}."):
        return (
            f"its entry point {record.kind}.{record.name} = {record.value!r} names a module that does not exist; "
            f"reinstall {record.distribution}, or report it to its author"
        )
    return "pip check names distributions that are missing or too old"


def _hint_for_name(cause: ImportError) -> str | None:
    """Return the hint for a removed name of guideway."""
    name = cause.name or ""
    if missing := re.match(r"ImportError: cannot import name '(\w+)'", text_of(cause)):
        name = f"{name}.{missing[1]}"
    while name and name not in moved.NAMES:
        name = name.rpartition(".")[0]
    return moved.NAMES.get(name)


def _hint_for_keyword(cause: BaseException) -> str | None:
    """Return the hint for a removed keyword of a guideway class."""
    called = re.match(r"TypeError: (\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", text_of(cause))
    return moved.KEYWORDS.get((called[1], called[2])) if called else None


def missing_extra(record: PluginRecord, cause: BaseException | None) -> str | None:
    """Return the requirement to install, ``distribution[extra]``, if `cause` is a missing module that an extra of the
    plugin's distribution requires; else None."""
    if not isinstance(cause, ModuleNotFoundError) or not cause.name:
        return None
    extra = extra_with(record.requires, cause.name)
    return extra and f"{record.distribution}[{extra}]"


class MissingDistribution(ImportError):
    """A required distribution is not installed."""


class IncompatibleVersion(ImportError):
    """The plugin is written for other versions of guideway."""


def _check_requirements(record: PluginRecord) -> None:
    if conflict := incompatibility(record):
        raise IncompatibleVersion(f"{conflict}\nhint: install versions of the two that are compatible")
    if missing := missing_distributions(record.requires):
        names = " ".join(missing)
        raise MissingDistribution(f"it requires {names}, which is not installed\nhint: pip install {names}")


def _check_hook_names(manager: Any, plugin: Any) -> None:
    """Raise, with hints, if the plugin implements a hook that is not guideway's."""
    try:
        manager.check_pending()
    except Exception as error:
        known = [name for name, caller in vars(manager.hook).items() if name[0] != "_" and caller.has_spec()]
        for caller in manager.get_hookcallers(plugin) or ():
            hint = moved.HOOKS.get(caller.name) or did_you_mean(caller.name, known)
            if hint and not caller.has_spec():
                error.add_note(f"hint: {hint}")
        raise


def _check_hooks(manager: Any, plugin: Any) -> None:
    implementations = [i for caller in manager.get_hookcallers(plugin) or () for i in caller.get_hookimpls()]
    if not implementations:
        raise ContractViolation("it implements no hook: its functions need @guideway.api.hookimpl")
    for implementation in implementations:
        if implementation.wrapper or implementation.hookwrapper:
            raise ContractViolation(
                f"{implementation.function.__name__} is a hook wrapper, which kind 'hooks' does not allow; use a plain "
                "@hookimpl function"
            )
