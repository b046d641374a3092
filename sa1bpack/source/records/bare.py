"""The reader `none`: images alone."""

from sa1bpack.source.records.images import ImageReader
from sa1bpack.source.tar import Member


class BareReader(ImageReader):
    """The images of a source, each with an empty record: it has no masks.

    In a folder of JPEGs, images in other formats are passed over: they may be maps of depth.
    """

    all_images = False

    def record_of(self, member: Member, path: str) -> bytes:
        """An empty record."""
        return b""
