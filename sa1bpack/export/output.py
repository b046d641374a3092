"""Output files: the path is checked first, and an export has its name when it is complete."""

from pathlib import Path

from sa1bpack.errors import OptionError
from sa1bpack.format.files import temporary_beside
from sa1bpack.format.manifest import refuse_in_pack
from sa1bpack.paths import local_path, naming


def check_output(output: str | Path, *suffixes: str) -> Path:
    """The path to write to. An existing file will be replaced; no folder is created.

    A result that could not be written is thus refused before it is drawn or measured.

    Args:
        output: the path that the user gave.
        suffixes: suffixes of which the path must have one, in lower case; none: any.

    Raises:
        OptionError: a URL, another suffix, a missing folder, a folder in place of the file, or a
            path inside a pack, where a check reports every foreign file.
        OSError: no file can be made there.
    """
    path = local_path("output", output)
    if suffixes and path.suffix.lower() not in suffixes:
        patterns = " or ".join(f"*{suffix}" for suffix in suffixes)
        raise OptionError(f"{output}: name it {patterns}")
    if path.is_dir():
        raise OptionError(f"{output} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise OptionError(f"{output}: the folder {path.parent} does not exist; create it first")
    refuse_in_pack("output", path)
    probe = temporary_beside(path)
    with naming(path):
        probe.touch()
        probe.unlink()
    return path
