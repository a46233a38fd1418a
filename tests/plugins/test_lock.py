"""The lock file, and its use by ``require = "certified"``."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from guideway.api import CONTRACT
from guideway.errors import InvalidConfiguration, NotCertified, PluginUnavailable
from guideway.plugins import PluginIndex, PluginRecord, Plugins, PluginSettings, bootstrap_worker
from guideway.plugins.lock import Lock, Locked, Verdict, certifying_command, default_lock
from guideway.plugins.plan import PlannedPlugin

from tests.support.environments import Environment, unpack


@pytest.fixture
def installed(bare: Environment, wheels: dict[str, Path], tmp_path: Path) -> Path:
    """Copy the good package to a folder that tests may change."""
    unpack(wheels["good"], tmp_path / "site")
    return tmp_path / "site"


def certify(lock: Lock, plugin_id: str, **changes: Any) -> Lock:
    """Return `lock` with the verdict that a conformance run would record."""
    plugin = lock.plugins[plugin_id].plugin
    verdict = replace(Verdict("sha256:report", plugin.digest, CONTRACT, ("core",)), **changes)
    return Lock({**lock.plugins, plugin_id: Locked(plugin, verdict)})


@pytest.mark.slow
def test_it_reads_what_it_wrote(installed: Path, tmp_path: Path) -> None:
    lock = certify(Lock.of(PluginIndex.scan([str(installed)]).records), "gwt-good/grammar.good")
    lock.write(tmp_path / "guideway.lock")
    # it has no versions of libraries: they differ between machines on which a plugin is the same
    written = {name: replace(each, plugin=replace(each.plugin, libraries=())) for name, each in lock.plugins.items()}
    assert Lock.read(tmp_path / "guideway.lock") == Lock(written)
    assert sorted(lock.plugins) == ["gwt-good/grammar.better", "gwt-good/grammar.good", "gwt-good/worker.good"]
    assert [path.name for path in tmp_path.glob("*guideway.lock*")] == ["guideway.lock"]


@pytest.mark.slow
def test_differences(installed: Path) -> None:
    index = PluginIndex.scan([str(installed)])
    lock = Lock.of(index.records)
    assert lock.differences(index) == {}
    (installed / "gwt_good.py").write_text("changed = True\n")
    index = PluginIndex.scan([str(installed)])
    changed = {record.id for record in index.records if record.kind == "grammar"}
    assert lock.differences(index).keys() == changed
    assert all(row.startswith("digest: locked ") for (row,) in lock.differences(index).values())
    newer = PluginIndex(tuple(replace(record, value="elsewhere") for record in index.records[:1]))
    found = lock.differences(newer)
    assert any("value: locked gwt_good:plugin, now elsewhere" in row for rows in found.values() for row in rows)
    assert found["gwt-good/worker.good"] == ("locked 1.0, not installed now",)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "plugins": {}}',
        '{"format": 1, "plugins": []}',
        '{"format": 1, "plugins": {"a/b.c": {}}}',
        '{"format": 1, "plugins": {"a/b.c": {"version": "1", "value": "m", "digest": "d", "conformance": {"x": 1}}}}',
    ],
)
def test_a_file_that_is_no_lock_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "guideway.lock").write_text(content)
    with pytest.raises(InvalidConfiguration, match="is not a lock file"):
        Lock.read(tmp_path / "guideway.lock")


def certified(site: Path, lock: Path) -> Plugins:
    return Plugins(PluginIndex.scan([str(site)]), PluginSettings(require="certified", lock=str(lock)))


@pytest.mark.slow
def test_certified_refuses_what_is_unproven(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "guideway.lock"
    lock = Lock.of(PluginIndex.scan([str(installed)]).records)
    certify(lock, "gwt-good/grammar.good").write(path)
    assert certified(installed, path).resolve("grammar", "good")
    with pytest.raises(PluginUnavailable) as caught:
        certified(installed, path).resolve("worker", "good")
    assert "no passed conformance report" in str(caught.value)
    assert f"guideway conform gwt-good/worker.good --record --lock {path}" in str(caught.value)

    certify(lock, "gwt-good/grammar.good", contract="0.9").write(path)
    with pytest.raises(PluginUnavailable, match=r"certified for contract 0\.9"):
        certified(installed, path).resolve("grammar", "good")

    certify(lock, "gwt-good/grammar.good", levels=("smoke",)).write(path)
    with pytest.raises(PluginUnavailable, match="not at core"):
        certified(installed, path).resolve("grammar", "good")


@pytest.mark.slow
def test_the_command_of_a_refusal_names_the_lock_file_only_where_it_has_to(installed: Path, tmp_path: Path) -> None:
    grammar, *_, worker = PluginIndex.scan([str(installed)]).records
    assert certifying_command([grammar], default_lock()) == f"guideway conform {grammar.id} --record"
    command = certifying_command([grammar, worker], "my locks")
    assert command == f"guideway conform {grammar.id} {worker.id} --record --lock 'my locks'"


def test_the_default_lock_file_is_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GUIDEWAY_PLUGINS_LOCK", raising=False)
    paths = []
    for folder in (tmp_path, tmp_path.parent):
        monkeypatch.chdir(folder)
        paths.append(Plugins(PluginIndex(())).lock_file)
    assert paths == [str(Path(sys.prefix, "guideway.lock"))] * 2
    monkeypatch.setenv("GUIDEWAY_PLUGINS_LOCK", "/there/it.lock")
    assert Plugins(PluginIndex(())).lock_file == "/there/it.lock"


def test_all_that_is_not_certified_is_one_error(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "guideway.lock"
    with pytest.raises(NotCertified) as caught:
        certified(installed, path).plan([("grammar", "good"), ("worker", "good"), ("grammar", "better")], {})
    told = str(caught.value)
    every = ["gwt-good/grammar.good", "gwt-good/worker.good", "gwt-good/grammar.better"]
    assert f"{path} has no verdict that stands for these 3 plugins:" in told and caught.value.plugin == every[0]
    assert told.count("no passed conformance report") == 3 and "plugins lock" not in told
    assert told.endswith(f"to certify them: guideway conform {' '.join(every)} --record --lock {path}")


@pytest.mark.slow
def test_of_a_provisional_kind_the_files_have_to_be_those_that_were_locked(installed: Path) -> None:
    def record() -> PluginRecord:
        return replace(PluginIndex.scan([str(installed)]).records[0], kind="executor")

    assert Lock({}).certification(record()).state == "unproven"
    lock = Lock.of([record()])
    assert lock.certification(record()).accepted
    (installed / "gwt_good.py").write_text("changed = True\n")
    found = lock.certification(record())
    assert found.state == "stale" and not found.accepted


@pytest.mark.slow
def test_a_verdict_is_recorded_for_the_files_it_is_about(installed: Path) -> None:
    record = PluginIndex.scan([str(installed)]).records[0]
    digest = Lock.of([record]).plugins[record.id].plugin.digest
    verdict = Verdict("sha256:report", digest, CONTRACT, ("smoke", "core"))
    assert Lock({}).certified(record, verdict).certification(record).accepted
    (installed / "gwt_good.py").write_text("changed = True\n")
    (record, *_) = PluginIndex.scan([str(installed)]).records
    with pytest.raises(PluginUnavailable, match="changed while it was tested"):
        Lock({}).certified(record, verdict)


def test_certified_refuses_what_changed_since(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "guideway.lock"
    records = PluginIndex.scan([str(installed)]).records
    certify(Lock.of(records), "gwt-good/grammar.good").write(path)
    (installed / "gwt_good.py").write_text("changed = True\n")
    with pytest.raises(PluginUnavailable, match="its files changed after it was certified"):
        certified(installed, path).resolve("grammar", "good")
    # locking again does not keep the verdict
    records = PluginIndex.scan([str(installed)]).records
    assert Lock.of(records, Lock.read(path)).plugins["gwt-good/grammar.good"].verdict is None


@pytest.mark.slow
def test_a_worker_relies_on_the_verdicts_its_parent_checked(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "guideway.lock"
    certify(Lock.of(PluginIndex.scan([str(installed)]).records), "gwt-good/grammar.good").write(path)
    plan = certified(installed, path).plan([("grammar", "good")], {})
    path.unlink()  # a worker on another machine has no lock file
    monkeypatch.syspath_prepend(str(installed))
    assert bootstrap_worker(plan).resolve("grammar", "good")


def test_locking_again_keeps_verdicts_that_hold(installed: Path) -> None:
    records = PluginIndex.scan([str(installed)]).records
    lock = certify(Lock.of(records), "gwt-good/grammar.good")
    assert Lock.of(records, lock) == lock


@pytest.mark.slow
def test_the_file_is_plain_and_sorted(installed: Path, tmp_path: Path) -> None:
    lock = certify(Lock.of(reversed(PluginIndex.scan([str(installed)]).records)), "gwt-good/grammar.good")
    lock.write(tmp_path / "guideway.lock")
    content = json.loads((tmp_path / "guideway.lock").read_text())
    assert list(content["plugins"]) == sorted(content["plugins"])
    line = content["plugins"]["gwt-good/grammar.good"]
    assert line["version"] == "1.0" and line["value"] == "gwt_good"
    verdict = lock.plugins["gwt-good/grammar.good"].verdict
    assert verdict is not None and line["conformance"] == {**asdict(verdict), "levels": ["core"]}


def test_changes_at_once_lose_nothing_and_follow_no_link(tmp_path: Path) -> None:
    path, victim = tmp_path / "guideway.lock", tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".guideway.lock.{os.getpid()}").symlink_to(victim)
    ids = [f"d/grammar.p{i}" for i in range(12)]

    def add(plugin_id: str) -> None:
        locked = Locked(PlannedPlugin(plugin_id, "1.0", "module", "sha256:0"))
        Lock.update(path, lambda earlier: Lock({**earlier.plugins, plugin_id: locked}))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, ids))
    assert set(Lock.read(path).plugins) == set(ids)
    assert victim.read_text() == "precious"
    with pytest.raises(InvalidConfiguration, match=r"cannot change '.*nowhere/guideway.lock': No such file"):
        Lock.update(tmp_path / "nowhere" / "guideway.lock", lambda earlier: earlier)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InvalidConfiguration, match="it is a named pipe, not a regular file"):
        Lock.read(path)
