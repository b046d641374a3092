"""Where a picture or a page may be written to."""

import io
from pathlib import Path

from sa1bpack.arguments import local_path
from sa1bpack.errors import OptionError
from sa1bpack.format.files import replace_file
from sa1bpack.format.manifest import MANIFEST_NAME
from sa1bpack.report.pil import Image


def check_output(out: str | Path, suffix: str, pack: str | Path) -> Path:
    """The path to write to. What is there is replaced; no folder is made.

    Raises OptionError for another suffix, a folder that is not there, a folder in the file's place,
    and a place inside the pack: a check of the pack calls every strange file damage.
    """
    path = local_path("out", out)
    if path.suffix.lower() != suffix:
        raise OptionError(f"{out}: what is written is {suffix[1:].upper()}; name it *{suffix}")
    if path.is_dir():
        raise OptionError(f"{out} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise OptionError(f"{out}: the folder {path.parent} is not there; make it first")
    is_pack = (Path(pack) / MANIFEST_NAME).exists()  # if not, that is what is to be said
    if is_pack and path.resolve().is_relative_to(Path(pack).resolve()):
        raise OptionError(f"{out} lies inside the pack, which holds its own files alone")
    return path


def write_png(picture: Image.Image, path: Path) -> None:
    """Write a picture whole or not at all. Raises OSError if the disk fails."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    replace_file(path, buffer.getvalue())
