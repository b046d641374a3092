"""Tars and pairs that are read as they are.

A pair becomes the sample that a pack of it would give, by the packer's step and the dataset's.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.dataset.sample import convert, delivered, sample_of_rows
from sa1bpack.dataset.sample_spec import SampleForm, SampleOptions, SampleSpec
from sa1bpack.errors import OptionError, ReadError, SampleError, SourceError
from sa1bpack.format.offsets import offsets_of
from sa1bpack.masks.select import MAX_MASKS, MaskRule, select_masks
from sa1bpack.options import declarations, option
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Buffers, Packed, PairBytes, attempt, require_decoder
from sa1bpack.paths import patterns_of
from sa1bpack.pixels.header import stored_size
from sa1bpack.source.annotations import parse_annotations
from sa1bpack.source.find import Source, find_sources
from sa1bpack.source.pairs import Reject, first_other_names, why_no_pairs
from sa1bpack.source.records.table import SA1B
from sa1bpack.wording import brief

Tars = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
# A sample's rows by array name, as a shard stores them, with run_offset as offsets.
SampleArrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class PairInfo:
    """Facts on a pair that need no decoding of pixels or masks.

    Attributes:
        row: number of the pair among those of all tars, as in the sample itself.
        image_id: image id in the JSON record.
        file_name: name of the image without its folders.
        source, path: name of the tar or folder, such as "sa_000012", and its path.
        source_row: number of the pair in the source.
        height, width: pixels of the photograph.
        stored_height, stored_width: pixels of the stored image.
        masks: masks of the sample, after all options.
        annotations: masks in the JSON record.
        jpeg_bytes, json_bytes: sizes of the members.
    """

    row: int
    image_id: int
    file_name: str
    source: str
    path: Path
    source_row: int
    height: int
    width: int
    stored_height: int
    stored_width: int
    masks: int
    annotations: int
    jpeg_bytes: int
    json_bytes: int


@dataclass(frozen=True, kw_only=True)
class RawOptions(SampleForm):
    """Options of the samples of tars: those of `sa1bpack.open` that need no pack, and a cap."""

    max_masks: int | None = option(
        None,
        "at most this many of the masks that pass the thresholds, the largest, as the Loader's "
        "`max_masks`",
        low=1,
        high=MAX_MASKS,
        none="all that the options of packing keep, which is all masks by default",
    )


class PairDecoder:
    """A decoder of pairs, by the options of `sa1bpack.pack` and of `sa1bpack.open`.

    Args:
        pack_options: options of a pack of the pairs; None: the defaults of `pack`.
        on_error: as in `sa1bpack.open`.
        raw_options: options of the samples.

    Raises:
        OptionError: such a pack could not be opened with these options.
        MissingPackage: PIL is not installed.
    """

    def __init__(self, pack_options: PackOptions | None, on_error: str, raw_options: RawOptions):
        if pack_options is None:
            pack_options = PackOptions()
        if not isinstance(pack_options, PackOptions):
            raise OptionError(f"options is {brief(pack_options)}: give a sa1bpack.PackOptions")
        if pack_options.records != SA1B:
            raise OptionError(
                f"options has the records {brief(pack_options.records)}, and a tar is read without "
                "a pack if its records are SA-1B's: pack it"
            )
        require_decoder()
        of_samples = {name: getattr(raw_options, name) for name in declarations(SampleForm)}
        self.pack_options = pack_options
        self.options = SampleOptions(**of_samples, on_error=on_error)
        self.layout = pack_options.layout
        self.spec = SampleSpec.of(self.layout, pack_options.mask_sampling, self.options)
        self.rule = self.options.rule
        if raw_options.max_masks is not None:
            self.rule = replace(self.rule or MaskRule(), max_masks=raw_options.max_masks)

    def rows(self, source: Source, file_name: str, jpeg: bytes, json: bytes) -> SampleArrays | None:
        """Decode a pair; None if the options of packing drop it, for it has no masks.

        Raises ReadError, which names the tar and the member, if it cannot be used.
        """
        pair = PairBytes(file_name, jpeg, json)
        outcome = attempt(pair, self.pack_options, Buffers(self.pack_options))
        if outcome is None:
            return None
        if not isinstance(outcome, Packed):
            raise unusable(source, outcome.member, outcome.detail, file_name)
        rows = dict(outcome.rows)
        if "run_offset" in rows:
            rows["run_offset"] = offsets_of(rows["run_offset"])
        return rows

    def sample(self, rows: SampleArrays, row: int) -> Any:
        """The sample, or what the transform returns for it, whose exceptions pass."""
        sample = sample_of_rows(rows, self.spec)
        selected = None
        if self.rule is not None:
            height, width = sample["size"][:2].tolist()
            # Its choice is not random.
            selected = select_masks(self.rule, rows, height * width, image_id=0)
            if len(selected) == len(sample["areas"]):
                selected = None
        convert(sample, self.layout, selected, self.spec)
        return delivered(sample, int(rows["image_id"][0]), row, self.options, self.spec)

    def info(
        self,
        source: Source,
        row: int,
        source_row: int,
        file_name: str,
        jpeg_bytes: int,
        json: bytes,
    ) -> PairInfo:
        """The facts in the record of a pair. Raises ReadError if it cannot be used."""
        try:
            record = parse_annotations(json, self.layout.mask_numbers)
        except SampleError as error:
            member = Path(file_name).stem + ".json"
            raise unusable(source, member, str(error), file_name) from error
        image = record.images[0]
        pixels = image.height * image.width
        masks = select_masks(self.pack_options, record.numbers, pixels, image.image_id)
        if self.rule is not None:
            of_sample = {name: values[masks] for name, values in record.numbers.items()}
            masks = select_masks(self.rule, of_sample, pixels, image_id=0)
        stored_height, stored_width = stored_size(
            image.height, image.width, self.layout.image_size, self.layout.fit
        )
        return PairInfo(
            row=row,
            image_id=image.image_id,
            file_name=file_name,
            source=source.name,
            path=source.local_path,
            source_row=source_row,
            height=image.height,
            width=image.width,
            stored_height=stored_height,
            stored_width=stored_width,
            masks=len(masks),
            annotations=len(record),
            jpeg_bytes=jpeg_bytes,
            json_bytes=len(json),
        )


def unusable(source: Source, member: str, reason: str, file_name: str) -> ReadError:
    """The error for a pair of a source, one of whose members cannot be used; or for its image."""
    return ReadError(f"{source.path}: {member}: {reason}", source.name, file_name=file_name)


def sources_of(tars: Tars) -> list[Source]:
    """The tars and folders that paths and patterns stand for, sorted by name.

    Their paths are absolute, as they are read after the process may have changed its folder.

    Raises OptionError for an empty list and for what is not a path, and as `find_sources`.
    """
    sources = find_sources(patterns_of("tars", tars))
    if not sources:
        raise OptionError("tars is an empty list: name at least one tar or folder")
    return [replace(source, path=source.local_path.absolute()) for source in sources]


def no_pairs(source: Source, rejects: Sequence[Reject]) -> SourceError:
    """The error for a tar or folder without an image that has a record."""
    codes = {reject.code for reject in rejects}
    first = ""
    if rejects:
        first = f" ({rejects[0].member} is {rejects[0].code}: {rejects[0].detail})"
    why = why_no_pairs(first_other_names(source), codes)
    return SourceError(f"{source.path}: has no image with its record{first}: {why}")
