"""Write sa1bpack/option_keywords.pyi, what type checkers know of `**options`, from their fields.

    python scripts/write_option_keywords.py

A test compares the file with the fields, see sa1bpack/options.py.
"""

import re
from pathlib import Path

from sa1bpack.dataset.sample_spec import SampleOptions
from sa1bpack.deriving.options import AttachOptions, DeriveOptions
from sa1bpack.export.look import Look
from sa1bpack.loading.options import LoaderOptions, ReadingOptions
from sa1bpack.options import Declaration, declarations
from sa1bpack.packing.options import PackOptions, RunOptions
from sa1bpack.raw.decoding import RawOptions

FILE = Path(__file__).parent.parent / "sa1bpack" / "option_keywords.pyi"

GROUPS = {
    "RunKeywords": (PackOptions, RunOptions),
    "SampleKeywords": (SampleOptions,),
    "RawKeywords": (RawOptions,),
    "ReadingKeywords": (ReadingOptions,),
    "LoaderKeywords": (LoaderOptions,),
    "AttachKeywords": (AttachOptions,),
    "DeriveKeywords": (DeriveOptions,),
    "ModuleKeywords": (SampleOptions, LoaderOptions),
    "LookKeywords": (Look,),
}

# Fields that are no options of these calls, as the decorator there says.
WITHOUT = {"ModuleKeywords": ("transform",)}


def text() -> str:
    """The text of the file."""
    classes = []
    for keywords, groups in GROUPS.items():
        lines = [f"class {keywords}(typing.TypedDict, total=False):"]
        declared: dict[str, Declaration] = {}
        for group in groups:
            declared |= declarations(group)
        for name in WITHOUT.get(keywords, ()):
            del declared[name]
        for name, declaration in declared.items():
            accepts = declaration.accepts
            named = accepts.__name__ if isinstance(accepts, type) else repr(accepts)
            lines.append(f"    {name}: {named}")
        classes.append("\n".join(lines))
    body = "\n\n".join(classes)
    modules = {found.rstrip(".") for found in re.findall(r"(?:[a-z_0-9]+\.)+(?=[A-Za-z])", body)}
    imports = "\n".join(f"import {module}" for module in sorted(modules))
    head = '"""Options of calls for type checkers, written by scripts/write_option_keywords.py."""'
    return f"{head}\n\n{imports}\n\n{body}\n"


if __name__ == "__main__":
    FILE.write_text(text())
