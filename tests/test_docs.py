"""What the repository says about itself can be followed: links, cited files, and the index of decisions."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
CITED = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|md|toml))`")
ELSEWHERE = re.compile(r"\b(?:DESIGN|SHAPE|STYLE)(?: ?§|\.md)|\bfacts/|\bshared/")
MADE_BY_A_RUN = {"run.toml", "server.py"}


def tracked(*suffixes: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in listing.splitlines() if name.endswith(suffixes) and (ROOT / name).is_file()]


def test_every_link_of_a_page_leads_somewhere() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in tracked(".md")
        for target in LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert dead == []


def test_nothing_cites_a_page_that_is_not_in_the_repository() -> None:
    cited = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in tracked(".py", ".md", ".toml", ".sh")
        if file != Path(__file__)
        for line in file.read_text().splitlines()
        if ELSEWHERE.search(line)
    ]
    assert cited == []


def test_every_file_that_code_cites_exists() -> None:
    names = {file.name for file in tracked("")}
    paths = {str(file.relative_to(ROOT)) for file in tracked("")}
    missing = [
        f"{file.relative_to(ROOT)}: {cited}"
        for file in tracked(".py")
        if file.is_relative_to(ROOT / "astraflow")
        for cited in CITED.findall(file.read_text())
        if cited not in MADE_BY_A_RUN
        and not (
            cited in names if "/" not in cited else any(path.endswith(f"/{cited}") or path == cited for path in paths)
        )
    ]
    assert missing == []


def test_decisions_are_numbered_and_in_the_index() -> None:
    pages = sorted(path.name for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert [int(name[:4]) for name in pages] == list(range(1, len(pages) + 1))
    index = LINK.findall((ROOT / "docs/decisions/README.md").read_text())
    assert sorted(index) == pages


def test_every_example_is_in_the_examples_page() -> None:
    listed = set(LINK.findall((ROOT / "examples/README.md").read_text()))
    files = {str(path.relative_to(ROOT / "examples")) for path in (ROOT / "examples").rglob("*.toml")}
    files |= {path.name for path in (ROOT / "examples").glob("*.py")}
    assert files <= listed
