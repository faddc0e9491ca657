"""Text as HTML: whatever is not made by ``tag`` is escaped, wherever it comes from."""

from html import escape


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


# Elements without content; those of SVG have to be closed all the same.
_EMPTY = frozenset({"br", "meta", "link", "line", "rect", "circle"})


def tag(name: str, /, *children: str | None, **attributes: object) -> Html:
    """An element. An underscore at the end of an attribute's name is dropped, one within is a hyphen; None is left out.

    Children that are no Html are text.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(child if isinstance(child, Html) else escape(child) for child in children if child is not None)
    return Html(f"<{name}{given}/>" if name in _EMPTY else f"<{name}{given}>{inside}</{name}>")


def joined(*parts: str | None) -> Html:
    """Parts one after the other."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts if part is not None))
