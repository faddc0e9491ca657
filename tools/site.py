"""What the site does beyond MkDocs, as a hook of it: a link to a file of the repository becomes the file's path.

The site has the documents alone; where they are read beside the code, such a link leads to the file.
"""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([a-zA-Z][^)\s#]*)(?:#[^)\s]*)?\)")
# What the documents link to of each other.
INSIDE = ("user/", "dev/", "index.md")


def on_page_markdown(markdown: str, /, **_: Any) -> str:
    """A page with the links that the site cannot follow as words."""
    return OUTSIDE.sub(_in_words, markdown)


def _in_words(link: re.Match[str]) -> str:
    text, path = link.groups()
    return link.group() if path.startswith(INSIDE) else f"{text} (`{path}`)"
