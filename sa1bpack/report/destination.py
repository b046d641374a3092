"""Where a picture, a page or figures may be written to."""

from pathlib import Path

from sa1bpack.arguments import local_path
from sa1bpack.errors import OptionError
from sa1bpack.format.files import naming, temporary_beside
from sa1bpack.format.manifest import MANIFEST_NAME


def check_output(out: str | Path, suffix: str, pack: str | Path) -> Path:
    """The path to write to. An existing file will be replaced; no folder is created.

    Raises OptionError for a URL, another suffix, a missing folder, a folder in place of the file,
    and a path inside the pack, where a check reports every foreign file; OSError if no file can be
    made there. So nothing is drawn or measured whose result could not be written.
    """
    path = local_path("out", out)
    if path.suffix.lower() != suffix:
        raise OptionError(f"{out}: the file is written as {suffix[1:].upper()}; name it *{suffix}")
    if path.is_dir():
        raise OptionError(f"{out} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise OptionError(f"{out}: the folder {path.parent} does not exist; create it first")
    is_pack = (Path(pack) / MANIFEST_NAME).exists()  # if not, that error is raised later
    if is_pack and path.resolve().is_relative_to(Path(pack).resolve()):
        raise OptionError(f"{out} is inside the pack, which must hold its own files only")
    probe = temporary_beside(path)
    with naming(path):
        probe.touch()
        probe.unlink()
    return path
