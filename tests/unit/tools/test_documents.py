"""What the check of the documents finds."""

from pathlib import Path

import pytest

from tools.documents import broken_links


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "other.md").write_text("# Other\n\n## What `it` does, and why\n")
    return tmp_path / "page.md"


@pytest.mark.parametrize(
    "link", ["other.md", "other.md#what-it-does-and-why", "#page", "https://example.org/a?b=c#d", "https://example.org"]
)
def test_a_link_that_leads_somewhere_is_fine(page: Path, link: str) -> None:
    page.write_text(f"# Page\n\n[there]({link})\n")
    assert list(broken_links(page)) == []


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("gone.md", "no such file"),
        ("other.md#gone", "no such heading"),
        ("#gone", "no such heading"),
        ("http://example.org", "not the address of a page"),
        ("https://example", "not the address of a page"),
        ("https://exa_mple.org/", "not the address of a page"),
    ],
)
def test_a_link_that_leads_nowhere_is_told(page: Path, link: str, said: str) -> None:
    page.write_text(f"# Page\n\n[there]({link})\n")
    (problem,) = broken_links(page)
    assert problem.startswith(f"{link}: {said}")
