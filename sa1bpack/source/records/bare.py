"""The reader `none`: images alone."""

from typing import Any

from sa1bpack.source.pairs import FolderStream
from sa1bpack.source.records.images import ImageReader
from sa1bpack.source.tar import Member
from sa1bpack.wording import brief, counted


class BareReader(ImageReader):
    """The images of a source, each with an empty record: it has no masks.

    In a folder of JPEGs, images in other formats are passed over: they may be maps of depth.
    """

    all_images = False

    def described(self) -> dict[str, Any]:
        """How many images in other formats a folder of JPEGs has, if any."""
        if not isinstance(self._members, FolderStream) or not self._members.passed_over:
            return {}
        names = self._members.passed_over
        count = counted(len(names), "image")
        line = (
            f"{count} in other formats than JPEG, such as {brief(names[0])}, not packed, as they "
            "may be maps beside the JPEGs: to pack them, give a folder that has no JPEGs"
        )
        return {"lost": [line]}

    def record_of(self, member: Member, path: str) -> bytes:
        """An empty record."""
        return b""
