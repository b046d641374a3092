"""Conditions on samples as text, for the command line: "mask_count >= 10", "max(area) > 100000".

A condition compares a number of each sample with a constant. Nothing in it is evaluated as code:
names and signs are looked up in tables.
"""

import operator
import re
from collections.abc import Callable

import numpy as np

from sa1bpack.dataset.columns import REDUCTIONS, Columns
from sa1bpack.dataset.fields import NUMBER_FIELDS, SIZE_COLUMNS
from sa1bpack.errors import OptionError

# Numbers of a sample: columns with one value each. Sizes are source pixels.
NUMBERS = ("mask_count", "annotation_count", "image_id", *SIZE_COLUMNS)
# Numbers of a mask, of which a sample has the sum, max or min.
MASK_NUMBERS = tuple(field.array for field in NUMBER_FIELDS if field.columns == 1)
SIGNS = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, ">": operator.gt,
}  # fmt: skip

_CONDITION = re.compile(
    rf"\s*(?:(?P<reduce>{'|'.join(REDUCTIONS)})\s*\(\s*(?P<mask>\w+)\s*\)|(?P<name>\w+))"
    rf"\s*(?P<sign>{'|'.join(SIGNS)})\s*(?P<number>[-+]?[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*"
)


def parse_condition(text: str) -> Callable[[Columns], np.ndarray]:
    """The function of `Dataset.where` for a condition: columns of k samples → bool (k,).

    Raises OptionError, naming what there is, for a text that is not a condition.
    """
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise OptionError(
            f"where is {text!r}: write NAME SIGN NUMBER, such as 'mask_count >= 10' or "
            f"'max(area) > 100000'; a sign is one of {' '.join(SIGNS)}"
        )
    compare = SIGNS[found["sign"]]
    digits = found["number"].replace("_", "")
    number = int(digits) if digits.lstrip("+-").isdigit() else float(digits)
    name, mask, reduce = found["name"], found["mask"], found["reduce"]
    if name in NUMBERS:
        return lambda columns: compare(columns[name], number)
    if mask in MASK_NUMBERS:
        return lambda columns: compare(columns.reduced(mask, reduce), number)
    if name in MASK_NUMBERS:
        raise OptionError(
            f"where is {text!r}: a sample has many numbers {name!r}: write one of "
            f"{', '.join(f'{each}({name})' for each in REDUCTIONS)}"
        )
    raise OptionError(
        f"where is {text!r}: {mask or name!r} is unknown; a sample has {', '.join(NUMBERS)}, and "
        f"{', '.join(REDUCTIONS)} of {', '.join(MASK_NUMBERS)}"
    )
