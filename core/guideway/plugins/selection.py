"""Find the record for a name, and whether the operator allows it to run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from guideway.api import CONTRACT
from guideway.api.options import Range, check_fields, known_fields_only
from guideway.errors import InvalidConfiguration, PluginConflict, PluginNotFound, PluginUnavailable, did_you_mean
from guideway.plugins.index import PluginIndex, PluginRecord
from guideway.plugins.kinds import HOOKS, KINDS, normalize
from guideway.plugins.operator_files import FILE_KINDS, is_file, located, name_in, path_of, version_of

__all__ = ["PluginSettings", "denial", "matching", "resolve"]


@known_fields_only
@dataclass(frozen=True, kw_only=True)
class PluginSettings:
    """The ``[plugins]`` table of a configuration. Raises `InvalidConfiguration` for values that cannot have an effect.

    `allow` and `deny` are globs over ``distribution/kind.name``, such as ``guideway-*/*`` or ``*/modifier.*``.
    """

    enable: tuple[str, ...] = ()
    """The enabled ``hooks`` components, as ``name`` or ``distribution/name``, in the order of calls."""
    allow: tuple[str, ...] = ("*",)
    """Only components that match one of these may run."""
    deny: tuple[str, ...] = ()
    """Components that match one of these may not run, even if `allow` matches them."""
    require: Literal["installed", "certified"] = "installed"
    """``certified``: refuse components without a passed report in the lock file; ``installed``: only warn."""
    lock: Annotated[str, Range(1), "the path of a lock file"] | None = None
    """The lock file; None: ``guideway.lock`` in the folder of the Python environment."""

    def __post_init__(self) -> None:
        check_fields(self, table="plugins")
        for option in ("enable", "allow", "deny"):
            object.__setattr__(self, option, tuple(getattr(self, option)))
        object.__setattr__(self, "enable", tuple(map(located, self.enable)))
        named: dict[str, str] = {}
        for address in self.enable:
            name = name_in(address) if is_file(address) else address.rpartition("/")[2].removeprefix(f"{HOOKS}.")
            other = named.setdefault(name, address)
            if other != address and (is_file(other) or is_file(address)):
                raise InvalidConfiguration(
                    f"[plugins] enable has {HOOKS} {name!r} twice: {other!r} and {address!r}", field="plugins.enable"
                )
        for option in ("allow", "deny"):
            for glob in getattr(self, option):
                if glob != "*" and "/" not in glob:
                    raise InvalidConfiguration(
                        f"[plugins] {option}: {glob!r} can match nothing, because globs are matched against "
                        f"'distribution/kind.name'; write '*/{glob}' or '{glob}/*'",
                        field=f"plugins.{option}",
                    )


def denial(settings: PluginSettings, record: PluginRecord) -> str | None:
    """Return why `record` may not run, or None if it may."""
    for glob in settings.deny:
        if _matches(record, glob):
            return f"[plugins] deny has {glob!r}"
    if not any(_matches(record, glob) for glob in settings.allow):
        allowed = ", ".join(map(repr, settings.allow)) or "nothing"
        return f"[plugins] allow has no glob that matches it (it has {allowed})"
    return None


def _matches(record: PluginRecord, glob: str) -> bool:
    distribution, slash, rest = glob.partition("/")
    return fnmatchcase(record.id, normalize(distribution) + slash + rest)


def matching(index: PluginIndex, address: str) -> list[PluginRecord]:
    """Return the records of any kind that match ``[DISTRIBUTION/][KIND.]NAME``, whether or not they may run. Raises
    `PluginNotFound`, with a similar name, if there is none."""
    distribution, _, rest = address.rpartition("/")
    found = [r for r in index.records if rest in (r.name, f"{r.kind}.{r.name}") and _is_of(r, distribution)]
    if not found:
        every = {text for r in index.records for text in (r.name, f"{r.kind}.{r.name}", r.id)}
        hint = did_you_mean(address, sorted(every)) or "guideway plugins list names what is installed"
        raise PluginNotFound(f"no installed plugin is called {address!r}; {hint}", plugin=address)
    return found


def resolve(index: PluginIndex, settings: PluginSettings, kind: str, address: str) -> PluginRecord:
    """Return the record of a component of `kind` for `address`.

    `address` is ``name``, ``distribution/name``, either with ``kind.`` before the name, or that of an operator's own
    file. Raises `PluginNotFound`,
    `PluginConflict` if two distributions claim the name, and `PluginUnavailable` if the operator denied it.
    """
    if is_file(address):
        return _of_file(settings, kind, address)
    if kind not in KINDS:
        raise PluginNotFound(f"there is no kind of plugin {kind!r}; kinds: {', '.join(KINDS)}", plugin=address)
    distribution, _, name = address.rpartition("/")
    name = name.removeprefix(f"{kind}.")
    claims = [r for r in index.named(kind, name) if _is_of(r, distribution)]
    if not claims:
        raise PluginNotFound(_not_found(index, kind, name, distribution), plugin=f"{kind}.{name}")
    denials = {record: denial(settings, record) for record in claims}
    permitted = [record for record in claims if denials[record] is None]
    if not permitted:
        record = claims[0]
        raise PluginUnavailable(
            f"{kind} {name!r} ({record}) is installed but may not run: {denials[record]}", plugin=record.id
        )
    if len(permitted) > 1:
        raise PluginConflict(
            f"{kind} {name!r} is claimed by {len(permitted)} distributions: "
            + " and ".join(f"{r.distribution} ({r.version} at {r.location})" for r in permitted)
            + f". Write {' or '.join(repr(f'{r.distribution}/{r.name}') for r in permitted)}, or uninstall one of them",
            plugin=f"{kind}.{name}",
        )
    return permitted[0]


def _of_file(settings: PluginSettings, kind: str, address: str) -> PluginRecord:
    """Return the record of a component in an operator's own file."""
    if kind not in FILE_KINDS:
        raise PluginNotFound(
            f"a {kind} cannot be in a file ({address!r}), only {', '.join(FILE_KINDS)} can; write a package: guideway "
            f"plugins new {kind} NAME",
            plugin=address,
        )
    address = located(address)
    path = path_of(address)
    distribution = normalize(f"file-{path.name}")
    record = PluginRecord(kind, name_in(address), address, distribution, version_of(address), str(path.parent))
    if reason := denial(settings, record):
        raise PluginUnavailable(f"{record} may not run: {reason}", plugin=record.id)
    return record


def _is_of(record: PluginRecord, distribution: str) -> bool:
    return not distribution or record.distribution == normalize(distribution)


def _not_found(index: PluginIndex, kind: str, name: str, distribution: str) -> str:
    """Return the error message for an unknown address, with suggestions."""
    of_kind = [r for r in index.records if r.kind == kind]
    names = sorted({r.name for r in of_kind if not r.is_for_tests})
    where = f" in distribution {distribution!r}" if distribution else ""
    lines = [f"no {'hooks plugin' if kind == HOOKS else kind} named {name!r} is installed{where}"]
    if kind in FILE_KINDS and ".py" in name:
        lines.append("a class in a file is written with a slash in its path and its name, such as './mine.py:Mine'")
    elif hint := did_you_mean(name, [n for n in names if n != name]):
        lines.append(hint)
    if distribution:
        lines += [f"{r.distribution} offers one: write '{r.distribution}/{name}'" for r in of_kind if r.name == name]
    lines += [
        f"{r.distribution} {r.version} offers {r.kind}.{r.name}, which is of another kind"
        for r in index.records
        if r.name == name and r.kind != kind and _is_of(r, distribution)
    ]
    lines += [
        f"{r.distribution} {r.version} offers it for contract {r.group.removeprefix('guideway.')}, and this guideway "
        f"has contract {CONTRACT}: install versions of the two that fit together"
        for r in _same(index.foreign, kind, name, distribution)
    ]
    lines += [
        f"{r.distribution} {r.version} at {r.location} offers it, but metadata of another copy hides that one: "
        "guideway plugins doctor says which"
        for r in _same(index.shadowed, kind, name, distribution)
    ]
    lines.append(f"installed: {', '.join(names) or f'no {kind} at all'}")
    return "\n  ".join(lines)


def _same(records: Iterable[PluginRecord], kind: str, name: str, distribution: str) -> list[PluginRecord]:
    return [r for r in records if r.kind == kind and r.name == name and _is_of(r, distribution)]
