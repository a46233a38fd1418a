"""The tested plugin: an installed one by its entry point, or a bare class."""

from __future__ import annotations

import inspect
import sys
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from guideway import api
from guideway.errors import PluginConflict, PluginNotFound, contain, text_of
from guideway.plugins import loading
from guideway.plugins.index import PluginIndex, PluginRecord
from guideway.plugins.kinds import HOOKS, KINDS
from guideway.plugins.selection import matching

from guideway_conformance.registry import KIND_MODULES
from guideway_conformance.subjects import Settings

__all__ = ["Target", "find", "is_file"]


ADVICE = (
    ": a plugin is a class that derives from one of guideway.api's; or its methods, or the functions of the file, are "
    "hooks (with @hookimpl)"
)
"""The end of a message about a file without plugins."""


def find(address: str) -> PluginRecord:
    """Return the record of the installed plugin that ``[DISTRIBUTION/][KIND.]NAME`` means. Raises `PluginNotFound` if
    there is none, `PluginConflict` if there are several; both messages say what to write."""
    records = matching(PluginIndex.scan(), address)
    if len(records) > 1:
        choices = " or ".join(record.id for record in records)
        raise PluginConflict(f"{address!r} means {len(records)} plugins; write {choices}", plugin=address)
    return records[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A reference to a plugin, as plain values, so that another process finds the same one."""

    kind: str
    plugin: str | None = None
    """``distribution/kind.name``; None for a bare class."""
    module: str = ""
    qualname: str = ""
    """The name of a class, or of an object with hooks, in its module; empty if the module is the plugin."""
    file: str = ""
    """The file of a bare class."""
    settings: Settings = field(default_factory=Settings)

    @property
    def name(self) -> str:
        """The name in reports."""
        return self.plugin or f"{self.kind}.{self.qualname or self.module}"

    @property
    def component(self) -> str:
        """``kind.name``, or ``kind.Class`` for a bare class."""
        return self.name.rpartition("/")[2]

    @staticmethod
    def installed(address: str, settings: Settings | None = None) -> Target:
        """Return the installed plugin that ``[DISTRIBUTION/][KIND.]NAME`` means. Raises the errors of `find` and
        `of`."""
        return Target.of(find(address), settings)

    @staticmethod
    def of(record: PluginRecord, settings: Settings | None = None) -> Target:
        """Return the plugin of `record`. Raises `PluginNotFound` if there are no checks for it."""
        if record.kind not in KIND_MODULES:
            kinds = ", ".join(KIND_MODULES)
            raise PluginNotFound(
                f"{record.id} is of kind {record.kind}, whose contract is not settled: there are no checks for it "
                f"(there are for {kinds})",
                plugin=record.id,
            )
        if (record.kind, record.name) == ("workflow", "decode"):
            raise PluginNotFound(
                f"{record.id} generates: its requests are in many steps, and its parts are not those that the checks "
                "of workflows call, so there are none for it (there are for the grammars, devices, modifiers and "
                "workers that it runs)",
                plugin=record.id,
            )
        return Target(kind=record.kind, plugin=record.id, settings=settings or Settings())

    @staticmethod
    def of_class(cls: type, settings: Settings | None = None) -> Target:
        """Return a bare class, of the kind it inherits from, or of kind ``hooks`` if it has methods named like hooks.
        Raises TypeError if it is of no kind or not at the top level of a module, where another process can find it."""
        kinds = [kind for kind in KIND_MODULES if (base := KINDS[kind].base) and issubclass(cls, getattr(api, base))]
        if not kinds and any(name.startswith("guideway_") for name in dir(cls)):
            kinds = [HOOKS]
        if not kinds:
            raise TypeError(f"{cls.__qualname__} inherits from none of the classes of guideway.api that have checks")
        if "<locals>" in cls.__qualname__:
            raise TypeError(f"{cls.__qualname__} has to stand at the top level of its module: another process tests it")
        return Target(
            kind=kinds[0],
            module=cls.__module__,
            qualname=cls.__qualname__,
            file=str(Path(inspect.getfile(cls)).resolve()),
            settings=settings or Settings(),
        )

    @staticmethod
    def in_file(address: str) -> Target:
        """Return the class ``FILE.py:CLASS``, or the only one in ``FILE.py``; for hooks also the object
        ``FILE.py:OBJECT``, or the file itself, if its functions are hooks. Imports of the file are resolved as in
        ``python FILE.py``. Raises `PluginNotFound`, also for a file that cannot be imported."""
        path, _, qualname = address.partition(".py")
        file = Path(f"{path}.py").resolve()
        if not file.is_file():
            raise PluginNotFound(f"there is no file {path}.py", plugin=address)
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        try:
            module = _module(file.stem, str(file))
        except BaseException as error:
            contain(error)
            raise PluginNotFound(f"{file.name} cannot be imported: {text_of(error)}", plugin=address) from error
        classes = {name: value for name, value in vars(module).items() if _is_plugin(value, module.__name__)}
        name = qualname.removeprefix(":") or (next(iter(classes)) if len(classes) == 1 else "")
        hooks = {each for each, value in vars(module).items() if _has_hooks(value)}
        if name in hooks - {*classes} or (not name and not classes and _has_hooks(module)):
            return Target(kind=HOOKS, module=file.stem, qualname=name, file=str(file))
        if name not in classes:
            said = f"no plugin of the name {name!r}" if name else f"{len(classes) or 'no'} plugins"
            choices = [f"{path}.py:{found}" for found in classes]
            choices += [f"{path}.py"] if name and _has_hooks(module) else []
            advice = f"; write {' or '.join(choices)}" if choices else ADVICE
            raise PluginNotFound(f"{file.name} defines {said}{advice}", plugin=address)
        found = Target.of_class(classes[name])
        return replace(found, module=file.stem, file=str(file))

    def record(self) -> PluginRecord | None:
        """Return the installed plugin's record; None for a bare class."""
        if self.plugin is None:
            return None
        records = {record.id: record for record in PluginIndex.scan().records}
        if self.plugin not in records:
            raise PluginNotFound(f"{self.plugin} is not installed", plugin=self.plugin)
        return records[self.plugin]

    def load(self) -> Any:
        """Import the class, or the object with hooks."""
        record = self.record()
        if record is not None:
            return loading.load(record).component
        value: Any = _module(self.module, self.file)
        for part in self.qualname.split(".") if self.qualname else ():
            value = getattr(value, part)
        return value

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Target:
        settings = data.pop("settings")
        return Target(**data, settings=Settings(**{**settings, "requests": tuple(settings["requests"])}))


def is_file(address: str) -> bool:
    """Return whether an address means a class in a file."""
    return address.endswith(".py") or ".py:" in address


def _is_plugin(value: object, module: str) -> bool:
    """Return whether `value` is a class that has checks and is defined in `module`."""
    if not isinstance(value, type) or value.__module__ != module:
        return False
    try:
        Target.of_class(value)
    except TypeError:
        return False
    return True


def _has_hooks(value: object) -> bool:
    """Return whether `value` is a module or an object, not a class, with hooks among its functions."""
    if isinstance(value, type):
        return False
    names = list(vars(value)) if isinstance(value, ModuleType) else dir(type(value))
    return any(name.startswith("guideway_") and hasattr(getattr(value, name, None), "guideway_impl") for name in names)


def _module(name: str, file: str) -> Any:
    """Import a module by name if that finds `file`, else from the file: a test module need not be on the path."""
    if name != "__main__":
        try:
            module = import_module(name)
        except ImportError:
            module = None
        if module is not None and Path(getattr(module, "__file__", None) or "").resolve() == Path(file):
            return module
    spec = spec_from_file_location(f"_guideway_conformance_{Path(file).stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
