"""What the check of the documents finds."""

from pathlib import Path

import pytest

from tools.documents import ROOT, WHOLE, broken_links, left_out


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


def test_a_file_that_a_document_is_to_name_and_does_not_is_told(page: Path) -> None:
    page.write_text("`documents`, `site`, and `settings_page`, but nobody speaks of `right_page`\n")
    assert list(left_out(page, "tools/[ds][oi]*s.py", lambda file: f"`{file.stem}`")) == []
    (problem,) = left_out(page, "tools/rights_page.py", lambda file: f"`{file.stem}`")
    assert problem == "tools/rights_page.py is left out: name it as `rights_page`"


@pytest.mark.parametrize("document", WHOLE, ids=lambda document: document.name)
def test_what_has_to_be_named_is_there(document: Path) -> None:
    """Else a folder that was moved would have nothing in it that is left out."""
    files, word = WHOLE[document]
    found = list(ROOT.glob(files))
    assert len(found) > 20
    assert list(left_out(document, files, word)) == []
    assert len(set(map(word, found))) == len(found)
