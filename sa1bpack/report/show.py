"""`show`: samples of a pack as a picture, with masks, boxes and points."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from sa1bpack.data.dataset import Dataset
from sa1bpack.data.dataset import open as open_pack
from sa1bpack.errors import OptionError
from sa1bpack.report.choose import chosen
from sa1bpack.report.contact_sheet import contact_sheet, tile_width
from sa1bpack.report.large_picture import SIDE, large_picture
from sa1bpack.report.subject import read_subject
from sa1bpack.wording import counted

DEFAULT_SAMPLES = 12


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
    are the annotation's, scaled as the image is. Only the samples that are shown are read.

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
        FormatError: the folder is no pack, or a shard that is needed is damaged.
    """
    dataset = pack if isinstance(pack, Dataset) else open_pack(pack)
    if not len(dataset):
        raise OptionError(f"{dataset.root}: there is no image to show")
    if samples is None and image_ids is None and rows is None:
        samples = 1 if large else DEFAULT_SAMPLES
    indices = chosen(dataset, samples, image_ids, rows, seed)
    if large and len(indices) != 1:
        raise OptionError(f"a large picture shows 1 image, not {len(indices)}; name one of them")
    size = counted(len(dataset), "image")
    if large:
        return large_picture(read_subject(dataset, indices[0], SIDE), f"{dataset.root}, {size}")
    side = tile_width(len(indices))
    how = f" at random (seed {seed})" if samples is not None and samples < len(dataset) else ""
    note = f"{len(indices):,} of {size}{how}"
    subjects = [read_subject(dataset, index, side) for index in indices]
    return contact_sheet(subjects, str(dataset.root), note)
