"""`show`: samples of a pack as a picture, with masks, boxes and points."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.arguments import MAX_WORD, checks_options, torch_subset, whole_number
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.dataset.torch_subset import as_dataset
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.raw.dataset import TarDataset
from sa1bpack.report.batch import batch_rows, subjects_of
from sa1bpack.report.drawing import Image
from sa1bpack.report.sheets import SIDE, contact_sheet, large_picture, tile_width
from sa1bpack.report.subject import Subject, Unreadable, read_subject
from sa1bpack.report.tar import first_subjects, raw_source, refuse_among_several
from sa1bpack.source.find import Source
from sa1bpack.wording import counted

DEFAULT_SAMPLES = 12
_MOST_SAMPLES = 400  # a sheet of more than a hundred rows is of no use

_log = logging.getLogger("sa1bpack")


@dataclass(frozen=True)
class Shown:
    """A picture, and the samples that could not be drawn in it.

    name
        Folder of the pack, or what several are called.
    picture
        RGB, at most 1600 pixels wide.
    unreadable
        The samples that were replaced by an empty tile.
    """

    name: str
    picture: Image.Image
    unreadable: tuple[Unreadable, ...]


@checks_options
def show(
    pack: str | Path | Iterable[str | Path] | Dataset | Mapping[str, Any],
    *,
    samples: int | None = None,
    image_ids: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    seed: int = 0,
    large: bool = False,
) -> Image.Image:
    """A picture of samples of a pack or of a batch, to see whether images, masks, boxes and points
    match.

    Of a batch of Loader, make_dataloader, Collate or Pipeline it shows what the model gets: the
    canvas with its padding, normalised images with their colours back, and the masks that are
    valid, with their boxes and the points that are inside. The batch may be on any device. A batch
    without `spec` is taken to have boxes and points in stored coordinates.

    It shows what training reads: the stored pixels without padding and the stored mask bits (the
    exact runs if the pack has no bits), smaller masks over larger ones. Boxes and points are those
    of the annotation, scaled like the image. Only the samples shown are read, and compared with
    their checksums. A sample that is damaged or cannot be read is replaced by a tile that says why,
    and a warning is logged.

    Args:
        pack: what `sa1bpack.open` takes: the folder of a pack, several, or a saved selection. Or a
            dataset, which may be a subset, torch's Subset included; its transform is not called,
            and masks that its thresholds leave out are not drawn. Or a tar or extracted folder, of
            which the first samples are shown, as a pack would have them. Or a batch.
        samples: number of random samples. Default: 12, or 1 with `large`. Of a batch or a tar,
            the first ones.
        image_ids: samples with these ids, in this order; of a pack alone.
        rows: samples at these indices of the dataset, or at these places in the batch, in this
            order.
        seed: seed of the random choice. The same seed chooses the same samples. Of packs alone.
        large: one large sample, with the image alone beside it and a table of its masks.

    Returns:
        An RGB image, at most 1600 pixels wide. `image.save("sheet.png")` writes it.

    Raises:
        OptionError: more than one way of choosing, more than one sample for `large`, a pack without
            samples, an id or a row that does not exist, or more than 400 samples; a batch with
            other arrays, or `image_ids` or `large` with a batch.
        FormatError: the folder is not a pack, its index is damaged, or with `large` the sample is.
        MissingPackage: neither pillow-simd nor Pillow is installed.
        OSError: with `large`, a file of the sample cannot be opened.

    Examples:
        >>> picture = sa1bpack.show("packed", image_ids=[5], large=True)
        >>> picture.mode
        'RGB'
    """
    if isinstance(pack, Mapping):
        return _batch_sheet(pack, samples, image_ids, rows, large)
    shown = draw_samples(
        pack, samples=samples, image_ids=image_ids, rows=rows, seed=seed, large=large
    )
    for sample in shown.unreadable:
        _log.warning("%s cannot be shown: %s", shown.name, sample)
    return shown.picture


def draw_samples(
    pack: str | Path | Iterable[str | Path] | Dataset,
    *,
    samples: int | None = None,
    image_ids: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    seed: int = 0,
    large: bool = False,
) -> Shown:
    """As `show`, but unreadable samples are returned, not logged."""
    if (source := raw_source(pack)) is not None:
        if image_ids is not None or rows is not None or seed:
            raise OptionError(
                f"image_ids, rows and seed are for packs: of {source.path} the first samples are "
                "shown; for others, look at those of sa1bpack.TarDataset"
            )
        return draw_first(source, samples=samples, large=large)
    if isinstance(pack, TarDataset):
        raise OptionError(
            f"pack is {pack!r}, of which no pictures are made: pass the path of a tar, whose first "
            "samples are shown"
        )
    if isinstance(pack, Sequence) and not isinstance(pack, str):
        refuse_among_several(pack)
    if isinstance(pack, Dataset) or torch_subset(pack)[1]:
        dataset = as_dataset(pack)
    else:
        dataset = open_pack(pack)
    if not len(dataset):
        raise OptionError(f"{dataset.pack.name}: the dataset has no images to show")
    if samples is None and image_ids is None and rows is None:
        samples = 1 if large else DEFAULT_SAMPLES
    indices = chosen(dataset, samples, image_ids, rows, seed)
    if large and len(indices) != 1:
        raise OptionError(f"a large picture shows 1 image, not {len(indices)}; choose one of them")
    size = counted(len(dataset), "image")
    if large:
        subject = read_subject(dataset, indices[0], SIDE)
        return Shown(dataset.pack.name, large_picture(subject, f"{dataset.pack.name}, {size}"), ())
    side = tile_width(len(indices))
    how = f" at random (seed {seed})" if samples is not None and samples < len(dataset) else ""
    note = f"{len(indices):,} of {size}{how}"
    subjects = [_subject(dataset, index, side) for index in indices]
    unreadable = tuple(subject for subject in subjects if isinstance(subject, Unreadable))
    return Shown(dataset.pack.name, contact_sheet(subjects, dataset.pack.name, note), unreadable)


def draw_first(
    source: Source,
    *,
    samples: int | None = None,
    large: bool = False,
    rule: Mapping[str, Any] | None = None,
) -> Shown:
    """The first samples of a tar or folder, with the masks that pass the thresholds of `rule`."""
    if samples is None:
        samples = 1 if large else DEFAULT_SAMPLES
    count = checked_count("samples", samples)
    if large and count != 1:
        raise OptionError(f"a large picture shows 1 image, not {count}; choose one of them")
    subjects = first_subjects(source, count, rule or {})
    unreadable = tuple(subject for subject in subjects if isinstance(subject, Unreadable))
    if large and unreadable:
        raise FormatError(unreadable[0].reason)
    if large:
        picture = large_picture(subjects[0], f"{source.path.name}, first image")
    else:
        note = f"first {counted(len(subjects), 'image')}"
        picture = contact_sheet(subjects, source.path.name, note)
    return Shown(str(source.path), picture, unreadable)


def _batch_sheet(
    batch: Mapping[str, Any],
    samples: int | None,
    image_ids: Sequence[int] | None,
    rows: Sequence[int] | None,
    large: bool,
) -> Image.Image:
    if image_ids is not None or large:
        raise OptionError("image_ids and large are for packs: of a batch, choose samples or rows")
    places = batch_rows(batch, samples, rows, DEFAULT_SAMPLES)
    numbers = (f"{name} {batch[name]}" for name in ("epoch", "number") if name in batch)
    note = f"{len(places)} of {counted(len(batch['images']), 'sample')}"
    title = ", ".join(["batch", *numbers])
    return contact_sheet(subjects_of(batch, places), title, note)


def _subject(dataset: Dataset, index: int, side: int) -> Subject | Unreadable:
    try:
        return read_subject(dataset, index, side)
    except (FormatError, OSError) as error:
        return Unreadable.of(dataset, index, error)


def chosen(
    dataset: Dataset,
    samples: int | None,
    image_ids: Sequence[int] | None,
    rows: Sequence[int] | None,
    seed: int,
) -> list[int]:
    """Indices of the samples asked for: by id, by index, or `samples` at random.

    A random choice depends on the seed and the size of the dataset alone. Its samples are distinct
    and in the order of the dataset; if the dataset has fewer, it is all of them.

    Raises OptionError if more than one way of choosing is used, for an id or an index that the
    dataset does not have, and for fewer than 1 or more than 400 samples.
    """
    given = {"samples": samples, "image_ids": image_ids, "rows": rows}
    if sum(value is not None for value in given.values()) != 1:
        raise OptionError("choose by one of samples, image_ids and rows, not by several")
    seed = whole_number("seed", seed, 0, MAX_WORD)
    if image_ids is not None:
        indices = [_index_of(dataset, image_id) for image_id in image_ids]
    elif rows is not None:
        indices = [_checked_row(dataset, row) for row in rows]
    else:
        return random_indices(len(dataset), checked_count("samples", samples), seed)
    checked_count("the number of samples asked for", len(indices))
    return indices


def random_indices(size: int, count: int, seed: int) -> list[int]:
    """`count` distinct indices below `size`, ascending; all of them if there are fewer."""
    rng = np.random.default_rng(seed)
    return sorted(rng.choice(size, min(count, size), replace=False).tolist())


def checked_count(name: str, count: int) -> int:
    """Return the number. Raises OptionError unless it is a whole number from 1 to 400."""
    return whole_number(name, count, 1, _MOST_SAMPLES)


def _index_of(dataset: Dataset, image_id: int) -> int:
    try:
        return dataset.index_of(image_id)
    except KeyError:
        size = counted(len(dataset), "image")
        raise OptionError(
            f"{dataset.pack.name}: none of its {size} has the id {image_id}"
        ) from None


def _checked_row(dataset: Dataset, row: int) -> int:
    row = whole_number("rows", row, 0)
    if row >= len(dataset):
        raise OptionError(
            f"{dataset.pack.name}: row {row} does not exist; the pack has "
            f"{counted(len(dataset), 'image')}, rows 0 to {len(dataset) - 1}"
        )
    return row
