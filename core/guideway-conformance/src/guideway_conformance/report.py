"""The results of a conformance run, as data: the file that proves a verdict."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, TypeAlias, get_args

from guideway.errors import InvalidConfiguration
from guideway.files import read_file, reason, write_file
from guideway.plugins.kinds import normalize
from guideway.plugins.plan import PlannedPlugin
from guideway.version import __version__

from guideway_conformance.outcomes import Outcome, Result
from guideway_conformance.registry import TIERS, Mode, Obligation, Tier, checks, plan
from guideway_conformance.target import Target

__all__ = ["FORMAT", "INTERRUPTED", "NOT_PERFORMED", "Report", "Verdict", "by_tier", "environment"]

FORMAT = "guideway.conformance/1"

Verdict: TypeAlias = Literal["certified", "failed", "incomplete", "known failures"]


NOT_PERFORMED = "not performed"
INTERRUPTED = "not performed: a signal ended the run"


@dataclass(frozen=True, kw_only=True)
class Report:
    """A run. Consists of plain values; `from_json` is the inverse of `to_json`."""

    kind: str
    plugin: str
    """``distribution/kind.name``, or ``kind.Class`` for a bare class."""
    version: str | None
    """The version of the distribution; None for a bare class."""
    digest: str | None
    """The digest of the plugin's files as they were tested; None for a bare class."""
    contract: str
    up_to: Tier = TIERS[-1]
    """The last tier of the run."""
    declared: tuple[str, ...]
    traits: tuple[str, ...]
    results: tuple[Result, ...]
    """A result for each planned obligation, in the order of the plan."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings for constructing and using it, as in ``conformance.toml``; empty: a host's defaults."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def begun(
        target: Target, declared: Iterable[str], traits: Iterable[str], *, contract: str, up_to: Tier = TIERS[-1]
    ) -> Report:
        """Return the report of a run without results, on `target` as it is installed now."""
        record = target.record()
        planned = PlannedPlugin.of(record) if record else None
        declared, traits = tuple(sorted(declared)), tuple(sorted(traits))
        owed = plan(target.kind, declared, traits, contract=contract, up_to=up_to)
        return Report(
            kind=target.kind,
            plugin=target.name,
            version=planned.version if planned else None,
            digest=planned.digest if planned else None,
            contract=contract,
            up_to=up_to,
            declared=declared,
            traits=traits,
            results=tuple(Result(obligation, "error", NOT_PERFORMED) for obligation in owed),
            settings={name: value for name, value in asdict(target.settings).items() if value},
            environment=environment(record.requires if record else ()),
        )

    def with_results(self, results: Iterable[Result]) -> Report:
        """Return this report with these results. Results of obligations that were not planned are ignored."""
        known = {result.obligation: result for result in results}
        return replace(self, results=tuple(known.get(result.obligation, result) for result in self.results))

    @property
    def stem(self) -> str:
        """The name of files about this plugin, without suffix."""
        return self.plugin.replace("/", ".")

    @property
    def planned(self) -> tuple[Obligation, ...]:
        """The obligations of the plugin in this run."""
        return tuple(result.obligation for result in self.results)

    @property
    def owed(self) -> tuple[Obligation, ...]:
        """The obligations of the plugin under this contract, in a full run."""
        return plan(self.kind, self.declared, self.traits, contract=self.contract)

    @property
    def performed(self) -> int:
        """The number of obligations with a result."""
        return sum(result.outcome not in ("error", "not_run") for result in self.results)

    @property
    def met(self) -> int:
        """The number of obligations that the plugin met."""
        return sum(result.outcome == "pass" for result in self.results)

    @property
    def levels(self) -> tuple[Tier, ...]:
        """The granted tiers: each whose obligations were met, and whose previous tiers are granted, whether this run
        planned them or not. Tiers without obligations are skipped."""
        outcome = {result.obligation: result.outcome for result in self.results}
        granted: list[Tier] = []
        for tier, owed in by_tier(self.kind, self.declared, self.traits, self.contract).items():
            if any(outcome.get(obligation) != "pass" for obligation in owed):
                break
            if owed:
                granted.append(tier)
        return tuple(granted)

    @property
    def verdict(self) -> Verdict:
        """``certified`` requires every planned obligation and the level ``core``. A missing device leaves its level
        ungranted, and makes the run incomplete if that level is ``core``."""
        outcomes = {result.outcome for result in self.results}
        if "fail" in outcomes:
            return "failed"
        if "error" in outcomes:
            return "incomplete"
        if "known_failure" in outcomes:
            return "known failures"
        return "certified" if "core" in self.levels else "incomplete"

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data, with the verdict and a digest of everything else."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "kind": self.kind,
            "plugin": self.plugin,
            "version": self.version,
            "digest": self.digest,
            "contract": self.contract,
            "up_to": self.up_to,
            "declared": list(self.declared),
            "traits": list(self.traits),
            "settings": dict(self.settings),
            "environment": dict(self.environment),
            "planned": [[obligation.check, obligation.mode] for obligation in self.planned],
            "results": [
                {
                    "check": result.obligation.check,
                    "mode": result.obligation.mode,
                    "outcome": result.outcome,
                    "detail": result.detail,
                    "seconds": round(result.seconds, 3),
                }
                for result in self.results
            ],
            "verdict": self.verdict,
            "levels": list(self.levels),
        }
        return {**content, "sha256": _digest(content)}

    @property
    def sha256(self) -> str:
        """The SHA-256 of its content."""
        return str(self.to_json()["sha256"])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file. Raises `InvalidConfiguration` if that fails, and then keeps the earlier file."""
        write_file(path, self.to_text(), field="report")

    def to_text(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(self.to_json(), indent=2) + "\n"

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Report:
        """Read a report. Raises `InvalidConfiguration` if `path` is not one, or was changed after it was written."""
        try:
            return Report.from_json(json.loads(read_file(path)))
        except (OSError, ValueError) as error:
            raise InvalidConfiguration(
                f"{os.fspath(path)} is no conformance report: {reason(error)}; guideway conform PLUGIN --report FILE "
                "makes one",
                field="report",
            ) from error

    @staticmethod
    def from_json(data: Any) -> Report:
        """Parse a report. Raises ValueError if `data` is not a report, or does not match its digest."""
        try:
            if data["format"] != FORMAT:
                raise ValueError(f"its format is {data['format']!r}, and this guideway reads {FORMAT!r}")
            for line in data["results"]:
                if line["outcome"] not in get_args(Outcome) or line["mode"] not in get_args(Mode):
                    raise ValueError(f"{line['check']} has the outcome {line['outcome']!r} in mode {line['mode']!r}")
            names = [data["kind"], data["plugin"], data["contract"], *data["declared"], *data["traits"]]
            if not all(isinstance(name, str) for name in [*names, *(line["detail"] for line in data["results"])]):
                raise ValueError("it has something else where a text belongs")
            if data["up_to"] not in TIERS:
                raise ValueError(f"there is no tier {data['up_to']!r}")
            report = Report(
                **{key: data[key] for key in ("kind", "plugin", "version", "digest", "contract", "up_to")},
                declared=tuple(data["declared"]),
                traits=tuple(data["traits"]),
                results=tuple(
                    Result(Obligation(line["check"], line["mode"]), line["outcome"], line["detail"], line["seconds"])
                    for line in data["results"]
                ),
                settings=data["settings"],
                environment=data["environment"],
            )
            if _digest({key: value for key, value in data.items() if key != "sha256"}) != data["sha256"]:
                raise ValueError("its digest does not fit its content: it was changed after it was written")
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return report


def by_tier(
    kind: str, declared: Iterable[str], traits: Iterable[str], contract: str
) -> dict[Tier, tuple[Obligation, ...]]:
    """Return a plugin's obligations by tier, in order."""
    tier_of = {check.id: check.tier for check in checks(kind)}
    owed = plan(kind, declared, traits, contract=contract)
    return {tier: tuple(o for o in owed if tier_of[o.check] == tier) for tier in TIERS}


def environment(requirements: Iterable[str] = ()) -> dict[str, str]:
    """Return what else an outcome depends on: the machine, and the versions of the packages in `requirements`, which
    are written as in a plugin's metadata."""
    found = {
        "guideway": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    required = [match[0] for text in requirements if (match := re.match(r"[\w.-]+", text))]
    for name in dict.fromkeys(("numpy", "torch", "jax", "hypothesis", *map(normalize, required))):
        try:
            found.setdefault(name, version(name))
        except PackageNotFoundError:
            continue
    return found


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
