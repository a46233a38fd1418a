"""What a conformance run found, as data: the file that proves a verdict."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import guideway
from guideway.api.errors import InvalidConfiguration
from guideway.conformance.outcomes import Result
from guideway.conformance.registry import TIERS, Obligation, Tier, checks
from guideway.conformance.target import Target
from guideway.plugins.plan import PlannedPlugin

__all__ = ["FORMAT", "Report", "Verdict", "environment"]

FORMAT = "guideway.conformance/1"

Verdict: TypeAlias = Literal["certified", "failed", "incomplete", "known failures"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """A run. Plain values; `to_json` and `read` are inverse."""

    kind: str
    plugin: str
    """``distribution/kind.name``, or ``kind.Class`` for a bare class."""
    version: str | None
    """Of the distribution; None for a bare class."""
    digest: str | None
    """Of the plugin's files as they were tested; None for a bare class."""
    contract: str
    declared: tuple[str, ...]
    traits: tuple[str, ...]
    results: tuple[Result, ...]
    """One for each planned obligation, in the order of the plan."""
    environment: Mapping[str, str] = field(default_factory=dict)
    format: str = FORMAT

    @staticmethod
    def of(
        target: Target, contract: str, declared: Iterable[str], traits: Iterable[str], results: Sequence[Result]
    ) -> Report:
        """The report of `results` for `target` as it is installed now."""
        record = target.record()
        planned = PlannedPlugin.of(record) if record else None
        return Report(
            kind=target.kind,
            plugin=target.name,
            version=planned.version if planned else None,
            digest=planned.digest if planned else None,
            contract=contract,
            declared=tuple(sorted(declared)),
            traits=tuple(sorted(traits)),
            results=tuple(results),
            environment=environment(),
        )

    @property
    def planned(self) -> tuple[Obligation, ...]:
        """What the plugin owed in this run."""
        return tuple(result.obligation for result in self.results)

    @property
    def levels(self) -> tuple[Tier, ...]:
        """The tiers that are granted: each whose obligations, and those of all before it, were met."""
        tier_of = {check.id: check.tier for check in checks(self.kind)}
        granted: list[Tier] = []
        for tier in TIERS:
            of_tier = [result for result in self.results if tier_of.get(result.obligation.check) == tier]
            complete = {c.id for c in checks(self.kind) if c.tier == tier} <= self._concerned
            if not complete or any(result.outcome != "pass" for result in of_tier):
                break
            granted.append(tier)
        return tuple(granted)

    @property
    def verdict(self) -> Verdict:
        """``certified`` needs every planned obligation met, and the level ``core``. An absent device leaves its level
        ungranted, and makes the run incomplete if that level is ``core``."""
        outcomes = {result.outcome for result in self.results}
        if "fail" in outcomes:
            return "failed"
        if "error" in outcomes:
            return "incomplete"
        if "known_failure" in outcomes:
            return "known failures"
        return "certified" if "core" in self.levels else "incomplete"

    @property
    def _concerned(self) -> frozenset[str]:
        """The checks that are in this report, or do not concern this plugin under its contract."""
        from guideway.conformance.registry import plan

        owed = {obligation.check for obligation in plan(self.kind, self.declared, self.traits, contract=self.contract)}
        here = {result.obligation.check for result in self.results}
        return frozenset(check.id for check in checks(self.kind) if check.id in here or check.id not in owed)

    def to_json(self) -> dict[str, Any]:
        """As JSON data, the verdict and a digest of all the rest included."""
        content: dict[str, Any] = {
            "format": self.format,
            "kind": self.kind,
            "plugin": self.plugin,
            "version": self.version,
            "digest": self.digest,
            "contract": self.contract,
            "declared": list(self.declared),
            "traits": list(self.traits),
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
        """Of its content."""
        return str(self.to_json()["sha256"])

    def write(self, path: str | os.PathLike[str]) -> None:
        """As a JSON file."""
        Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Report:
        """Raises `InvalidConfiguration` if `path` is no report, or one that was changed after it was written."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise ValueError(f"its format is {data['format']!r}, and this guideway reads {FORMAT!r}")
            report = Report(
                kind=data["kind"],
                plugin=data["plugin"],
                version=data["version"],
                digest=data["digest"],
                contract=data["contract"],
                declared=tuple(data["declared"]),
                traits=tuple(data["traits"]),
                results=tuple(
                    Result(Obligation(line["check"], line["mode"]), line["outcome"], line["detail"], line["seconds"])
                    for line in data["results"]
                ),
                environment=data["environment"],
            )
            if _digest({key: value for key, value in data.items() if key != "sha256"}) != data["sha256"]:
                raise ValueError("its digest does not fit its content: it was changed after it was written")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidConfiguration(
                f"{os.fspath(path)} is no conformance report ({type(error).__name__}: {error}); "
                "guideway conform PLUGIN --report FILE makes one",
                field="report",
            ) from error
        return report


def environment() -> dict[str, str]:
    """What else decides an outcome: versions of everything a plugin may rest on, and the machine."""
    found = {
        "guideway": guideway.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for name in ("numpy", "torch", "jax", "hypothesis"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
