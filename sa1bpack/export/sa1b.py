"""One JSON file per image, as in SA-1B's tars."""

import json
import time
from collections.abc import Iterable
from pathlib import Path, PurePath

from sa1bpack.arguments import checks_options
from sa1bpack.export.output import check_folder, require_same
from sa1bpack.export.records import annotations_of, image_of
from sa1bpack.export.selection import ExportResult, Selection, count_shard
from sa1bpack.format.files import remove_temporaries, temporary_beside
from sa1bpack.format.manifest import check_shard_name
from sa1bpack.progress import image_steps


@checks_options(out="output")
def export_sa1b(
    pack: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    sources: Iterable[str] = (),
    shards: Iterable[str] = (),
    image_ids: Iterable[int] = (),
    progress: bool | None = None,
) -> ExportResult:
    """Write the SA-1B record of each image, `OUTPUT/<source>/sa_<id>.json`.

    Keys, order, number types and the text of numbers and masks are those that the packer read. So
    a record from which no mask was dropped equals the member of the tar byte for byte, provided
    that was written as SA-1B's are (Python's json, one line). The result counts the differences,
    see ExportResult.

    pack, output
        Folder of the pack, several, a glob pattern, or the file of a saved selection, of which each
        image is exported once; folder to write to, created if it does not exist.
    sources, shards, image_ids
        Export only the images that any of the three names. Default: the whole pack.
    progress
        Show a progress bar on stderr. Default: if it is a terminal.

    Each file is written completely or not at all. An existing file with the same bytes is left as
    it is, so an interrupted export resumes when it is called again; one with other bytes is never
    overwritten.

    Raises OptionError for a pack or an output that cannot be used, a pack without exact runs, and
    a source, shard or image id that it does not have; OutputRefused for a file with other contents;
    FormatError for damage, before anything is written from a damaged file; OSError if the disk
    fails.

    Examples:
        >>> result = sa1bpack.export_sa1b("packed", "annotations", image_ids=[5], progress=False)
        >>> result.path / "sa_000000" / "sa_5.json"
        PosixPath('annotations/sa_000000/sa_5.json')
    """
    started = time.perf_counter()
    selection = Selection(pack, sources, shards, image_ids)
    result = ExportResult(check_folder(output), complete=selection.complete)
    cleaned: set[Path] = set()
    with image_steps(selection.images, progress) as advance:
        for shard, rows in selection.shards(check=True):
            check_shard_name(shard.entry.source, f"{shard.folder}: source")
            folder = result.path / shard.entry.source
            if folder not in cleaned:
                folder.mkdir(parents=True, exist_ok=True)
                remove_temporaries(folder)
                cleaned.add(folder)
            for row in rows.tolist():
                image = image_of(shard, row)
                record = {"image": image, "annotations": annotations_of(shard, row)}
                path = folder / PurePath(image["file_name"]).with_suffix(".json").name
                if _write(path, json.dumps(record).encode()):
                    result.files += 1
                else:
                    result.unchanged += 1
                advance(1)
            count_shard(result, shard, rows)
    result.seconds = time.perf_counter() - started
    return result


def _write(path: Path, data: bytes) -> bool:
    """Write a file atomically; returns False if it exists already with these bytes."""
    try:
        there = path.read_bytes()
    except FileNotFoundError:
        temporary = temporary_beside(path)
        try:
            temporary.write_bytes(data)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return True
    require_same(path, there == data)
    return False
