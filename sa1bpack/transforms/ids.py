"""The numbers that seed what is drawn for each mask of a batch."""

import torch
from torch import Tensor

from sa1bpack.keywords import checks_options
from sa1bpack.mask_numbers import MASK_NUMBERS
from sa1bpack.transforms.batch import Items
from sa1bpack.transforms.checks import check_made
from sa1bpack.transforms.random import repeated_ids

# Keys of a batch with one row per mask; a dataset's transform may have removed some.
MASK_KEYS = (*(number.key for number in MASK_NUMBERS if number.batched), "masks")


@checks_options
def mask_ids(batch: Items) -> Tensor:
    """Ids of the masks of a batch, for draws that are to differ from mask to mask.

    That of a mask is its annotation id. If the batch has none, because the pack lacks them or
    `fields` leaves them out, it is a hash of the id of its image and of its place among the masks
    that the batch has of this image. Where an image comes again in an epoch
    (`batch["repetitions"]`), its masks have other ids. None depends on the batch, the rank or the
    padding.

    Args:
        batch: a batch of Loader, make_dataloader, Collate or Pipeline.

    Returns:
        int64 (T,) for concatenated masks, (B, M) for padded ones; any values.

    Raises:
        OptionError: the batch has nothing with a row per mask, or lacks `image_ids`.

    Examples:
        >>> ds = sa1bpack.open("packed", mask_format="runs")
        >>> batch = sa1bpack.Collate("concat", sample_spec=ds.spec)([ds[0], ds[1]])
        >>> points, valid = T.draw_points(batch["runs"], T.mask_ids(batch), 3, seed=0, epoch=0)
        >>> points.shape
        torch.Size([180, 3, 2])
    """
    ids = batch.get("annotation_ids")
    if ids is None:
        check_made(batch, ("image_ids", "mask_counts"))
        ids = repeated_ids(of_masks(batch, batch["image_ids"]), _places(batch) + 1)
    if "repetitions" not in batch:
        return ids
    return repeated_ids(ids, of_masks(batch, batch["repetitions"]))


def of_masks(batch: Items, of_images: Tensor) -> Tensor:
    """(T,) or (B, M): for each mask of a batch the value of its image, of (B,)."""
    leading = mask_axes(batch)
    if "mask_offsets" in batch:
        return of_images.repeat_interleave(batch["mask_counts"], output_size=leading[0])
    return of_images[:, None].expand(leading)


def mask_axes(batch: Items) -> torch.Size:
    """(T,) or (B, M): the first axes of the arrays of masks of a batch.

    Raises OptionError for a batch without any.
    """
    axes = 1 if "mask_offsets" in batch else 2
    for key in (*MASK_KEYS, "valid"):
        if key in batch:
            shape: torch.Size = batch[key].shape[:axes]
            return shape
    check_made(batch, ("valid",))
    raise AssertionError("the batch has `valid`")


def _places(batch: Items) -> Tensor:
    """int64 (T,) or (B, M): the place of each mask among those of its image."""
    leading = mask_axes(batch)
    numbers = torch.arange(leading[-1], device=batch["image_ids"].device)
    if "mask_offsets" in batch:
        return numbers - of_masks(batch, batch["mask_offsets"][:-1])
    return numbers.expand(leading)
