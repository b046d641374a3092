"""Numbers, and values found in files, as text for messages; and words that this project avoids."""

import ast
import re
from pathlib import Path

import pytest

from sa1bpack.wording import brief, printable, size_text


def test_numbers_sizes_names_and_values_are_shown_briefly():
    assert [size_text(n) for n in (0, 999, 1000, 999_600)] == ["0 B", "999 B", "1 kB", "1 MB"]
    assert [size_text(n) for n in (43_912_345, 3.67e12)] == ["43.9 MB", "3.67 TB"]
    assert [brief(value) for value in (1.5, "a", [1, 2])] == ["1.5", "'a'", "[1, 2]"]
    assert brief("\x1b[2J") == r"'\x1b[2J'" and brief([[[[[1]]]]]) == "[[[[...]]]]"


@pytest.mark.parametrize("value", ["x" * 10**6, 10**4000, list(range(10**5)), {"x" * 10**5: 1}])
def test_a_value_of_any_size_is_shown_briefly(value):
    assert len(brief(value)) < 250


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sa_1 é 雪", "sa_1 é 雪"), ("two\nlines", "two\nlines"), ("a\x1b[2Jb\r", r"a\x1b[2Jb\r"),
        ("\udcff.jpg", r"\udcff.jpg"), ("\u202egpj", r"\u202egpj"),
    ],
)  # fmt: skip
def test_control_characters_are_escaped(text, shown):
    assert printable(text) == shown


REPOSITORY = Path(__file__).parents[1]
AVOIDED = {
    r"\banew\b": "again",
    r"\bwhoever\b": "name who",
    r"\blies? to (one another|each other)\b": "relate",
    r"\bspeaks? against\b": "what the case is",
    r"\b(is|are|was|were) told\b": "is notified, is announced",
    r"\bmended\b": "repaired",
    r"\b(so many|that many) seconds\b": "at most `name` seconds",
    r"\bwhole (packs|runs?)\b": "sound, complete",
    r"\bgives\b": "returns, yields, produces, assigns",
    r'(""" ?|: )As of [A-Z`]|\bas of [`A-Z]': "as in, like",
    r"\bgo(es)? on\b": "resume, continue",
}


SECTIONS = ["Args", "Attributes", "Returns", "Yields", "Raises", "Modules", "Examples"]


def test_docstrings_have_one_form():
    """A sentence on one line, prose, then sections in order; no aligned columns but in tables."""
    other = re.compile(r"^\w+(, \w+)*( {2,}\S.*|\n {4,}\S.*)$|^-+$", re.M)
    columns = re.compile(r"^    [\w/.]+ {2,}\w.*$", re.M)  # of a module: others have tables of keys
    table = re.compile(r"^=+( +=+)+\n.*?^=+( +=+)+$(?!\n\S)", re.M | re.S)
    head = re.compile(rf"^(?=(?:{'|'.join(SECTIONS)}):$)", re.M)
    found = []
    for path in sorted((REPOSITORY / "sa1bpack").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = table.sub("", ast.get_docstring(node) or "")
                found += [f"{path}: {hit[0]}" for hit in other.finditer(text)]
                if isinstance(node, ast.Module):
                    found += [f"{path}: {hit[0]}" for hit in columns.finditer(text)]
                if path.parts[-2] == "cli":
                    continue  # docstrings of commands are their help
                prose, *sections = head.split(text)
                names = [section.partition(":")[0] for section in sections]
                first = prose.strip().partition("\n\n")[0]
                wrong = {
                    "a first sentence of several lines": "\n" in first,
                    "a first sentence that begins with Return": first.startswith("Return"),
                    "sections in another order": names != sorted(names, key=SECTIONS.index),
                    "prose after a section": re.search(r"^\S.*[^:]$", "".join(sections), re.M),
                    "errors outside Raises": sections and re.search(r"\bRaises [A-Zw]", prose),
                }
                found += [f"{path}: {text[:60]!r} has {what}" for what in wrong if wrong[what]]
    assert found == []


def test_code_and_documents_use_the_words_of_a_native_engineer():
    """In all text of the package, the documents, benchmarks and scripts."""
    texts = [*REPOSITORY.glob("*.md")]
    texts += [path for folder in ("sa1bpack", "docs", "benchmarks", "scripts")
              for path in sorted((REPOSITORY / folder).rglob("*"))
              if path.suffix in (".py", ".md")]  # fmt: skip
    assert len(texts) > 200
    found = [
        f"{path.relative_to(REPOSITORY)}: {match[0]!r}; write {better}"
        for path in texts
        for text in [re.sub(r"\n[ #]*", " ", path.read_text())]
        for avoided, better in AVOIDED.items()
        for match in re.finditer(avoided, text)
    ]
    assert found == []
