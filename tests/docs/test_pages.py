"""Every block of every page is run, used, compared or parsed; see `tests.docs.follow`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from guideway.command_line.program import main

from tests.docs.blocks import ROOT, fenced, pages
from tests.docs.follow import commands, follow

ELSEWHERE = {
    "README.md": "tests/docs/test_readme.py",
    "contrib/guideway-legacy/README.md": "tests/docs/test_legacy_page.py",
    "docs/configuration.md": "tests/docs/test_configuration.py",
    "docs/engine.md": "tests/docs/test_engine_page.py",
    "docs/hosts/vllm.md": "tests/vllm/test_vllm_page.py",
    "docs/tutorial.md": "tests/docs/test_tutorial.py",
    **{f"docs/writing/{path.name}": "tests/docs/test_writing.py" for path in (ROOT / "docs/writing").iterdir()},
    "docs/writing/porting.md": "tests/docs/test_porting.py",
}
"""Pages with a test of their own, which follows all their blocks and tests the results in more detail."""

SLOW = {
    "docs/cookbook.md",
    "docs/modifiers.md",
    "docs/records.md",
    "docs/serving.md",
    "docs/workflows.md",
    "plugins/guideway-cpu/README.md",
    "plugins/guideway-xla/README.md",
    *(
        f"contrib/guideway-{name}/README.md"
        for name in (
            *("repetition", "sampling", "watermark", "steering", "cfg", "healing"),
            *("demo-model", "tenant-policy", "layer-timing"),
        )
    ),
}
"""Pages whose programs take long."""


def test_pages_with_a_test_of_their_own_have_it() -> None:
    assert ELSEWHERE.keys() <= set(pages())
    for page, test in ELSEWHERE.items():
        code = (ROOT / test).read_text("utf-8")
        assert "fenced(" in code or "follow(" in code, f"{test} does not take all blocks of {page}"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page in SLOW else ()) for page in pages() if page not in ELSEWHERE],
)
def test_a_reader_can_follow(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path)


@pytest.mark.parametrize("page", ["README.md", "docs/cookbook.md"])
def test_a_page_shows_the_verdict_of_inspect(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    blocks = fenced(page)
    for block in blocks:
        if block.title.endswith(".json"):
            Path(block.title).write_text(block.code, encoding="utf-8")
    ((at, shown),) = (
        (i, block) for i, block in enumerate(blocks) if block.unchecked == "the verdict of the command above"
    )
    (command,) = commands(blocks[at - 1].code)
    assert main(command[1:]) == 1
    assert capsys.readouterr().out.startswith(shown.code)


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("```rust\nfn main() {}\n```", "nobody knows what to do with a block of rust"),
        ("    ```sh\n    make test\n    ```", "a fence is overlooked"),
        ("```\npip install guideway-llguidance\n```", "a picture has no language"),
        ("```sh\nguidewai plugins list\n```", "nobody knows what to do with the program 'guidewai'"),
        ("```sh\nguideway plugins lst\n```", "ended with status 2"),
        ("```sh\nguideway conform grammar.mine --up-two core\n```", "ended with status 2"),
        ("```sh\npython -m guideway_demo_model.training.evaluate --smples 3\n```", "ended with status 2"),
        ("```sh\npython no/such/file.py\n```", "No such file"),
        ("```sh\npython -m pytest no/such/tests\n```", "no/such/tests"),
        ("```sh\nmake everything\n```", "returned non-zero exit status 2"),
        ("```sh\npip install guideway-llguidanse\n```", "No package metadata was found"),
        ("```sh\npip install ./plugins/guideway-mine\n```", "Expected package name"),
        ('```sh\npip install "guideway[engine,engin]"\n```', "no extras {'engin'}"),
        ("""```sh\nvllm serve M --additional-config '{"guideway": {"grammar": ["llguidanse"]}}'\n```""", "llguidanse"),
        ("```sh\necho 'unfinished\n```", "the command does not end"),
        ("```python\nEngineConfig()\n```", "'EngineConfig' is not defined"),
        ('```python title="mine.py"\nfrom guideway import Engin\n```', "Engin"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```", "it shows\n2\nbut that is\n1\n"),
        ("```text\nwhat nobody said\n```", "what no block before it prints"),
        ("```toml\nmax_num_seq = 3\n```", "did you mean 'max_num_seqs'"),
        ("```json\n{\n```", "Expecting property name"),
    ],
)
def test_what_a_reader_could_not_follow_is_found(block: str, problem: str, tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "reader"
    page.write_text(f"# A page\n\n{block}\n", encoding="utf-8")
    folder.mkdir()
    with pytest.raises(Exception, match=re.escape(problem)):
        follow(str(page), folder)


def test_what_is_not_run_says_why(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('```sh unchecked="an example"\nformat c:\n```\n', encoding="utf-8")
    assert follow(str(page), tmp_path).outputs == []
    page.write_text('```sh unchecked=""\nformat c:\n```\n', encoding="utf-8")
    with pytest.raises(AssertionError, match="a fence is overlooked"):
        fenced(str(page))
