"""What conditions may compare: the numbers of samples and of masks, by the names that a text uses.

Each table maps what a text names to functions of the columns of a shard. What exists depends on
the pack: its layout says which numbers masks have, and the dataset which features there are.
"""

import operator
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sa1bpack.dataset.conditions import PRESENT, REDUCTIONS, Condition, Operand, parse_condition
from sa1bpack.dataset.fields import SIZE_COLUMNS, FeatureKeys
from sa1bpack.dataset.mask_relations import RELATION_NUMBERS
from sa1bpack.dataset.pack import Pack
from sa1bpack.errors import OptionError
from sa1bpack.format.layout import Layout
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.mask_numbers import ABSENT_NUMBERS, OPTIONAL_NUMBERS
from sa1bpack.wording import brief

if TYPE_CHECKING:
    from sa1bpack.dataset.columns import Columns

Getter = Callable[["Columns"], np.ndarray]


class Compared(NamedTuple):
    """What a condition compares, as functions of the columns of a shard.

    Attributes:
        values: a value per sample, or per mask.
        present: bool, which of these are there; None: all.
    """

    values: Getter
    present: Getter | None = None


Table = Mapping[Operand, Compared]

# Numbers of a sample: columns with one value each. Sizes are source pixels.
NUMBERS = ("mask_count", "annotation_count", "image_id", *SIZE_COLUMNS)


def reduced_numbers(layout: Layout) -> list[str]:
    """Numbers of a mask, of which a sample has the sum, max or min."""
    return [number.array for number in layout.mask_numbers if number.columns == 1]


def values_of_samples(pack: Pack) -> dict[Operand, Compared]:
    """What conditions of samples compare: a value per sample, (k,)."""
    table: dict[Operand, Compared] = {}
    for name in (*NUMBERS, "file_name"):
        table[Operand(name)] = Compared(operator.itemgetter(name))
    reduced = reduced_numbers(pack.layout)
    for spec in _features(pack, "sample"):
        table |= _of_feature(spec)
    reduced += [spec.name for spec in _features(pack, "mask") if _is_single(spec) and not spec.text]
    for how in REDUCTIONS:
        for name in reduced:
            get = partial(_reduced, name=name, how=how)
            table[Operand(name, reduce=how)] = Compared(get)
    return table


def values_of_masks(pack: Pack) -> dict[Operand, Compared]:
    """What conditions of masks compare: a value per mask, (m,)."""
    table: dict[Operand, Compared] = {}
    for number in pack.layout.mask_numbers:
        if number.columns == 1:
            table[Operand(number.array)] = Compared(operator.itemgetter(number.array))
        for column, part in enumerate(number.dims[-1] if number.columns > 1 else ""):
            get = partial(_column_of, name=number.array, column=column)
            table[Operand(number.array, part)] = Compared(get)
    table[Operand("area_frac")] = Compared(_area_frac)
    for name in RELATION_NUMBERS:
        table[Operand(name)] = Compared(partial(_relation, name=name))
    for name in (*NUMBERS, "file_name"):
        table[Operand(name)] = _of_each_mask(Compared(operator.itemgetter(name)))
    # A feature comes before a relation of its name: it may hold the relation, computed once.
    for spec in _features(pack, "mask"):
        table |= _of_feature(spec)
    for spec in _features(pack, "sample"):
        for operand, compared in _of_feature(spec).items():
            table[operand] = _of_each_mask(compared)
    return table


def _of_feature(spec: SideSpec) -> dict[Operand, Compared]:
    """What conditions compare of a feature: a value per row."""
    table: dict[Operand, Compared] = {}
    present = partial(_present, name=spec.name)
    table[Operand(spec.name, PRESENT)] = Compared(present)
    if _is_single(spec):
        table[Operand(spec.name)] = Compared(partial(_feature, name=spec.name), present)
    lengths = FeatureKeys.of(spec).lengths
    if lengths:
        table[Operand(lengths)] = Compared(operator.itemgetter(lengths), present)
    return table


def _features(pack: Pack, axis: str) -> list[SideSpec]:
    """The features with a row per sample, or per mask."""
    return [feature.spec for feature in pack.features if feature.spec.axis == axis]


def _is_single(spec: SideSpec) -> bool:
    """True if a row is one number that numpy knows, or one text."""
    return spec.text or (not spec.ragged and prod(spec.row_shape) == 1 and spec.dtype != "bfloat16")


def _present(columns: "Columns", name: str) -> np.ndarray:
    return columns.present(name)


def _feature(columns: "Columns", name: str) -> np.ndarray:
    rows = columns[name]
    return rows.reshape(len(rows))


def _reduced(columns: "Columns", name: str, how: str) -> np.ndarray:
    values = columns.reduced(name, how)
    return values.reshape(len(values))


def _column_of(columns: "Columns", name: str, column: int) -> np.ndarray:
    values: np.ndarray = columns[name][:, column]
    return values


def _relation(columns: "Columns", name: str) -> np.ndarray:
    return columns.relation(name)


def _of_each_mask(compared: Compared) -> Compared:
    """What has a value per sample, with one per mask."""
    present = None
    if compared.present is not None:
        present = partial(_repeated, get=compared.present)
    return Compared(partial(_repeated, get=compared.values), present)


def _repeated(columns: "Columns", get: Getter) -> np.ndarray:
    """A value per sample as one per mask."""
    return np.repeat(get(columns), columns["mask_count"])


def _area_frac(columns: "Columns") -> np.ndarray:
    """The part of the image that each mask has, in source pixels."""
    size = columns["size"].astype(np.int64)
    pixels = np.repeat(size[:, 0] * size[:, 1], columns["mask_count"])
    fraction: np.ndarray = columns["area"] / pixels
    return fraction


def checked_condition(text: str, option: str, table: Table, axis: str) -> Condition:
    """The condition that a text says, of what a table has.

    Args:
        text: the condition.
        option: name of the argument, for messages.
        table: what may be compared.
        axis: "sample" or "mask": what has the values.

    Raises:
        OptionError: the text is not a condition, or compares what there is not; with what there is.
    """
    condition = parse_condition(text, option)
    for operand in condition.operands():
        if operand not in table:
            raise OptionError(f"{option} is {brief(text)}{_fault(operand, table, axis)}")
    return condition


def _fault(operand: Operand, table: Table, axis: str) -> str:
    """What is wrong with an operand that a table lacks, with the remedy."""
    if operand.part == PRESENT and Operand(operand.name) in table:
        return (
            f", and {operand.name} alone is no condition: write NAME SIGN NUMBER, such as "
            f"'{operand.name} > 0'"
        )
    named = operand.name
    if operand.part not in ("", PRESENT):
        named = f"{named}.{operand.part}"
    why = ""
    may_lack = operand.name in (*ABSENT_NUMBERS, *OPTIONAL_NUMBERS)
    if may_lack and operand.name not in {other.name for other in table}:
        why = ", since the pack has none"
    text = (
        f": {brief(named)} is not a number of a {axis}{why}: it has {_listed(table)}; features "
        "must be opened with the pack, features=[...] (--features)"
    )
    if axis == "sample":
        text += "; where_masks() has conditions of masks"
    return text


def fulfilled(condition: Condition, columns: "Columns") -> np.ndarray:
    """bool (k,): which of the k samples of a shard fulfil a condition that was checked."""
    return evaluated(condition, columns, values_of_samples(columns.pack))


def evaluated(condition: Condition, columns: "Columns", table: Table) -> np.ndarray:
    """bool (k,): which of the samples or masks of a shard fulfil a condition of what a table has.

    A row of a feature that is missing fulfils no comparison: it reads as 0 or as an empty text.
    """

    def presence(operand: Operand) -> np.ndarray | None:
        present = table[operand].present
        return None if present is None else present(columns)

    return condition.holds(lambda operand: table[operand].values(columns), presence)


def _listed(table: Table) -> str:
    """What a table has, in words."""
    plain = [str(operand) for operand in table if operand.reduce is None]
    reduced = dict.fromkeys(operand.name for operand in table if operand.reduce is not None)
    text = ", ".join(plain)
    if reduced:
        text = f"{text}, and {', '.join(REDUCTIONS)} of {', '.join(reduced)}"
    return text
