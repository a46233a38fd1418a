"""Rules for the files of the repository."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from tests.repository.sources import CORE, ROOT, source_files

FRAGMENT = re.compile(r"[1-9][0-9]*\.(feature|change|fix|removal)\.md")

# reversed, so that this file does not match
FOLDERS = [name[::-1] for name in ("krow", "toor", "pmt", "tpo", "emoh")]
HOSTS = [name[::-1] for name in ("gro.ipyp", "gro.detsohnohtyp", "gro.hcrotyp.daolnwod", "moc.sjmpn.yrtsiger")]
MACHINE_PATHS = re.compile(rf"(?<![\w.$}}{{-])/({'|'.join(FOLDERS)})/")
REGISTRIES = re.compile("|".join(re.escape(host) for host in HOSTS))
INDEX_OPTIONS = re.compile(f"--(extra-)?index-{'lru'[::-1]}|PIP_(EXTRA_)?INDEX_{'LRU'[::-1]}")
SHARED = f"../{'derahs'[::-1]}"


def texts() -> list[tuple[Path, str]]:
    found = []
    for path in source_files():
        try:
            found.append((path.relative_to(ROOT), path.read_text("utf-8")))
        except UnicodeDecodeError:
            continue  # weights and other binary files
    return found


def places(pattern: re.Pattern[str], files: list[tuple[Path, str]]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in files
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("pattern", [MACHINE_PATHS, REGISTRIES, INDEX_OPTIONS], ids=["paths", "hosts", "options"])
def test_no_machine_path_and_no_registry(pattern: re.Pattern[str]) -> None:
    found = places(pattern, texts())
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["cd /{}/main", 'open("/{}/x")', "PATH=/{}/bin", "-- /{}/.ssh"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_machine_path_is_seen(text: str, folder: str) -> None:
    assert places(MACHINE_PATHS, [(Path("x"), text.format(folder))])


@pytest.mark.parametrize("host", HOSTS)
def test_a_registry_is_seen(host: str) -> None:
    assert places(REGISTRIES, [(Path("x"), f"https://files.{host}/simple")])


@pytest.mark.parametrize("line", ["constraints/root/x", "network/home/", "tests/tmp/x", "a /tmpfs/", "$HOME/opt/x"])
def test_other_paths_are_no_machine_paths(line: str) -> None:
    assert not places(MACHINE_PATHS, [(Path("x"), line)])


def test_only_ci_knows_of_the_shared_folder() -> None:
    assert {str(path) for path, text in texts() if SHARED in text} == {str(Path(".ci") / "run")}


def test_changelog_fragments_are_named_as_agreed() -> None:
    fragments = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    wrong = [path.name for path in fragments if not FRAGMENT.fullmatch(path.name)]
    assert not wrong, f"{wrong}: a fragment is named <issue>.<type>.md, see changelog.d/README.md"
    assert all(path.read_text("utf-8").strip() for path in fragments)


STRUCTURE = ROOT / "docs" / "structure.md"
PARTS_OF_CORE = [
    CORE,
    *(path for folder in ("hosts", "engine", "conformance") for path in CORE.parent.glob(f"*-{folder}/src/*")),
]


def map_of(root: Path) -> dict[str, str]:
    """Return the table of the folders of a package `root` in docs/structure.md: descriptions by folder."""
    text = STRUCTURE.read_text("utf-8")
    table = text[text.index(f"`{root.relative_to(ROOT).as_posix()}/`") :].split("\n\n")[1]
    lines = [line.strip("| ").split(" | ", 1) for line in table.splitlines()[2:]]
    return {folder: says for folders, says in lines for folder in re.findall("`(.+?)/`", folders)}


@pytest.mark.parametrize("root", PARTS_OF_CORE, ids=lambda root: root.name)
def test_structure_has_a_line_for_every_package(root: Path) -> None:
    packages = {path.parent.relative_to(root).as_posix() for path in root.rglob("__init__.py")} - {"."}
    assert map_of(root).keys() == packages | {root.name}


@pytest.mark.parametrize("root", PARTS_OF_CORE, ids=lambda root: root.name)
def test_the_files_and_folders_that_structure_speaks_of_are_there(root: Path) -> None:
    for folder, says in map_of(root).items():
        here = root if folder == root.name else root / folder
        gone = [name for name in re.findall(r"`([a-z_]+(?:/|\.py))`", says) if not (here / name).exists()]
        assert not gone, f"docs/structure.md says of {folder} what is no longer there: {gone}"


def test_structure_has_a_line_for_every_folder_of_the_repository() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in source_files() if path.parent != ROOT}
    listed = set(re.findall(r"`(\.?[a-z][a-z.]+)/`", STRUCTURE.read_text("utf-8").split("\nOther folders")[1]))
    assert folders - {"core"} <= listed


def test_structure_is_short() -> None:
    assert len(STRUCTURE.read_text("utf-8").splitlines()) <= 150


def test_the_runtime_has_few_rooms_and_knows_little_of_other_processes() -> None:
    runtime = CORE / "runtime"
    rooms = sorted({path.name for path in runtime.iterdir()} - {"__init__.py", "__pycache__"})
    assert len(rooms) <= 9, rooms
    assert len((runtime / "elsewhere.py").read_text().splitlines()) <= 60


def test_decisions_are_newest_first() -> None:
    headings = re.findall("^## (.*)$", (ROOT / "docs" / "decisions.md").read_text("utf-8"), re.MULTILINE)
    assert headings == sorted(map(str, map(date.fromisoformat, headings)), reverse=True)


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path, text in texts():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if not re.match(r"[a-z]+:", target) and not (ROOT / path.parent / target).exists():
                broken.append(f"{path}: {target}")
    assert not broken, "\n".join(broken)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub derives them from headings."""
    headings = re.findall("^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    plain = [re.sub(r"\]\([^)]*\)", "", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def test_links_to_headings_lead_to_one() -> None:
    broken = []
    for path, text in texts():
        if path.suffix != ".md":
            continue
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text):
            page = ROOT / path.parent / target if target else ROOT / path
            if not re.match(r"[a-z]+:", target) and page.suffix == ".md" and anchor not in anchors(page):
                broken.append(f"{path}: {target}#{anchor}")
    assert not broken, "\n".join(broken)


def test_ci_is_executable() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111 == 0o111
