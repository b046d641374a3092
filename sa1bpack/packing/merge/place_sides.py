"""The parts of several side arrays in one folder, for a pack that was merged from several."""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from sa1bpack.errors import FormatError, OutputRefused
from sa1bpack.format.files import flush_folder, temporary_beside
from sa1bpack.format.side.binding import ShardIdentity
from sa1bpack.format.side.spec import create_side, first_difference, read_side_manifest


def check_alike(folders: Sequence[Path]) -> None:
    """Raise OutputRefused unless the parts of all these side arrays can be in one folder.

    Raises NotAPack, FormatError and OSError as `read_side_manifest` does.
    """
    first = read_side_manifest(folders[0])
    for folder in folders[1:]:
        if (difference := first_difference(first, read_side_manifest(folder))) is not None:
            raise OutputRefused(
                f"{folders[0]} and {folder} are different side arrays, {difference}: make one of "
                "them again like the other, or move its folder out of the pack (it can still be "
                "read by its path), and merge again"
            )


def merge_sides(out: Path, inputs: Sequence[Path], shards: Iterable[ShardIdentity]) -> list[str]:
    """Put the parts for these shards, from side arrays of one name and spec, into one folder.

    Files are hard links where the file systems allow it, else copies. The inputs stay as they are;
    what a killed run left is completed. A part is bound to the bytes of its shard, so it fits them
    under the same name in any pack.

    out     folder of the side array to be; made if it does not exist
    inputs  folders of side arrays, such as PACK/side/NAME of every input of a merge
    shards  of the merged pack

    Returns the names of the shards that have samples, but no part in any input.

    Raises OutputRefused if the arrays differ in what they hold or how they were made, FormatError,
    OSError.
    """
    if not inputs:
        raise FormatError(f"{out}: no side array to merge")
    for folder in inputs:
        create_side(out, read_side_manifest(folder))
    missing = []
    for shard in shards:
        if (out / shard.part).is_dir():
            continue
        source = next(
            (f / shard.part for f in map(Path, inputs) if (f / shard.part).is_dir()), None
        )
        if source is None:
            missing += [shard.name] * (shard.extent.samples > 0)
            continue
        staging = temporary_beside(out / shard.part)
        try:
            shutil.copytree(source, staging, copy_function=_link_or_copy)
            for folder in (*(path for path in staging.iterdir() if path.is_dir()), staging):
                flush_folder(folder)
            staging.rename(out / shard.part)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    flush_folder(out)
    return missing


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
        with open(target, "rb") as file:  # noqa: PTH123
            os.fsync(file.fileno())
