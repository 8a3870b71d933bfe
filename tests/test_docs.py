"""Links of the docs lead somewhere, pages that code names exist, and the Markdown keeps its widths."""

from __future__ import annotations

import inspect
import re
import subprocess
from pathlib import Path

import pytest

from ckpt import Checkpointer

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests/README.md"])
LINE = 100
CELL = 120
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def test_every_relative_link_leads_to_a_file_and_a_heading() -> None:
    broken = []
    for page in PAGES:
        for target in LINK.findall(FENCE.sub("", page.read_text())):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            file = page.parent / path if path else page
            if not file.exists() or (anchor and anchor not in _anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert PAGES and not broken


def test_every_page_named_in_the_repository_exists() -> None:
    """Code, tests, templates and the Makefile name pages as docs/..., from the repository's root."""
    listed = subprocess.run(
        ["git", "grep", "-nIoE", r"\bdocs/[A-Za-z0-9_/.-]+\.(md|json|svg)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 128:
        pytest.skip("no git repository here")
    named = [line.split(":", 2) for line in listed.stdout.splitlines()]
    assert len(named) > 10
    assert [f"{file}:{line}: {page}" for file, line, page in named if not (ROOT / page).exists()] == []


def test_every_page_is_reached_from_the_map_of_the_docs() -> None:
    folder = ROOT / "docs"
    reached = {(folder / link.partition("#")[0]).resolve() for link in LINK.findall((folder / "README.md").read_text())}
    pages = {page for page in PAGES if folder in page.parents and page.name != "README.md"}
    assert sorted(str(page.relative_to(folder)) for page in pages - reached) == []


def test_prose_lines_and_table_cells_of_the_docs_are_short() -> None:
    """Lines that cannot be wrapped are exempt: code, tables, and lines that are one link or path."""
    wide = []
    for page in PAGES:
        fenced = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            fenced ^= line.startswith("```")
            if line.startswith("|"):
                cells = [len(cell.strip()) for cell in re.split(r"(?<!\\)\|", line)]
                is_wide = max(cells) > CELL
            else:
                is_code = fenced or line.startswith("    ")
                is_wide = len(line) > LINE and not is_code and " " in line.strip()[2:]
            if is_wide:
                wide.append(f"{page.relative_to(ROOT)}:{number}")
    assert wide == []


def test_the_keywords_of_save_that_pages_name_exist() -> None:
    named = {word for page in PAGES for word in re.findall(r"\.save\(step, state, (\w+)=", page.read_text())}
    assert named and named <= set(inspect.signature(Checkpointer.save).parameters)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
