"""Where a sample comes from and lies, its sizes and counts."""

from dataclasses import dataclass
from pathlib import Path

from sa1bpack.dataset.pack import Pack
from sa1bpack.errors import FormatError
from sa1bpack.format.layout import FILE_NAME_BYTES


@dataclass(frozen=True)
class SampleInfo:
    """Origin and place of a sample, its sizes and counts.

    Attributes:
        row: row in the pack, or in all packs together, as in the sample itself.
        image_id: image id in the JSON record.
        file_name: name of the image in its source: the member of the tar.
        source: name of the tar or folder: "sa_000012" is sa_000012.tar.
        pack, shard, shard_row: folder of the pack, name of the shard, and row in the shard.
        height, width: pixels of the photograph.
        stored_height, stored_width: pixels of the stored image.
        masks: masks in the pack.
        annotations: masks in the JSON record, before filtering and capping.
    """

    row: int
    image_id: int
    file_name: str
    source: str
    pack: Path
    shard: str
    shard_row: int
    height: int
    width: int
    stored_height: int
    stored_width: int
    masks: int
    annotations: int

    @classmethod
    def of(cls, pack: Pack, row: int) -> "SampleInfo":
        """That of the sample in a row of a pack.

        Raises FormatError or OSError if its shard cannot be read.
        """
        location = pack.locate(row)
        shard_row = location.shard_row
        shard = pack[location.shard]
        entry = pack.manifest.shards[location.shard]
        folder, _ = pack.places[location.shard]
        stored_name = shard["file_name"].view(f"S{FILE_NAME_BYTES}")[shard_row, 0]
        try:
            file_name = stored_name.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"{shard.folder / 'file_name'}: row {shard_row}: {error}") from None
        height, width, stored_height, stored_width = shard["size"][shard_row].tolist()
        return cls(
            row=row,
            image_id=location.image_id,
            file_name=file_name,
            source=entry.source,
            pack=folder.root,
            shard=entry.name,
            shard_row=shard_row,
            height=height,
            width=width,
            stored_height=stored_height,
            stored_width=stored_width,
            masks=location.stop_mask - location.first_mask,
            annotations=int(shard["annotation_count"][shard_row]),
        )
