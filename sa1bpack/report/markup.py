"""HTML that is escaped by construction: text becomes markup only through `element`."""

from collections.abc import Iterable, Sequence
from html import escape

_VOID = {"img", "meta"}


class Markup(str):
    """Text that is already HTML. Only this module and constants of the program create it."""

    __slots__ = ()


def element(name: str, /, *content: object, **attributes: object) -> Markup:
    """One element. Content that is not Markup is escaped, and so are all attributes.

    A trailing underscore of an attribute's name is dropped (`class_`), other underscores become
    hyphens. Content and attributes that are None are skipped; an attribute that is True has no
    value.
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(f" {key}")
        elif value is not None:
            parts.append(f' {key}="{escape(str(value))}"')
    parts.append(">")
    if name not in _VOID:
        parts += [joined(content), f"</{name}>"]
    return Markup("".join(parts))


def joined(content: Iterable[object]) -> Markup:
    """Content in sequence, escaped unless it is Markup; None is skipped."""
    return Markup(
        "".join(
            part if isinstance(part, Markup) else escape(_shown(str(part)))
            for part in content
            if part is not None
        )
    )


def _shown(text: str) -> str:
    """Text with unprintable characters replaced by escapes."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def table(
    head: Sequence[str],
    rows: Iterable[Iterable[object]],
    numbers: int = 0,
    texts: Sequence[str] = (),
) -> Markup:
    """A table with a row of headings. It scrolls horizontally if the page is narrow.

    numbers  number of columns, from the right, that hold numbers, which are right-aligned
    texts    headings of columns that hold sentences, whose lines may be wrapped
    """
    classes = ["long" if name in texts else None for name in head]
    classes[len(head) - numbers :] = ["number"] * numbers
    headings = [
        element("th", name, scope="col", class_=kind)
        for name, kind in zip(head, classes, strict=True)
    ]
    lines = []
    for row in rows:
        cells = [element("td", cell, class_=kind) for cell, kind in zip(row, classes, strict=True)]
        lines.append(element("tr", *cells))
    inner = element("table", element("thead", element("tr", *headings)), element("tbody", *lines))
    return element("div", inner, class_="scroll", tabindex="0")


def facts(pairs: Iterable[tuple[object, object]]) -> Markup:
    """A list of names and values."""
    return element(
        "dl",
        *(element("div", element("dt", name), element("dd", value)) for name, value in pairs),
        class_="facts",
    )
