"""The files that a component's digest covers, and how often they are read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from zipfile import ZipFile

import pytest
from guideway.plugins import PluginIndex, PluginRecord
from guideway.plugins.digest import Digests

from tests.support.distributions import install
from tests.support.environments import Environment
from tests.support.stages import one_in

ENTRIES = {
    "device.one": "gwt_dig.one",
    "device.two": "gwt_dig.two",
    "device.three": "gwt_dig.three:plugin",
    "device.far": "gwt_far",
}
FILES = {
    "gwt_dig/__init__.py": "raise AssertionError('nothing is imported to be found')\n",
    "gwt_dig/shared.py": "from gwt_dig.helper import help\nclass Base: pass\n",
    "gwt_dig/helper.py": "def help(): pass\n",
    "gwt_dig/unused.py": "",
    "gwt_dig/one/__init__.py": "import guideway\nclass Wrong(guideway.GuidewayError): pass\n",
    "gwt_dig/one/device.py": (
        "from guideway.api import DeviceBackend\n"
        "from guideway.errors import GuidewayError\n"
        "class Failed(GuidewayError, DeviceBackend): pass\n"
    ),
    "gwt_dig/one/table.json": "{}",
    "gwt_dig/two/__init__.py": "",
    "gwt_dig/two/device.py": "from ..shared import Base\nclass Two(Base): pass\n",
    "gwt_dig/three.py": "def plugin():\n    from gwt_dig import helper\n",
    "gwt_far/__init__.py": "",
    "gwt_far/device.py": (
        "import torch\nimport gwt_library as library\nimport gwt_dig.one.device as near\n"
        "from guideway.devices import torch as ours\n"
        "class Module(torch.nn.Module, library.Base): pass\n"
        "class Far(near.Failed[int], ours.device.TorchDevice): pass\n"
    ),
    "gwt_library.py": "class Base: pass\n",
}


def write(site: Path, files: Mapping[str, str] = FILES) -> Path:
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text, encoding="utf-8")
    install(site, "gwt-dig", ENTRIES)
    return site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return write(tmp_path / "site")


def digests(site: Path) -> dict[str, str]:
    return {record.name: record.digest for record in PluginIndex.scan([str(site)]).records}


def test_a_source_is_parsed_once_for_all_scans(site: Path) -> None:
    before = digests(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ast.parse", None)
        again = digests(site)
    assert again == before


def test_it_is_computed_once_for_a_scan(site: Path) -> None:
    (record, *_) = PluginIndex.scan([str(site)]).records
    before = record.digest
    (site / "gwt_far" / "device.py").unlink()
    assert record.digest == replace(record).digest == before
    (again, *_) = PluginIndex.scan([str(site)]).records
    assert again == record and again.digest != before


@pytest.mark.parametrize(
    ("changed", "components"),
    one_in(
        3,
        [
            ("gwt_dig/one/__init__.py", {"one"}),
            ("gwt_dig/one/table.json", {"one"}),
            ("gwt_dig/one/new.txt", {"one"}),
            ("gwt_dig/one/device.py", {"one", "far"}),  # far has a base class in it
            ("gwt_dig/two/device.py", {"two"}),
            ("gwt_dig/shared.py", {"two"}),  # two has a base class in it
            ("gwt_dig/helper.py", {"two", "three"}),  # shared imports it, and so does three
            ("gwt_dig/three.py", {"three"}),
            ("gwt_dig/unused.py", set()),
            ("gwt_dig/__init__.py", set()),
            ("gwt_far/__init__.py", {"far"}),
            ("gwt_library.py", set()),  # not part of a plugin
            ("gwt_dig/one/__pycache__/device.nbi", set()),
            ("gwt_dig/one/device.pyc", set()),
            ("gwt_dig/one/.device.py.swp", set()),
        ],
    ),
)
def test_a_change_of_one_file_changes_the_digests_of(site: Path, changed: str, components: set[str]) -> None:
    before = digests(site)
    (site / changed).parent.mkdir(exist_ok=True)
    (site / changed).write_text(FILES.get(changed, "") + "\n# changed\n", encoding="utf-8")
    after = digests(site)
    assert {name for name in before if before[name] != after[name]} == components
    assert not [name for name in sys.modules if name.startswith(("gwt_dig", "gwt_far"))]


@pytest.mark.parametrize(
    ("changed", "components"),
    one_in(
        3,
        [
            ("guideway_conformance/grammar/undoing.py", set()),
            ("guideway_engine/engine.py", set()),
            ("guideway/api/device.py", set()),
            ("guideway/errors.py", set()),
            ("guideway/devices/numpy/device.py", {"device.numpy"}),
            ("guideway/devices/torch/mask.py", {"device.torch", "device.cpu", "device.triton"}),
            ("guideway_cpu/kernels.py", {"device.cpu"}),
        ],
    ),
)
def test_what_un_certifies_which_of_ours(changed: str, components: set[str]) -> None:
    assert {name for name, covered in files_of_ours().items() if changed in covered} == components


@cache
def files_of_ours() -> dict[str, Collection[str]]:
    """Return the files that the digest of each installed component covers."""
    records = PluginIndex.scan().records
    digests = Digests()
    digests.packages |= {record.value.partition(".")[0] for record in records}
    return {
        f"{record.kind}.{record.name}": digests.covered(record.value, None if record.editable else record.location)
        for record in records
    }


def test_an_install_an_editable_one_and_a_zip_have_the_same_digest(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ZipFile(tmp_path / "site.zip", "w") as archive:
        for path in sorted(site.rglob("*")):
            archive.write(path, path.relative_to(site))
    assert digests(tmp_path / "site.zip") == digests(site)
    # editable installs are searched on Python's path
    elsewhere = write(tmp_path / "source")
    records = PluginIndex.scan([str(site)]).records
    (site / "gwt_dig" / "one" / "table.json").write_text("[]", encoding="utf-8")
    monkeypatch.syspath_prepend(str(elsewhere))
    editable = {record.name: replace(record, editable=str(elsewhere)).digest for record in records}
    assert editable == digests(elsewhere) != digests(site)


@pytest.mark.slow
def test_what_pip_adds_does_not_count(bare: Environment, wheels: dict[str, Path], tmp_path: Path) -> None:
    for side in ("left", "right"):
        bare.install(wheels["good"], target=tmp_path / side, compiled=side == "right")
    assert list((tmp_path / "right").glob("**/*.pyc")) and not list((tmp_path / "left").glob("**/*.pyc"))
    assert digests(tmp_path / "left") == digests(tmp_path / "right") == digests(wheels["good"])


@pytest.mark.parametrize("value", ["gwt_nowhere", "gwt_dig.nowhere", "gwt_dig.three.plugin"])
def test_a_module_that_is_not_there_is_missing(site: Path, value: str) -> None:
    (record, *_) = PluginIndex.scan([str(site)]).records
    assert replace(record, value=value).digest == "missing"


@pytest.mark.parametrize("source", ["class X(", "\0", "class X(" + "(" * 500, b"\xff\xfe".decode("latin-1")])
def test_what_is_no_python_is_covered_all_the_same(site: Path, source: str) -> None:
    before = digests(site)
    (site / "gwt_dig" / "one" / "device.py").write_text(source, encoding="utf-8")
    assert digests(site)["one"] != before["one"]


def record_of(site: Path, name: str) -> PluginRecord:
    (record,) = PluginIndex.scan([str(site)]).named("device", name)
    return record


def test_a_link_that_leads_in_a_circle_or_nowhere(site: Path) -> None:
    (site / "gwt_dig" / "one" / "circle").symlink_to(site / "gwt_dig", target_is_directory=True)
    (site / "gwt_dig" / "one" / "nothing.py").symlink_to(site / "nowhere")
    before = record_of(site, "one").digest
    (site / "nowhere").write_text("", encoding="utf-8")
    assert record_of(site, "one").digest != before


def test_a_module_within_namespace_packages_is_found_without_an_import(tmp_path: Path) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / "inner" / "module.py").write_text("found = True\n", encoding="utf-8")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from guideway.plugins.sources import find_module, module_files\n"
        "spec = find_module('outer.inner.module')\n"
        "print(spec.name, [name for name, _ in module_files(spec)], 'outer' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "outer.inner.module ['outer/inner/module.py'] False\n", done.stderr
