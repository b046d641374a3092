"""Docstrings of sa1bpack as Markdown, for the API reference.

They are written to be read in an editor. Here, lists of arguments become definition lists, tables
and examples become blocks, and all else stays as it is.
"""

import re
from collections.abc import Iterator

_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Modules|Options|Examples):")
_TITLES = {"Args": "Arguments"}
_RULER = re.compile(r"=+( +=+)+")
_ENTRY = re.compile(r"(\*{0,2}\w[\w., *]*): (.*)")  # name, name: text
_PAGE = re.compile(r"\bdocs/([\w/-]+)\.md")


def markdown(docstring: str) -> str:
    """A docstring without common indentation, as `inspect.getdoc` returns it, as Markdown."""
    linked = _PAGE.sub(r"[\g<0>](../../\1.md)", docstring)  # from reference/api/ of the site
    return "\n".join(_blocks(linked.split("\n"))).strip() + "\n"


def _blocks(lines: list[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line, rest = lines[at], lines[at + 1 :]
        if found := _SECTION.fullmatch(line):
            inside = _indented(rest)
            yield from _section(found[1], _dedented(inside))
            at += 1 + len(inside)
        elif _RULER.fullmatch(line):
            end = next((k for k, text in enumerate(rest) if not text.strip()), len(rest))
            yield from _fenced("text", lines[at : at + 1 + end])
            at += 1 + end
        elif line == "::":
            inside = _indented(rest)
            yield from _fenced("python", _dedented(inside))
            at += 1 + len(inside)
        else:
            yield line
            at += 1


def _section(name: str, lines: list[str]) -> Iterator[str]:
    if name == "Examples":
        yield from _fenced("pycon", lines)
        return
    yield from ("", f"**{_TITLES.get(name, name)}**", "")
    at = 0
    while at < len(lines):
        inside = _indented(lines[at + 1 :], blank=False)
        if found := _ENTRY.fullmatch(lines[at]):
            yield from _entry(found[1], [found[2], *_dedented(inside)])
            at += 1 + len(inside)
        else:
            yield lines[at]
            at += 1
    yield ""


def _entry(names: str, text: list[str]) -> Iterator[str]:
    yield from ("", ", ".join(f"`{name.strip()}`" for name in names.split(",")))
    yield from (":   " + "\n    ".join(text), "")


def _fenced(language: str, lines: list[str]) -> Iterator[str]:
    yield from ("", f"```{language}", *"\n".join(lines).strip("\n").split("\n"), "```", "")


def _indented(lines: list[str], blank: bool = True) -> list[str]:
    """The first lines that are indented; blank ones between them too, if `blank`."""
    end = 0
    for number, line in enumerate(lines, 1):
        if line.startswith("  "):
            end = number
        elif line.strip() or not blank:
            break
    return lines[:end]


def _dedented(lines: list[str]) -> list[str]:
    least = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[least:] for line in lines]
