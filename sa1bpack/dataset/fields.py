"""The fields of a sample, each defined once: its names in shard, sample and batch, and its type.

Samples, metadata columns, batches and the Loader's buffers are derived from these two tables, and
tests compare the tables in the documentation with them. The numbers of a mask are those of
`sa1bpack.mask_numbers`. A quantity of another kind also needs its copy in
`sa1bpack.loading.batch.load_samples` or in `sa1bpack.loading.located_batch`.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.format.layout import Layout
from sa1bpack.format.side.spec import SideSpec, side_name
from sa1bpack.mask_numbers import MASK_NUMBERS, MaskNumber
from sa1bpack.wording import brief

_INT32, _INT64 = map(np.dtype, ("i4", "i8"))
# Type of a number in a shard → in a batch.
_IN_BATCH = {"<f8": np.dtype("f4"), "<i8": _INT64}


class Field(NamedTuple):
    """One quantity of a sample (`SAMPLE_FIELDS`) or of each of its masks (`MASK_FIELDS`).

    Attributes:
        array: the shard's array; "" if the field is not stored in one.
        sample: key in a sample.
        batch: key in a batch; "" if batches do not have it.
        dtype: type in a batch; None: the same as in a sample, where it is that of the shard's
            array.
        columns: values per sample or mask; 0 if the shape depends on the layout or the options.
        scaled: the values are x and y, which are scaled if coordinates are those of the stored
            image.
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

    @classmethod
    def of(cls, number: MaskNumber) -> "Field":
        """The field of a number of each mask."""
        return cls(
            array=number.array,
            sample=number.key,
            batch=number.key if number.batched else "",
            dtype=_IN_BATCH[number.dtype],
            columns=number.columns,
            scaled=number.columns > 1,
        )


SAMPLE_FIELDS = (
    Field("image", "image", "images", None, 0),  # (S, S, 3) RGB, or planes (S * 3 / 2, S)
    Field("image_id", "image_id", "image_ids", _INT64),
    Field("size", "size", "sizes", _INT32, 4),  # source height, width, stored height, width
    Field("file_name", "file_name", "", None, 0),
    Field("", "row", "indices", _INT64),  # row in the pack
)
# Fields of masks that are plain numbers: all but the masks themselves.
NUMBER_FIELDS = tuple(Field.of(number) for number in MASK_NUMBERS)
MASK_FIELDS = (
    Field("mask_bits", "masks", "masks", None, 0),  # bits (Sm, Sm / 8), or bool (Sm, Sm)
    *NUMBER_FIELDS,
)

# Keys of a sample that are scaled to the stored image.
SCALED_KEYS = tuple(field.sample for field in MASK_FIELDS if field.scaled)

# Columns of metadata: the fields above, and the arrays that no sample has.
SAMPLE_COLUMNS = (
    *(field.array for field in SAMPLE_FIELDS if field.array not in ("", "image")),
    "mask_count",
    "annotation_count",
    "checksum",
)
# Columns of samples that are a column of `size`: pixels of the source.
SIZE_COLUMNS = {"height": 0, "width": 1}


def number_fields(layout: Layout) -> tuple[Field, ...]:
    """The numbers of each mask that packs of this layout have."""
    return tuple(Field.of(number) for number in layout.mask_numbers)


def column_names(layout: Layout) -> frozenset[str]:
    """The columns of datasets of this layout, but those of features."""
    numbers = {number.array for number in layout.mask_numbers}
    return frozenset({*SAMPLE_COLUMNS, *SIZE_COLUMNS, "mask_offset", "number_types", *numbers})


def present_key(name: str) -> str:
    """The key that says which rows of a feature are there, if some may be missing."""
    return f"{name}_present"


class FeatureKeys(NamedTuple):
    """The keys that a feature has in samples and batches, "" for one that it does not have.

    ==========  ===============================  =================================================
    key         in a sample                      in a batch
    ==========  ===============================  =================================================
    rows        fixed: (...) or (m, ...)         (B, ...); per mask (T, ...) or (B, M, ...)
                ragged: (n, ...), per mask       concat layouts: (t, ...), row after row; padded
                (t, ...), row after row          ones: (B, L, ...) or (B, M, L, ...), zero-padded
                text: str, per mask list of str  list of str; per mask, padded: list of such lists
    offsets     ragged numbers per mask:         ragged numbers, concat layouts: int64, one more
                int64 (m + 1,)                   than there are rows
    lengths                                      ragged numbers, padded layouts: int64 (B,) or
                                                 (B, M), items of each row
    present     rows may be missing: bool, per   bool (B,); per mask (T,) or (B, M)
                mask bool (m,)
    ==========  ===============================  =================================================

    `present` and `lengths` are columns, too.
    """

    rows: str
    offsets: str = ""
    lengths: str = ""
    present: str = ""

    @classmethod
    def of(cls, spec: SideSpec) -> "FeatureKeys":
        """The keys of a feature."""
        keys = cls(spec.name)
        if spec.ragged and not spec.text:
            keys = keys._replace(offsets=f"{spec.name}_offsets", lengths=f"{spec.name}_lengths")
        if spec.missing:
            keys = keys._replace(present=present_key(spec.name))
        return keys


def check_feature_keys(specs: Iterable[SideSpec]) -> None:
    """Raise OptionError if two features have the same key, or one has a key that is taken."""
    features: dict[str, str] = {}
    for spec in specs:
        for key in filter(None, FeatureKeys.of(spec)):
            if key in TAKEN_BY:
                raise OptionError(
                    f"feature {brief(spec.name)} has the key {brief(key)}: {TAKEN_BY[key]}; "
                    "choose another name"
                )
            if key in features:
                raise OptionError(
                    f"features {brief(features[key])} and {brief(spec.name)} have both the key "
                    f"{brief(key)}: leave one of them out, or give it another name"
                )
            features[key] = spec.name


# Every key that sa1bpack writes into a sample or a batch, by who writes it. Neither a feature nor
# what a transform adds to a sample can be called so: it would be overwritten, or overwrite. The
# names of relations (`masks.relations.RELATIONS`) are not among them: who asks for a relation and
# for a feature of its name in one batch is refused. A test compares the table with what is written.
WRITTEN_KEYS = {
    "samples": (
        *(field.sample for field in SAMPLE_FIELDS + MASK_FIELDS),
        "run_ends",
        "run_offset",
    ),
    "batches": (
        *(field.batch for field in SAMPLE_FIELDS + MASK_FIELDS if field.batch),
        "runs",
        "mask_counts",
        "mask_offsets",
        "mask_positions",  # in the buffer of a Loader alone
        "epoch",
        "batch_idx",
        "global_step",
        "sample_class",
        "dropped",
        "repeated",
        "repetitions",
    ),
    "transforms.Pipeline": (
        "boxes_xyxy",
        "point_inside",
        "valid",
        "crop_mask",
        "pixel_mean",
        "pixel_std",
        "input_to_source",
        "source_to_input",
        "input_sizes",
        "source_window",
        "erase_box",
        "mix_lambda",
        "mix_partner",
        "mix_box",
    ),
    "transforms.Prompts": (
        "prompt_kinds",
        "prompt_points",
        "prompt_labels",
        "prompt_boxes",
        "prompt_masks",
    ),
    "as_tv_tensors": ("boxes",),
}


def _taken_by() -> dict[str, str]:
    """Key → who has it or writes it, as a clause."""
    clauses: dict[str, str] = {}
    for writer, keys in WRITTEN_KEYS.items():
        clause = f"{writer} have that key"
        if writer not in ("samples", "batches"):
            clause = f"{writer} writes that key into batches"
        for key in keys:
            clauses.setdefault(key, clause)
    return clauses


TAKEN_BY = _taken_by()


def check_feature_name(name: str, columns: Collection[str] = ()) -> str:
    """Check the name of a feature. Raises OptionError if it cannot be a key of a sample.

    For a new feature, `columns` are the columns that the dataset has, which it would hide.
    """
    if side_name(name) in TAKEN_BY:
        raise OptionError(f"name is {brief(name)}: {TAKEN_BY[name]}; choose another")
    if name in columns:
        raise OptionError(
            f"name is {brief(name)}: datasets have a column of that name; choose another"
        )
    return name


def check_added_keys(keys: Collection[str]) -> None:
    """Check keys that a transform added to a sample. Raises OptionError for one that is taken."""
    for key in keys:
        if key in TAKEN_BY and key not in WRITTEN_KEYS["as_tv_tensors"]:
            raise OptionError(
                f"the transform added {key!r} to a sample: {TAKEN_BY[key]}; choose another name"
            )
