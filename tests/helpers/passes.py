"""Prints, as JSON, the modules of sa1bpack whose functions run when a sample is packed and read.

    python passes.py TAR FOLDER

Everything is done once before, so that imports and what is made only once do not count. Functions
that numba compiled are seen before Python 3.12 alone.
"""

import json
import shutil
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import sa1bpack

PACKAGE = str(Path(sa1bpack.__file__).parent) + "/"


@contextmanager
def recorded():
    """The names of modules in which a function runs meanwhile, in any thread that begins there."""
    found: set[str] = set()

    def hook(frame, event, argument):
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE) and frame.f_code.co_name != "<module>":
            found.add(name.removeprefix(PACKAGE).removesuffix(".py"))

    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def main() -> None:
    """Pack, read, and print what ran."""
    tar, folder = sys.argv[1], Path(sys.argv[2])

    def pack():
        shutil.rmtree(folder, ignore_errors=True)
        sa1bpack.pack(tar, folder, workers=1)

    def read():
        with sa1bpack.Loader(sa1bpack.open(folder), 2) as loader:
            next(iter(loader))

    pack()
    with recorded() as packing:
        pack()
    read()
    with recorded() as reading:
        read()
    with sa1bpack.Loader(sa1bpack.open(folder), 2) as loader:
        list(loader)
        with recorded() as later:
            next(iter(loader))
    json.dump(
        {"pack": sorted(packing), "read": sorted(reading), "later": sorted(later)}, sys.stdout
    )


if __name__ == "__main__":
    main()
