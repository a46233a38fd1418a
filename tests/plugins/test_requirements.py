"""The small rules by which requirements are checked before a plugin is imported."""

from __future__ import annotations

import pytest
from guideway.plugins.requirements import extra_with, missing_distributions, version_conflict
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version


@pytest.mark.parametrize(
    ("requirement", "version", "fits"),
    [
        ("guideway", "0.1", True),
        ("guideway>=0.1", "0.1.0.dev0", True),  # a development version counts as the release it leads to
        ("guideway>=0.2", "0.1.0", False),
        ("guideway<1,>=0.1.0.dev0", "0.1.0.dev0", True),
        ("guideway<1", "1.0.0.dev0", False),
        ("guideway (>=0.1)", "0.1", True),
        ("guideway (>=0.2)", "0.1", False),
        ("Guide.Way[engine]>=3", "0.1", True),  # another distribution
        ("GuideWay[engine]>=3", "0.1", False),
        ("guideway>=3; python_version < '4'", "0.1", True),  # markers are not evaluated
        ("guideway ~= 1.4", "1.9", True),
        ("guideway ~= 1.4", "2.0", False),
        ("guideway ~= 1.4.2", "1.5", False),
        ("guideway == 1.*", "1.7.3", True),
        ("guideway == 1.2.*", "1.3", False),
        ("guideway == 1.0", "1", True),
        ("guideway != 1.0", "1", False),
        ("guideway != 1.2.*", "1.2.9", False),
        ("guideway > 1.0", "1", False),
        ("guideway <= 1", "1.0.0", True),
        ("guideway @ https://example.org/guideway.whl", "0.1", True),
        ("guideway >= nonsense", "0.1", True),
        ("guideway>=0.2", "nonsense", True),
        ("", "0.1", True),
        ("%%%", "0.1", True),
    ],
)
def test_version_conflict(requirement: str, version: str, fits: bool) -> None:
    assert version_conflict([requirement], "guideway", version) == (None if fits else requirement)


releases = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
clauses = st.one_of(
    st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), releases).map("".join),
    st.tuples(st.sampled_from(["==", "!="]), releases, st.just(".*")).map("".join),
    st.tuples(st.just("~="), st.integers(0, 3).map(str), st.just("."), releases).map("".join),
)


@given(st.lists(clauses, max_size=3).map(",".join), releases)
def test_for_plain_releases_it_agrees_with_packaging(specifier: str, version: str) -> None:
    fits = Version(version) in SpecifierSet(specifier)
    assert (version_conflict([f"guideway{specifier}"], "guideway", version) is None) == fits


@given(st.text(), st.text())
def test_it_never_raises(requirement: str, version: str) -> None:
    version_conflict([requirement, f"guideway{requirement}"], "guideway", version)
    extra_with([requirement, f"guideway{requirement}"], "guideway")


def test_missing_distributions() -> None:
    requires = ["pytest>=1", "Gwt_Nowhere[x]>=2", "gwt-elsewhere; extra == 'y'", "%%%"]
    assert missing_distributions(requires) == ("gwt-nowhere",)


@pytest.mark.parametrize(
    ("requirement", "extra"),
    [
        ("gwt-far>=1; extra == 'y'", "y"),
        ('Gwt.Far[x] ; python_version > "3" and extra=="y"', "y"),
        ("gwt-far>=1", None),
        ("gwt-farther; extra == 'y'", None),
        ("gwt-far; python_version > '3'", None),
    ],
)
def test_extra_with(requirement: str, extra: str | None) -> None:
    assert extra_with(["pytest", requirement], "gwt_far") == extra
