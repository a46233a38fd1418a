"""The library without the engine and the suite, which are separate distributions."""

from __future__ import annotations

import guideway
import guideway.conformance
import guideway_conformance
import guideway_engine.engine
import pytest

from tests.support.environments import Environment


@pytest.mark.parametrize(
    ("statement", "extra"),
    [
        ("from guideway import Engine", "engine"),
        ("from guideway import AsyncEngine", "engine"),
        ("from guideway.conformance import conformance", "conformance"),
    ],
)
def test_what_is_not_installed_says_how_to_install_it(bare: Environment, statement: str, extra: str) -> None:
    done = bare.run(str(bare.python), "-c", statement)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ModuleNotFoundError: ") and said.endswith(f": pip install 'guideway[{extra}]'")


def test_the_library_has_everything_else(bare: Environment) -> None:
    homes = {name: getattr(getattr(guideway, name), "__module__", "") for name in guideway.__all__}
    names = [name for name, home in homes.items() if not home.startswith("guideway_engine")]
    program = f"import guideway\nprint(len([getattr(guideway, name) for name in {names}]))"
    done = bare.run(str(bare.python), "-c", program)
    assert (done.returncode, done.stderr) == (0, "") and int(done.stdout) > 15


def test_names_of_the_others_are_theirs() -> None:
    assert guideway.Engine is guideway_engine.engine.Engine
    assert guideway_conformance.conformance is guideway_conformance.conformance
    with pytest.raises(AttributeError, match="no attribute 'Enigne'"):
        _ = guideway.Enigne  # type: ignore[attr-defined]
