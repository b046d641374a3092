"""The reader `coco`: images in a folder or tar, and one JSON with the annotations of all."""

import os
from typing import Any

from sa1bpack.errors import SourceError
from sa1bpack.source.find import Source
from sa1bpack.source.records.coco_file import NAMED, changed, read_coco_file
from sa1bpack.source.records.find_annotations import annotation_file
from sa1bpack.source.records.images import ImageReader, PairOptions
from sa1bpack.source.tar import Member
from sa1bpack.wording import brief


class CocoReader(ImageReader):
    """The images of a source that an annotation file lists, with their annotations.

    Images that it does not list are ignored, as "unlisted". Two members that are one image of it
    are a duplicate.
    """

    ids_of_names = False

    def __init__(self, source: Source, options: PairOptions):
        """Read the annotation file through. Raises SourceError, also if there is none."""
        path = options.annotations
        if path is None:
            path = annotation_file(source)
        if path.is_dir():
            raise SourceError(
                f"{path}: a folder, and the records of coco are one file: name that, --annotations "
                "FILE"
            )
        super().__init__(source, options)
        self._descriptor = -1
        self._met: dict[int, str] = {}
        self._unlisted: list[str] = []  # the first images that the file does not list
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._status = os.fstat(self._descriptor)
            self.file = read_coco_file(path, self._status)
        except OSError as error:
            self.__exit__()
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        """Close the source and the annotation file."""
        super().__exit__(*error)
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def record_of(self, member: Member, path: str) -> bytes | None:
        """The record that the file has for an image."""
        number = self.file.find(f"{self.source.name}/{path}")
        if number is None:
            self.ignore(member.name, "unlisted")
            if len(self._unlisted) < NAMED:
                self._unlisted.append(path)
            return None
        if isinstance(number, str):
            self.reject(member, "bad-name", f"reader coco: {number}")
            return None
        if number in self._met:
            met = brief(self._met[number])
            detail = f"reader coco: {self.file.path.name} lists one image, which {met} is"
            self.reject(member, "duplicate", detail)
            return None
        if isinstance(self.file.id_of(number), str) and not self.is_first(member, path):
            return None
        self._met[number] = path
        return self.file.record(number, self._descriptor)

    def finish(self) -> None:
        """Raise SourceError if the annotation file has changed."""
        now = os.fstat(self._descriptor)
        before = self._status
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise changed(self.file.path)

    def described(self) -> dict[str, Any]:
        """The annotation file, what its categories are, and what of it is not in the source."""
        missing = self.file.paths_without(self._met.keys())
        return {
            "file": self.file.path.name,
            "nbytes": self.file.nbytes,
            "xxh128": self.file.xxh128,
            "images": self.file.images,
            "annotations": self.file.annotations,
            "without_image": len(missing),
            "without_image_names": missing[:NAMED],
            "unlisted_names": self._unlisted,
            "lost": self.file.lost,
            **self.file.values,
        }
