"""Memory limit of all hosts together."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from guideway.api import GuidewayError, LimitExceeded, Regex
from guideway.plugins.limits import Limits
from guideway_hosts.host import HELD
from guideway_hosts.memory import usable_bytes
from guideway_hosts.strategy import HostedStrategy

from tests.support.hostility import VOCABULARY
from tests.support.hosts import Makes, makes_hosts
from tests.support.processes import until

TOTAL = 256 << 20


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Makes]:
    limits = Limits(memory_bytes=1 << 30, total_memory_bytes=TOTAL)
    with makes_hosts(tmp_path_factory.mktemp("installed"), ["hostile"], limits) as make:
        yield make


def ids(text: str) -> list[int]:
    return [VOCABULARY.tokens.index(letter.encode()) for letter in text]


def test_the_largest_is_ended_where_all_together_hold_too_much(made: Makes, caplog: pytest.LogCaptureFixture) -> None:
    """Ending idle hosts loses nothing: each constraint keeps 48 MiB in a compile host, and as much in a matcher
    host."""
    strategy = made().strategies["hostile"]
    grammars = []
    for letter in "abcdef":
        grammars.append(strategy.compile(Regex(f"CH{letter}", strategy="hostile")))
        assert HELD.held_bytes <= TOTAL
    assert "all together may hold 268435456 (limits.total_memory_bytes)" in caplog.text
    for letter, grammar in zip("abcdef", grammars, strict=True):
        matcher = grammar.matcher(VOCABULARY.stop_token_ids)
        assert matcher.validate(ids(f"CH{letter}")) == 3
        assert HELD.held_bytes <= TOTAL


def test_what_takes_more_than_others_leave_is_refused(made: Makes) -> None:
    """The refusal is temporary, because the constraint is within the limit of one host."""
    hosts, others = made(), made()
    idle = others.strategies["hostile"].compile(Regex("CHb", strategy="hostile"))
    at_work = threading.Thread(target=camp, args=[others.strategies["hostile"]])
    at_work.start()
    until(lambda: HELD.held_bytes > 100 << 20)
    greedy = Regex("CWa", strategy="hostile")
    with pytest.raises(LimitExceeded, match=re.escape("limits.total_memory_bytes")):
        hosts.strategies["hostile"].compile(greedy)
    assert HELD.held_bytes <= TOTAL
    assert at_work.is_alive()
    assert idle.matcher(VOCABULARY.stop_token_ids).validate(ids("CHb")) == 3
    others.close("grammar.hostile")
    at_work.join()
    hosts.strategies["hostile"].compile(greedy)


def camp(strategy: HostedStrategy) -> None:
    with pytest.raises(GuidewayError, match="killed or stopped from outside"):
        strategy.compile(Regex("CBa", strategy="hostile"))


GIB = 1 << 30


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/\n", {"memory.max": f"{GIB}\n"}, GIB),
        ("0::/a/b\n", {"a/memory.max": f"{GIB}\n", "a/b/memory.max": "max\n"}, GIB),
        ("0::/a/b\n", {"a/memory.max": f"{2 * GIB}\n", "a/b/memory.max": f"{GIB}\n"}, GIB),
        ("0::/not/mounted/here\n", {"memory.max": f"{GIB}\n"}, GIB),
        ("5:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ("5:cpu,memory:/a\n", {"memory/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ("5:cpu:/a\n", {"cpu/a/memory.limit_in_bytes": f"{GIB}\n"}, None),
        ("5:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
)
def test_limits_of_control_groups_count(groups: str, files: dict[str, str], found: int | None, tmp_path: Path) -> None:
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{n}": t for n, t in files.items()}}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    machine = usable_bytes(tmp_path / "nothing")
    assert usable_bytes(tmp_path) == min(machine, found or machine)


@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process_count(kind: str) -> None:
    program = f"""
import resource
from guideway_hosts.memory import usable_bytes
resource.setrlimit(resource.{kind}, (1_000_000_000, 2_000_000_000))
print(usable_bytes())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == min(1_000_000_000, usable_bytes())
