"""An open shard: everything checked that reading relies on, and its arrays as memory maps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sa1bpack.dataset.fields import MASK_FIELDS, STORED_SAMPLE_FIELDS
from sa1bpack.errors import FormatError
from sa1bpack.format import Layout, Shard, ShardEntry, open_shard
from sa1bpack.format.array_reader import REMEDY, check_offsets_rise, map_array
from sa1bpack.format.checked_rows import REPAIR
from sa1bpack.format.image_bytes import image_nbytes
from sa1bpack.format.side.part import SidePart
from sa1bpack.urls import Lease

# Arrays that columns need and samples do not: mapped when they are first asked for.
_MAPPED_LATER = ("image_id", "annotation_count", "checksum", "number_types")

# What compiled code finds in `OpenShard.table`: rows of axes, bytes, and addresses of arrays. After
# these come the addresses of all arrays, in the order of the layout.
MASKS, RUNS, IMAGE_BYTES, SIZE, IMAGE_OFFSET, RUN_OFFSET = range(6)
FIRST_ADDRESS = 6

# (key of a sample, array), each with all rows of the shard.
KeyedArrays = tuple[tuple[str, np.ndarray], ...]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class OpenShard:
    """A shard that was found sound, and its maps, which live as long as this or a view of them.

    shard        the format's Shard
    arrays       name → read-only memory map, all rows
    table        int64 (c,): numbers of the shard for compiled code, see MASKS; an address is that
                 of the first byte of an array in this process, 0 if it is not mapped
    per_sample   what a sample takes one row of; without `image` if images have no canvas
    per_mask     what a sample takes the rows of its masks of
    sizes        int32 (N, 4): source height and width, stored height and width
    image_edges  int64 (N + 1,): where images without a canvas begin in `image`; None with canvases
    run_offset   int64 (M + 1,): where the runs of each mask begin; None if there are no runs
    mappings     memory maps that the shard has once all its arrays are in use
    sides        parts of the side arrays of the dataset
    leases       what keeps files in place that were brought here, see `urls.ShardSource`
    """

    shard: Shard
    arrays: Mapping[str, np.ndarray]
    table: np.ndarray
    per_sample: KeyedArrays
    per_mask: KeyedArrays
    sizes: np.ndarray
    image_edges: np.ndarray | None
    run_offset: np.ndarray | None
    mappings: int
    sides: tuple[SidePart, ...] = ()
    leases: tuple[Lease, ...] = ()

    @classmethod
    def of(cls, shard: Shard) -> "OpenShard":
        """Map the arrays of a shard. Raises FormatError or OSError if one cannot be mapped."""
        names = [spec.name for spec in shard.layout.arrays]
        arrays = {name: shard[name] for name in names if name not in _MAPPED_LATER}
        at = {name: array.__array_interface__["data"][0] for name, array in arrays.items()}
        extent, offsets = shard.extent, ("size", "image_offset", "run_offset")
        table = [extent.masks, extent.runs, extent.image_bytes]
        table += [at.get(name, 0) for name in (*offsets, *names)]
        return cls(
            shard=shard,
            arrays=arrays,
            table=np.array(table, np.int64),
            per_sample=tuple(
                (field.sample, arrays[field.array])
                for field in STORED_SAMPLE_FIELDS
                if field.array != "image" or not shard.layout.flat
            ),
            per_mask=tuple(
                (field.sample, arrays[field.array])
                for field in MASK_FIELDS
                if field.array in arrays
            ),
            sizes=arrays["size"],
            image_edges=arrays.get("image_offset"),
            run_offset=arrays.get("run_offset"),
            mappings=sum(rows > 0 for rows in shard.layout.array_rows(shard.extent).values()),
        )

    def with_sides(
        self, parts: tuple[SidePart, ...], leases: tuple[Lease, ...] = ()
    ) -> "OpenShard":
        """The shard with parts of side arrays, each found to be that of this shard."""
        mappings = self.mappings + sum(len(part.values) > 0 for part in parts)
        return replace(self, sides=parts, mappings=mappings, leases=self.leases + leases)

    def image_span(self, row: int) -> tuple[int, int]:
        """First byte in the chunk file of `image`, and number of bytes, of one sample's image.

        Raises FormatError if the span is not within the file or does not fit the sample's size.
        """
        layout = self.shard.layout
        if self.image_edges is None:
            nbytes = layout.array("image").row_bytes
            return row * nbytes, nbytes
        start, stop = self.image_edges[row : row + 2].tolist()
        height, width = self.sizes[row, 2:].tolist()
        expected = image_nbytes(layout, height, width)
        # The files were checked when the shard was opened, and may have changed since.
        if stop - start != expected or start < 0 or stop > self.shard.extent.image_bytes:
            raise FormatError(
                f"{self.shard.folder / 'image_offset'}: the pixels of sample {row} are bytes "
                f"{start} to {stop} of {self.shard.extent.image_bytes}, but its {height} x {width} "
                f"take {expected}; {REPAIR}"
            )
        return start, expected

    def path(self, name: str) -> str:
        """The chunk file of an array."""
        return str(self.shard.folder / self.shard.layout.array(name).chunk_path)


def open_checked(
    folder: Path,
    entry: ShardEntry,
    layout: Layout,
    ids: np.ndarray,
    offsets: np.ndarray,
    index: Path,
) -> OpenShard:
    """Open a shard and check everything that reading it relies on.

    That is its metadata against the manifest, the exact length of all its files, that its offsets
    are non-decreasing, its sizes, and that ids and mask offsets are those of the pack's index.

    folder   of the shard
    entry    of the shard in the manifest
    layout   of the pack
    ids      int64 (N,): image ids according to the index
    offsets  int64 (N + 1,): mask offsets according to the index, counted from the shard's first
    index    folder of the index, for messages

    Raises FormatError naming the file and what is wrong with it, OSError if one cannot be opened.
    """
    shard = open_shard(folder, layout, deep=False)
    if shard.extent != entry.extent:
        raise FormatError(
            f"{folder}: {shard.extent}, but the manifest says {entry.extent}; {REMEDY}"
        )
    check_offsets_rise(folder / "mask_offset", shard["mask_offset"])
    found = map_array(folder, layout.array("image_id"), len(shard))  # not needed any longer
    for name, same in (
        ("image_id", np.array_equal(ids, found)),
        ("mask_offset", np.array_equal(offsets, shard["mask_offset"])),
    ):
        if not same:
            raise FormatError(
                f"{folder / name}: differs from what {index / name} says of this shard; run "
                "`sa1bpack verify` to see which of them is damaged"
            )
    _check_sizes(shard)
    _check_image_offsets(shard)
    return OpenShard.of(shard)


def _check_sizes(shard: Shard) -> None:
    """Check that no side is below 1 and that stored images are within the canvas."""
    size = shard["size"]  # (N, 4): source h, w, stored h, w
    if size.size and (size.min() < 1 or size[:, 2:].max() > shard.layout.image_size):
        raise FormatError(
            f"{shard.folder / 'size'}: sides must be at least 1, and stored ones at most "
            f"{shard.layout.image_size}; found {size.min()} and {size[:, 2:].max()}; {REMEDY}"
        )


def _check_image_offsets(shard: Shard) -> None:
    """Check that images without a canvas have exactly the bytes that their sizes take."""
    if not shard.layout.flat:
        return
    edges = shard["image_offset"]
    height, width = shard["size"][:, 2].astype(np.int64), shard["size"][:, 3].astype(np.int64)
    expected = image_nbytes(shard.layout, height, width)
    # A difference of two int64 may wrap round, but not if every one is right: the first is 0.
    wrong = np.flatnonzero(np.diff(edges) != expected)
    if len(wrong):
        row = int(wrong[0])
        raise FormatError(
            f"{shard.folder / 'image_offset'}: the pixels of sample {row} are bytes {edges[row]} "
            f"to {edges[row + 1]}, but its {height[row]} x {width[row]} take {expected[row]}; "
            f"{REMEDY}"
        )
