"""The documents as a site: what the hook makes of links, and that the site needs nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.site import on_page_markdown

PROJECT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("link", "word"),
    [
        ("[rbac.yaml](../../deploy/daemonset/base/rbac.yaml)", "rbac.yaml (`deploy/daemonset/base/rbac.yaml`)"),
        ("[the agent](../README.md#install)", "the agent (`README.md`)"),
    ],
)
def test_a_link_to_a_file_of_the_repository_becomes_its_path(link: str, word: str) -> None:
    assert on_page_markdown(f"see {link}.") == f"see {word}."


@pytest.mark.parametrize(
    "link",
    ["[health](health.md)", "[health](../user/health.md#causes)", "[top](../index.md)", "[x](https://example.org)"],
)
def test_a_link_between_documents_stays(link: str) -> None:
    assert on_page_markdown(link) == link


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site of two pages by the project's own settings."""
    text = re.sub(r"^nav:.*", "", (PROJECT / "mkdocs.yml").read_text(), flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "mkdocs.yml").write_text(text.replace("tools/site.py", str(PROJECT / "tools/site.py")))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# One\n\n[There](other.md#in-words-how)\n\n```yaml\na: 1\n```\n")
    (tmp_path / "docs" / "other.md").write_text("# Other\n\n## In words: how?\n")
    return tmp_path


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build"]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=300)


def test_the_site_has_all_that_it_shows_and_its_anchors_are_githubs(site: Path) -> None:
    built = build(site)
    assert built.returncode == 0, built.stderr
    page = (site / "build/site/index.html").read_text()
    loaded = re.findall(r'<(?:script|img|link)[^>]* (?:src|href)="([^"]*)"', page)
    assert loaded
    assert [address for address in loaded if "//" in address] == []
    assert 'href="other.html#in-words-how"' in page


def test_a_link_to_no_page_or_to_no_heading_breaks_the_site(site: Path) -> None:
    (site / "docs" / "index.md").write_text("# One\n\n[page](gone.md)\n\n[heading](other.md#nowhere)\n")
    built = build(site)
    assert built.returncode != 0
    assert "gone.md" in built.stderr
    assert "#nowhere" in built.stderr
