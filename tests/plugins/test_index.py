"""The index of plugins, from metadata."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
from guideway import api
from guideway.api import hookspecs
from guideway.plugins import PluginIndex
from guideway.plugins.kinds import HOOKS, KINDS, normalize
from packaging.utils import canonicalize_name

from tests.support.environments import Environment


def test_every_component_is_found_and_nothing_imported(index: PluginIndex) -> None:
    found = {record.id for record in index.records}
    assert {"gwt-good/grammar.good", "gwt-good/worker.good", "gwt-segfault/device.segfault"} <= found
    assert {"guideway/device.numpy", "gwt-claim-one/worker.twice", "gwt-claim-two/worker.twice"} <= found
    assert not [name for name in sys.modules if name.startswith("gwt_")]


def test_a_record_says_what_and_where(index: PluginIndex, zoo: Environment) -> None:
    (record,) = index.named("grammar", "better")
    assert (record.value, record.distribution, record.version) == ("gwt_good:plugin", "gwt-good", "1.0")
    assert Path(record.location) == zoo.site
    assert record.requires == ("guideway",)
    assert record.editable is None


def test_order_does_not_depend_on_the_file_system(index: PluginIndex, zoo: Environment) -> None:
    kinds = [record.kind for record in index.records]
    assert kinds == sorted(kinds, key=list(KINDS).index)
    grammars = [(record.name, record.distribution) for record in index.records if record.kind == "grammar"]
    assert grammars == sorted(grammars)
    assert PluginIndex.scan([str(zoo.site)]) == index


def test_a_folder_that_is_on_the_path_twice_counts_once(index: PluginIndex, zoo: Environment, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(zoo.site)
    again = PluginIndex.scan([str(zoo.site), str(zoo.site), str(tmp_path / "link")])
    assert (again.records, again.shadowed, again.problems) == (index.records, (), index.problems)


def test_entries_nothing_can_be_made_of_are_problems(index: PluginIndex) -> None:
    problems = {problem.plugin: problem for problem in index.problems}
    assert problems["gwt-malformed/grammer.typo"].code == "unknown-kind"
    assert "'grammer'" in problems["gwt-malformed/grammer.typo"].message
    assert problems["gwt-malformed/justaname"].code == "malformed-entry"
    assert problems["gwt-malformed/worker.Upper"].code == "malformed-entry"
    assert index.named("worker", "fine"), "the good entry beside them is still there"


def test_another_contract_major_is_kept_apart(index: PluginIndex) -> None:
    assert [(r.id, r.group) for r in index.foreign] == [("gwt-other-major/grammar.future", "guideway.v2")]
    assert not index.named("grammar", "future")


def egg_info(folder: Path, name: str, version: str, entry_points: str | None = None) -> Path:
    """Create an .egg-info folder, as setuptools leaves in a source tree."""
    info = folder / f"{name.replace('-', '_')}.egg-info"
    info.mkdir(parents=True)
    (info / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nDescription\n")
    if entry_points is not None:
        (info / "entry_points.txt").write_text(entry_points)
    (info / "requires.txt").write_text("guideway\n\n[extra]\nsomething\n")
    return folder


def test_stale_metadata_that_hides_a_plugin_is_reported(zoo: Environment, tmp_path: Path) -> None:
    stale = egg_info(tmp_path, "gwt-good", "0.1")
    index = PluginIndex.scan([str(stale), str(zoo.site)])
    assert not index.named("grammar", "good")
    assert "gwt-good/grammar.good" in {record.id for record in index.shadowed}
    (problem,) = [problem for problem in index.problems if problem.plugin == "gwt-good"]
    assert (problem.code, problem.severity) == ("stale-metadata", "error")
    assert str(stale) in problem.message and str(zoo.site) in problem.message


def test_stale_metadata_that_is_hidden_is_reported(zoo: Environment, tmp_path: Path) -> None:
    stale = egg_info(tmp_path, "gwt_Good", "0.1", "[guideway.v1]\ngrammar.old = gwt_old\n")
    index = PluginIndex.scan([str(zoo.site), str(stale)])
    assert index.named("grammar", "good")
    assert not index.named("grammar", "old")
    assert [(r.id, r.requires) for r in index.shadowed] == [("gwt-good/grammar.old", ("guideway",))]
    assert [p.severity for p in index.problems if p.plugin == "gwt-good"] == ["error"]


def test_an_identical_copy_is_only_a_warning(tmp_path: Path) -> None:
    entry_points = "[guideway.v1]\ngrammar.same = gwt_same\n"
    paths = [egg_info(tmp_path / side, "gwt-same", "1", entry_points) for side in ("left", "right")]
    index = PluginIndex.scan([str(path) for path in paths])
    assert [p.severity for p in index.problems] == ["warning"]
    assert index.named("grammar", "same")[0].location == str(paths[0])


def test_what_pip_leaves_behind_hides_nothing(zoo: Environment, tmp_path: Path) -> None:
    (tmp_path / "gwt_good-0.9.dist-info").mkdir()
    index = PluginIndex.scan([str(tmp_path), str(zoo.site)])
    assert index.named("grammar", "good")
    assert [(p.code, p.severity) for p in index.problems if p.plugin == "gwt-good"] == [("stale-metadata", "warning")]


def test_unreadable_metadata_costs_nobody_else_theirs(zoo: Environment, tmp_path: Path) -> None:
    for name, content in (("a", b"[guideway.v1]\n\xff\xfe = x"), ("b", b"[guideway.v1]\ngrammar.b = x\n")):
        info = tmp_path / f"gwt_{name}-1.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_bytes(content)  # and no METADATA
    index = PluginIndex.scan([str(tmp_path), str(zoo.site)])
    assert [p.code for p in index.problems if p.plugin == str(tmp_path)] == ["unreadable-metadata"] * 2
    assert index.named("grammar", "good")


def test_a_wheel_on_the_path_is_indexed(wheels: dict[str, Path]) -> None:
    index = PluginIndex.scan([str(wheels["good"])])
    assert {record.name for record in index.records} == {"good", "better"}
    assert zipfile.is_zipfile(wheels["good"])


def test_a_broken_entry_value_is_a_problem(tmp_path: Path) -> None:
    egg_info(tmp_path, "gwt-v", "1", "[guideway.v1]\ngrammar.v = not a module\ngrammar.w = ok\ngrammar.w = twice\n")
    index = PluginIndex.scan([str(tmp_path)])
    assert [(r.name, r.value) for r in index.records] == [("w", "ok")]
    assert [p.code for p in index.problems] == ["malformed-entry", "malformed-entry"]


def test_every_component_hook_has_a_kind_and_a_base_class() -> None:
    hooks = {name for name in dir(hookspecs) if name.startswith("guideway_")}
    components = {name for name in hooks if "name" in getattr(hookspecs, name).__annotations__}
    assert {kind.hook for kind in KINDS.values() if kind.name != HOOKS} == components
    for kind in KINDS.values():
        assert kind.name == HOOKS or isinstance(getattr(api, kind.base), type)


@pytest.mark.parametrize("name", ["importlib_metadata", "zipp", "My..Strange_-Name", "UPPER.case"])
def test_names_are_normalized_as_packaging_does(name: str) -> None:
    assert normalize(name) == canonicalize_name(name)
