"""Passes docstrings through `docstrings.markdown` as mkdocstrings collects them."""

import sys
from pathlib import Path

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import markdown


class DocstringsAsMarkdown(griffe.Extension):
    """Rewrites the docstring of every object."""

    def on_object(self, *, obj: griffe.Object, **others) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
