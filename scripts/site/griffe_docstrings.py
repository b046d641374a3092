"""Docstrings as Markdown for mkdocstrings, without internal members."""

import inspect
import pydoc
import sys
from pathlib import Path

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import markdown
from internal_members import INTERNAL


class DocstringsAsMarkdown(griffe.Extension):
    """Rewrites the docstring of every object."""

    def on_object(self, *, obj: griffe.Object, **others) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value
            if obj.is_class or obj.is_function:  # declared options may complete it
                text = inspect.getdoc(pydoc.locate(obj.path))
            obj.docstring.value = markdown(text)

    def on_class(self, *, cls: griffe.Class, **others) -> None:
        for name in INTERNAL.get(cls.name, ()):
            if name in cls.members:
                cls.del_member(name)
