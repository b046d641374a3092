"""`show`: samples of a pack as a picture, with masks, boxes and points."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sa1bpack.arguments import local_path
from sa1bpack.data.dataset import Dataset
from sa1bpack.data.dataset import open as open_pack
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.report.choose import chosen
from sa1bpack.report.contact_sheet import contact_sheet, tile_width
from sa1bpack.report.large_picture import SIDE, large_picture
from sa1bpack.report.pil import Image
from sa1bpack.report.subject import Subject, read_subject
from sa1bpack.report.unreadable import Unreadable
from sa1bpack.wording import counted

DEFAULT_SAMPLES = 12

_log = logging.getLogger("sa1bpack")


@dataclass(frozen=True)
class Shown:
    """A picture, and the samples that could not be drawn in it.

    root
        Folder of the pack.
    picture
        RGB, 1600 pixels wide at most.
    unreadable
        Those in whose place there is an empty tile.
    """

    root: Path
    picture: Image.Image
    unreadable: tuple[Unreadable, ...]


def show(
    pack: str | Path | Dataset,
    *,
    samples: int | None = None,
    image_ids: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    seed: int = 0,
    large: bool = False,
) -> Image.Image:
    """A picture of samples of a pack, to see whether images, masks, boxes and points fit together.

    What is drawn is what training reads: the stored pixels without their padding, the stored mask
    bits (of a pack without bits the exact runs), larger masks below smaller ones. Boxes and points
    are the annotation's, scaled as the image is. Only the samples that are shown are read, and
    compared with their checksums. In the place of one that is damaged or cannot be read stands a
    tile that says why, and a warning is logged.

    Args:
        pack: folder of a pack, or a dataset, which may be a part of one; its hooks are not called.
        samples: so many at random. Default: 12, or 1 with `large`.
        image_ids: these, in this order.
        rows: these indices of the dataset, in this order.
        seed: of the random choice. The same seed chooses the same samples.
        large: one sample large, with the image alone beside it and a table of its masks.

    Returns:
        An RGB image, 1600 pixels wide at most. `image.save("sheet.png")` writes it.

    Raises:
        OptionError: more than one way of choosing, more than one sample for `large`, a pack without
            samples, an id or a row that is not there, or more than 400 samples.
        FormatError: the folder is no pack, its index is damaged, or with `large` the sample is.
        OSError: with `large`, a file of the sample cannot be opened.
    """
    shown = draw_samples(
        pack, samples=samples, image_ids=image_ids, rows=rows, seed=seed, large=large
    )
    for sample in shown.unreadable:
        _log.warning("%s cannot be shown: %s", shown.root, sample)
    return shown.picture


def draw_samples(
    pack: str | Path | Dataset,
    *,
    samples: int | None = None,
    image_ids: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    seed: int = 0,
    large: bool = False,
) -> Shown:
    """As `show`, but what cannot be read is returned and not logged."""
    dataset = pack if isinstance(pack, Dataset) else open_pack(local_path("pack", pack))
    if not len(dataset):
        raise OptionError(f"{dataset.root}: there is no image to show")
    if samples is None and image_ids is None and rows is None:
        samples = 1 if large else DEFAULT_SAMPLES
    indices = chosen(dataset, samples, image_ids, rows, seed)
    if large and len(indices) != 1:
        raise OptionError(f"a large picture shows 1 image, not {len(indices)}; name one of them")
    size = counted(len(dataset), "image")
    if large:
        subject = read_subject(dataset, indices[0], SIDE)
        return Shown(dataset.root, large_picture(subject, f"{dataset.root}, {size}"), ())
    side = tile_width(len(indices))
    how = f" at random (seed {seed})" if samples is not None and samples < len(dataset) else ""
    note = f"{len(indices):,} of {size}{how}"
    subjects = [_subject(dataset, index, side) for index in indices]
    unreadable = tuple(subject for subject in subjects if isinstance(subject, Unreadable))
    return Shown(dataset.root, contact_sheet(subjects, str(dataset.root), note), unreadable)


def _subject(dataset: Dataset, index: int, side: int) -> Subject | Unreadable:
    try:
        return read_subject(dataset, index, side)
    except (FormatError, OSError) as error:
        return Unreadable.of(dataset, index, error)
