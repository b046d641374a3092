"""Reads an HTML page as strictly as the standard library can."""

from html.parser import HTMLParser

_VOID = {"meta", "img", "br", "hr", "input", "link"}


class Page(HTMLParser):
    """The contents of a page. Asserts that every element is closed where it must be.

    Attributes:
        tags: each element as (name, attributes), in order.
        text: all text outside of style and script.
        pictures: values of `src`.
    """

    def __init__(self, source: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == [], f"not closed: {self._open}"

    @property
    def pictures(self) -> list[str]:
        return [attributes["src"] for _, attributes in self.tags if "src" in attributes]

    def named(self, name: str) -> list[dict[str, str | None]]:
        """Attributes of every element with that name."""
        return [attributes for tag, attributes in self.tags if tag == name]

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"a repeated attribute: {attrs}"
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open and self._open[-1] == tag, f"</{tag}> within {self._open}"
        self._open.pop()

    def handle_data(self, data):
        if self._open and self._open[-1] not in ("style", "script"):
            self.text += data + " "
