"""HTML that is escaped by construction: text becomes markup only through `element`."""

from collections.abc import Iterable, Sequence
from html import escape

_VOID = {"img", "meta"}


class Markup(str):
    """Text that is HTML already. Only this module and constants of the program make it."""

    __slots__ = ()


def element(name: str, /, *content: object, **attributes: object) -> Markup:
    """One element. Content that is no Markup is escaped, and so are all attributes.

    A trailing underscore of an attribute's name is dropped (`class_`), others become hyphens. None
    among content and attributes is left out; an attribute that is True has no value.
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
    """Content one after the other, escaped unless it is Markup; None is left out."""
    return Markup(
        "".join(
            part if isinstance(part, Markup) else escape(_shown(str(part)))
            for part in content
            if part is not None
        )
    )


def _shown(text: str) -> str:
    """Text with its control and other unprintable characters written out as escapes."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def table(
    head: Sequence[str],
    rows: Iterable[Iterable[object]],
    numbers: int = 0,
    texts: Sequence[str] = (),
) -> Markup:
    """A table with a line of headings. It scrolls sideways by itself where the page is narrow.

    numbers  so many columns at the end hold numbers, which are set to the right
    texts    headings of columns that hold sentences, of which lines may be broken
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
