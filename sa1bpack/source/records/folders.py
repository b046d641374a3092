"""Files of one name in several folders: which of them a path means, by the ends of their paths."""

from collections.abc import Sequence


def common_end(first: Sequence[str], second: Sequence[str]) -> int:
    """How many of the last parts of two paths are equal."""
    count = 0
    for part, other in zip(reversed(first), reversed(second), strict=False):
        if part != other:
            break
        count += 1
    return count


class FolderNames:
    """The folders that the paths of a data set have, each with its height above the file."""

    def __init__(self) -> None:
        self._names: set[tuple[int, str]] = set()

    def __bool__(self) -> bool:
        """True if a path has a folder."""
        return bool(self._names)

    def add(self, parts: Sequence[str]) -> None:
        """Note the folders of a path of the data set, whose last part is the name of its file."""
        self._names.update(enumerate(reversed(parts[:-1]), start=1))

    def tell_apart(self, parts: Sequence[str], noted: Sequence[str]) -> bool:
        """True if a path is not the noted one of its name: they differ in a folder that is noted.

        From the name on upwards, the first folder that differs decides. One that no noted path has
        at that height may be that of any: archives name them otherwise.
        """
        height = common_end(parts, noted)
        if height == min(len(parts), len(noted)):
            return False
        return (height, parts[-1 - height]) in self._names
