"""What is known of a sample without reading its pixels or masks."""

from dataclasses import dataclass
from pathlib import Path

from sa1bpack.dataset.pack import Pack
from sa1bpack.errors import FormatError
from sa1bpack.format.layout import FILE_NAME_BYTES


@dataclass(frozen=True)
class SampleInfo:
    """Where a sample comes from, where it is, and its sizes and counts.

    index             row in the pack, or in all packs together, as in the sample itself
    image_id          of the JSON record
    file_name         name of the image in its source: the member of the tar
    source            name of the tar or folder: "sa_000012" is sa_000012.tar
    pack, shard, row  folder of the pack, name of the shard, and row in the shard
    source_height, source_width, stored_height, stored_width   pixels
    masks             masks in the pack
    annotations       masks in the JSON record, before filtering and capping
    """

    index: int
    image_id: int
    file_name: str
    source: str
    pack: Path
    shard: str
    row: int
    source_height: int
    source_width: int
    stored_height: int
    stored_width: int
    masks: int
    annotations: int


def sample_info(pack: Pack, row: int) -> SampleInfo:
    """The info of a row of a pack: a few bytes of small arrays are read.

    Raises FormatError if the shard is damaged, OSError if it cannot be read.
    """
    number, local, first, stop = pack.locate(row)
    shard, place = pack.shards[number], pack.shards.places[number]
    stored = shard["file_name"].view(f"S{FILE_NAME_BYTES}")[local, 0]
    try:
        name = stored.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{shard.folder / 'file_name'}: row {local}: {error}") from None
    return SampleInfo(
        row,
        pack.image_id(row),
        name,
        place.entry.source,
        place.folder.root,
        place.entry.name,
        local,
        *shard["size"][local].tolist(),
        stop - first,
        int(shard["annotation_count"][local]),
    )
