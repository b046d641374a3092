"""The numbers of a mask, each declared once, from the JSON to the batch.

Everything that has them follows from MASK_NUMBERS: the decoder of records, the arrays of a shard
and their metadata, samples, columns and conditions, batches and their buffers, and what is exported
and drawn. CONTRIBUTING.md, "A number per mask", says how to add one.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class MaskNumber:
    """A number of each mask, or the few numbers of a point or a box.

    Attributes:
        array: name of the array in a shard, which is that of the column as well.
        json: key in an annotation of the JSON record.
        key: key in a sample, and in a batch.
        meaning: what it is, as docs/format.md says it.
        dtype: type in a shard and in a sample. Batches have float32 for float64. An integer is
            whole in the JSON, and not negative if it has a `type_bit`.
        columns: 1, or 2 for the x, y of a point, or 4 for the x, y, w, h of a box, in source
            pixels; points and boxes are scaled with the image. The JSON has a list of one point.
        type_bit: the bit of `number_types` that says that the JSON wrote an integer; of several
            columns, the first of their bits. 13 and 14 are free. None: it always writes one.
        batched: batches have it.
        optional: only packs have it whose layout names it, by the option of the name of its array;
            a mask whose JSON has none has NaN.
        may_be_absent: a pack may lack it: its records have no value for it, of any mask.
        title: of its chart in a report, which draws none without.
        heading: of its column beside a picture of one sample, which has none without.

    Raises:
        ValueError: an optional number that cannot be NaN, is not a single one, may be absent, or
            whose `key` is that of its JSON: a pack that kept the JSON's has a feature of that name.
    """

    array: str
    json: str
    key: str
    meaning: str
    dtype: Literal["<f8", "<i8"] = "<f8"
    columns: Literal[1, 2, 4] = 1
    type_bit: int | None = None
    batched: bool = True
    optional: bool = False
    may_be_absent: bool = False
    title: str = ""
    heading: str = ""

    def __post_init__(self) -> None:
        if self.optional and (self.dtype != "<f8" or self.columns != 1):
            raise ValueError(f"{self.array} is optional: it must be one float64, which may be NaN")
        if self.optional and self.may_be_absent:
            raise ValueError(
                f"{self.array} is optional: packs lack it unless their layout names it"
            )
        if self.optional and self.key == self.json:
            raise ValueError(
                f"{self.array} is optional: choose another key than {self.key!r}, which is the "
                "name of a feature in packs that kept it before"
            )

    @property
    def type_bits(self) -> range:
        """The bits of `number_types` that belong to it; none if it is always an integer."""
        if self.type_bit is None:
            return range(0)
        return range(self.type_bit, self.type_bit + self.columns)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions of its array."""
        return {1: ("mask",), 2: ("mask", "xy"), 4: ("mask", "xywh")}[self.columns]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of the values of one mask: () or (columns,)."""
        return (self.columns,) if self.columns > 1 else ()


# In the order of the arrays of a shard, which is that of a sample's checksum: new ones come last.
MASK_NUMBERS: tuple[MaskNumber, ...] = (
    MaskNumber(
        array="bbox",
        json="bbox",
        key="bboxes",
        meaning="x, y, w, h in source pixels; w = xmax - xmin, h = ymax - ymin",
        columns=4,
        type_bit=0,
    ),
    MaskNumber(
        array="area",
        json="area",
        key="areas",
        meaning="source pixels",
        dtype="<i8",
        type_bit=4,
    ),
    MaskNumber(
        array="predicted_iou",
        json="predicted_iou",
        key="predicted_ious",
        meaning="as in the JSON; may exceed 1",
        type_bit=5,
        may_be_absent=True,
        title="Predicted IoU",
        heading="IoU",
    ),
    MaskNumber(
        array="stability_score",
        json="stability_score",
        key="stability_scores",
        meaning="as in the JSON",
        type_bit=12,
        may_be_absent=True,
        title="Stability score",
        heading="stability",
    ),
    MaskNumber(
        array="point_coords",
        json="point_coords",
        key="point_coords",
        meaning="the prompt's x, y in source pixels",
        columns=2,
        type_bit=6,
        may_be_absent=True,
    ),
    MaskNumber(
        array="crop_box",
        json="crop_box",
        key="crop_boxes",
        meaning="x, y, w, h in source pixels",
        columns=4,
        type_bit=8,
        batched=False,
        may_be_absent=True,
    ),
    MaskNumber(
        array="annotation_id",
        json="id",
        key="annotation_ids",
        meaning="`id` of the annotation",
        dtype="<i8",
        may_be_absent=True,
    ),
)

# The keys of an annotation in the order in which SA-1B's JSON has them; other numbers come after.
_SA1B_KEYS = (
    "bbox",
    "area",
    "segmentation",
    "predicted_iou",
    "point_coords",
    "crop_box",
    "id",
    "stability_score",
)

OPTIONAL_NUMBERS = tuple(number.array for number in MASK_NUMBERS if number.optional)
# Those that a pack may lack, in the order of the table.
ABSENT_NUMBERS = tuple(number.array for number in MASK_NUMBERS if number.may_be_absent)


def stored_numbers(
    optional: Collection[str] = (), absent: Collection[str] = ()
) -> tuple[MaskNumber, ...]:
    """The numbers of a pack, in the order of the table.

    Args:
        optional: the optional ones that its layout names.
        absent: those that it lacks.
    """
    stored = []
    for number in MASK_NUMBERS:
        if number.array in absent or (number.optional and number.array not in optional):
            continue
        stored.append(number)
    return tuple(stored)


def chosen_numbers(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The optional numbers that options of a pack ask for, in the order of the table."""
    return tuple(name for name in OPTIONAL_NUMBERS if options.get(name))


def lacks_text(name: str, numbers: Iterable[MaskNumber]) -> str:
    """A clause that says that masks lack a number, and which they have."""
    names = ", ".join(number.array for number in numbers)
    return f"the masks of this pack have no {name}: their numbers are {names}"


def annotation_keys(numbers: Collection[MaskNumber]) -> tuple[str, ...]:
    """The keys of an annotation that has these numbers, in the order of the JSON."""
    names = {number.json for number in numbers}
    keys = [key for key in _SA1B_KEYS if key in names or key == "segmentation"]
    keys += [number.json for number in numbers if number.json not in _SA1B_KEYS]
    return tuple(keys)
