"""What holds for the Markdown pages: links lead somewhere, decision records are few, dated and listed."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LISTED = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
PAGES = [ROOT / name for name in LISTED.split("\0") if name and (ROOT / name).is_file()]
RECORDS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def prose(page: Path) -> str:
    """Return the page without fenced and inline code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_a_folder_and_docs_readme_lists_it_in_the_section_of_that_folder() -> None:
    sections = re.split(r"^\*\*(\w+)\*\*$", (ROOT / "docs" / "README.md").read_text(), flags=re.MULTILINE)[1:]
    listed = {
        name.lower(): set(re.findall(rf"\(({name.lower()}/[\w-]+\.md)", text))
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }
    folders = [path for path in (ROOT / "docs").iterdir() if path.is_dir() and path.name not in ("decisions", "images")]
    assert [path.name for path in (ROOT / "docs").glob("*.md")] == ["README.md"]
    assert {path.name: {f"{path.name}/{page.name}" for page in path.glob("*.md")} for path in folders} == {
        name: pages for name, pages in listed.items() if name != "development"
    }


def test_there_are_at_most_25_decision_records_and_the_index_lists_each_with_title_date_and_status() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()
    rows = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \| (\S+) \| (.+) \|$", index, flags=re.MULTILINE)
    records = []
    for record in RECORDS:
        head = re.match(r"# (\d{4})\. (.+)\n\nDate: (\d{4}-\d\d-\d\d)\. Status: ([^.:]+)", record.read_text())
        assert head, f"{record.name} begins with its number and title, then 'Date: YYYY-MM-DD. Status: ...'"
        number, title, date, status = head.groups()
        records.append((number, record.name, title, date, status))
    assert rows == records
    assert len(records) <= 25


def test_each_row_of_a_table_of_the_security_page_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "operations" / "security.md").read_text()
    found = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"^(?:async )?def (test_\w+)", found, flags=re.MULTILINE))
    tables = re.findall(r"^(\|.+\|)\n\|[-|]+\|\n((?:\|.+\|\n)+)", page, flags=re.MULTILINE)
    assert len(tables) == len(re.findall(r"^\|-", page, flags=re.MULTILINE)) > 3
    for head, rows in tables:
        assert head.endswith("| test |")
        for row in rows.splitlines():
            named = re.findall(r"`(test_\w+)`", row.rstrip("|").rpartition("|")[2])
            assert named, f"no test in the row: {row}"
            assert not set(named) - known, f"no such test: {set(named) - known}"
