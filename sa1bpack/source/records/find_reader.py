"""Which reader the records of a source are for, by what is found there."""

from contextlib import closing
from itertools import islice
from pathlib import Path

from sa1bpack.errors import SourceError
from sa1bpack.paths import is_folder
from sa1bpack.source.find import Source
from sa1bpack.source.folder_files import list_folder
from sa1bpack.source.pairs import MAX_JSON_BYTES, open_members
from sa1bpack.source.records.amg import has_tables
from sa1bpack.source.records.find_annotations import find_annotation_file
from sa1bpack.source.records.table import SA1B, reader_of_record
from sa1bpack.source.tar import split_name

# Members of a tar that are looked at: those of SA-1B are in random order.
_MEMBERS = 16
_MEMBER_BYTES = 64 << 20


def find_reader(source: Source, annotations: Path | None = None) -> str:
    """The name of the reader of a source; that of SA-1B where nothing else is found.

    The first record beside an image decides by its beginning. Where there is none, an annotation
    file in COCO's form, or a folder of drawn masks, beside the images; then a folder has images
    alone. A tar is read up to its first record, or for some members; one at a URL is taken for one
    of SA-1B.

    Args:
        source: the tar or folder.
        annotations: the file, or the folder, that the user names as that of the records.

    Raises:
        SourceError: the source cannot be read, or several annotation files may be its own.
    """
    if annotations is not None:
        return "amg" if is_folder(annotations) else "coco"
    if not isinstance(source.path, Path):
        return SA1B
    record = _record_in_folder(source.path) if source.kind == "folder" else _record_in_tar(source)
    if record is not None:
        return reader_of_record(record) or SA1B
    if find_annotation_file(source) is not None:
        return "coco"
    if source.kind != "folder":
        return SA1B
    if has_tables(source.path):
        return "amg"
    if any(file.half == "json" for file in list_folder(source.path)):
        return SA1B  # it says what is missing
    return "none"


def _record_in_folder(folder: Path) -> bytes | None:
    """The first record of a folder that has the name of an image; None if there is none."""
    images = set()
    records: dict[str, str] = {}
    for file in list_folder(folder):
        stem = split_name(file.name)[0]
        if file.half == "jpeg":
            images.add(stem)
        else:
            records.setdefault(stem, file.path)
    for stem, path in records.items():
        if stem in images:
            try:
                with Path(path).open("rb") as record:
                    return record.read(MAX_JSON_BYTES)
            except OSError as error:
                raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    return None


def _record_in_tar(source: Source) -> bytes | None:
    """The first record of a tar, if it is among its first members."""
    members = open_members(source)
    with closing(members.stream):
        nbytes = 0
        for member in islice(members, _MEMBERS):
            nbytes += member.size
            if nbytes > _MEMBER_BYTES:
                break
            if member.kind == "file" and split_name(member.name)[1] == "json":
                return members.read()
    return None
