"""The fields of a sample, each once: its names in shard, sample and batch, and its type.

Samples, metadata columns, batches, the buffers of the Loader and blank samples are derived from
these two tables, and tests hold the tables of the documentation against them. A new field is a line
here, beside its array in `sa1bpack.format.layout`.
"""

from typing import NamedTuple

import numpy as np

_UINT8, _INT32, _INT64, _FLOAT32 = map(np.dtype, ("u1", "i4", "i8", "f4"))


class Field(NamedTuple):
    """One quantity of a sample (`SAMPLE_FIELDS`) or of each of its masks (`MASK_FIELDS`).

    array    the shard's array; "" if the quantity is not stored under a name of its own
    sample   key of a sample; "" if a sample does not have it
    batch    key of a batch; "" if it stays out of batches
    dtype    type in a batch; None: the sample's own. In a sample it is that of the shard's array
    columns  values per sample or mask; 0: of a shape that depends on the options
    scaled   x, y values that are scaled where coordinates are those of the stored image
    """

    array: str
    sample: str
    batch: str
    dtype: np.dtype | None
    columns: int = 1
    scaled: bool = False

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of the values of one sample or mask: () or (columns,)."""
        return (self.columns,) if self.columns > 1 else ()


SAMPLE_FIELDS = (
    Field("image", "image", "images", None, 0),  # (S, S, 3) RGB, or planes (S * 3 / 2, S)
    Field("image_id", "image_id", "image_ids", _INT64),
    Field("size", "size", "sizes", _INT32, 4),  # source height, width, stored height, width
    Field("file_name", "file_name", "", None, 0),
    Field("", "index", "indices", _INT64),  # row in the pack
)
MASK_FIELDS = (
    Field("mask_bits", "masks", "masks", None, 0),  # bits (Sm, Sm / 8), or bool (Sm, Sm)
    Field("bbox", "bboxes", "bboxes", _FLOAT32, 4, scaled=True),  # x, y, w, h
    Field("area", "areas", "areas", _INT64),  # source pixels
    Field("predicted_iou", "predicted_ious", "predicted_ious", _FLOAT32),
    Field("stability_score", "stability_scores", "stability_scores", _FLOAT32),
    Field("point_coords", "point_coords", "point_coords", _FLOAT32, 2, scaled=True),  # x, y
    Field("crop_box", "crop_boxes", "", None, 4, scaled=True),  # x, y, w, h
    Field("annotation_id", "annotation_ids", "annotation_ids", _INT64),
)

# Fields of masks that are plain numbers, so not the masks themselves.
NUMBER_FIELDS = tuple(field for field in MASK_FIELDS if field.columns)
