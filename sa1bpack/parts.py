"""Parts of a job: (K, N) is the K-th of N, as a job array or several machines share the work."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sa1bpack.arguments import whole_number
from sa1bpack.errors import OptionError
from sa1bpack.wording import brief

Share = tuple[int, int]
ALL: Share = (1, 1)

Item = TypeVar("Item")


def part_of_job(value: Any) -> Share:
    """(K, N), the K-th of N parts of a job, as ints.

    Raises OptionError unless it is a tuple of two whole numbers, K from 1 to N.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        raise OptionError(f"part is {brief(value)}: choose (K, N), for the K-th of N parts")
    count = whole_number("part", value[1], 1)
    return whole_number("part", value[0], 1, count), count


def share_of(items: Sequence[Item], part: Share) -> Sequence[Item]:
    """The items of the K-th of N parts of a job: every N-th, from the K-th on."""
    number, count = part
    return items[number - 1 :: count]
