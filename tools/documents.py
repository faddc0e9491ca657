"""Checks the documents: every relative link leads somewhere, lists are whole, and generated pages are up to date.

The other links are looked at for their form alone, since there may be no network. ``mkdocs.yml`` and ``site`` make a
site of what lies in ``docs``; ``pages`` and its neighbours make the pages that are generated.

``python -m tools.documents`` checks; ``--write`` writes the generated pages anew.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tools import diagram, errors_page, objects_pages, pages, rights_page, settings_page

ROOT = Path(__file__).resolve().parent.parent
USER, DEVELOPERS = ROOT / "docs" / "user", ROOT / "docs" / "dev"

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ELSEWHERE = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[^\s<>\"]*)?")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def documents() -> list[Path]:
    """All Markdown files that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).exists()]


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(text)}


def broken_links(document: Path) -> Iterator[str]:
    """The links of a document that lead nowhere, as far as that can be seen from here."""
    for target in LINK.findall(document.read_text()):
        if "://" in target:
            if not ELSEWHERE.fullmatch(target):
                yield f"{target}: not the address of a page: https://, a host, no spaces"
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists():
            yield f"{target}: no such file"
        elif anchor and anchor not in anchors(file.read_text()):
            yield f"{target}: no such heading"


def left_out(document: Path, files: str, word: Callable[[Path], str]) -> Iterator[str]:
    """The files that a document is to name one by one and does not; ``word`` is how it names a file."""
    text = document.read_text()
    for file in sorted(ROOT.glob(files)):
        if word(file) not in text:
            yield f"{file.relative_to(ROOT)} is left out: name it as {word(file)}"


# The documents that promise to name all of some files.
WHOLE: dict[Path, tuple[str, Callable[[Path], str]]] = {
    ROOT / "docs" / "index.md": ("docs/*/*.md", lambda page: f"({page.parent.name}/{page.name})"),
    DEVELOPERS / "testing.md": ("tests/node/test_*.py", lambda file: f"`{file.stem}`"),
}
# The pages that are made from the code.
GENERATED = {
    USER / "commands.md": pages.commands_page,
    USER / "xids.md": pages.xids_page,
    USER / "label-names.md": pages.labels_page,
    USER / "metric-names.md": pages.metrics_page,
    USER / "migration-keys.md": pages.migration_page,
    USER / "settings.md": settings_page.page,
    USER / "attributes.md": objects_pages.attributes_page,
    USER / "objects.md": objects_pages.objects_page,
    USER / "rights.md": rights_page.page,
    USER / "errors.md": errors_page.page,
    DEVELOPERS / "grant.svg": diagram.grant,
    USER / "configuration.schema.json": pages.config_schema,
}


def main() -> None:
    if "--write" in sys.argv[1:]:
        for page, content in GENERATED.items():
            page.write_text(content())
    problems = [
        f"{document.relative_to(ROOT)}: {problem}" for document in documents() for problem in broken_links(document)
    ]
    for document, (files, word) in WHOLE.items():
        problems += [f"{document.relative_to(ROOT)}: {problem}" for problem in left_out(document, files, word)]
    for page, content in GENERATED.items():
        if not page.exists() or page.read_text() != content():
            problems.append(f"{page.relative_to(ROOT)} is out of date: python -m tools.documents --write")
    for problem in problems:
        print(problem)
    print(f"{len(documents())} documents, {len(problems)} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
