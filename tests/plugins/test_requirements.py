"""Checks of requirements before a plugin is imported."""

from __future__ import annotations

import pytest
from guideway.plugins.requirements import extra_with, missing_distributions, version_conflict
from hypothesis import given
from hypothesis import strategies as st


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
        ("guideway>=3; python_version < '4'", "0.1", False),
        ("guideway>=3; python_version < '3'", "0.1", True),
        ("guideway>=3; extra == 'x'", "0.1", True),
        ("guideway>=3; nonsense == 'x'", "0.1", True),
        ("guideway>=1!0.1", "0.2", False),
        ("guideway==0.1.0.dev0,<1", "0.1.0.dev0", True),
        ("guideway==0.1.0.dev0,>=0.1", "0.1.0.dev0", True),
        ("guideway>=0.1", "0.1.0rc1", True),
        ("guideway===0.1.0.dev0", "0.1.0.dev0", True),
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
    assert version_conflict((requirement,), "guideway", version) == (None if fits else requirement)


@given(st.text(), st.text())
def test_it_never_raises(requirement: str, version: str) -> None:
    version_conflict((requirement, f"guideway{requirement}"), "guideway", version)
    extra_with([requirement, f"guideway{requirement}"], "guideway")


def test_missing_distributions() -> None:
    requires = ["pytest>=1", "Gwt_Nowhere[x]>=2", "gwt-elsewhere; extra == 'y'", "%%%", "gwt-old; python_version < '3'"]
    assert missing_distributions([*requires, "gwt-new; python_version > '3'"]) == ("gwt-nowhere", "gwt-new")


@pytest.mark.parametrize(
    ("requirement", "extra"),
    [
        ("gwt-far>=1; extra == 'y'", "y"),
        ('Gwt.Far[x] ; python_version > "3" and extra=="y"', "y"),
        ("gwt-far>=1", None),
        ("gwt-farther; extra == 'y'", None),
        ("gwt-far; python_version > '3'", None),
        ("gwt-far; python_version < '3' and extra == 'y'", None),
        ("gwt-far; extra == 'x' or extra == 'y'", "x"),
    ],
)
def test_extra_with(requirement: str, extra: str | None) -> None:
    assert extra_with(["pytest", requirement], "gwt_far") == extra
