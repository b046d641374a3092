"""The reader `coco`: images in a folder or tar, and one JSON with the annotations of all."""

import os
from functools import cached_property
from typing import Any

from sa1bpack.errors import SourceError
from sa1bpack.paths import is_folder
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import FolderStream
from sa1bpack.source.records.coco_file import NAMED, changed, read_coco_file
from sa1bpack.source.records.find_annotations import annotation_file
from sa1bpack.source.records.images import ImageReader, PairOptions
from sa1bpack.source.tar import Member
from sa1bpack.wording import brief


class CocoReader(ImageReader):
    """The images of a source that an annotation file lists, with their annotations.

    Images that it does not list are ignored, as "unlisted". Of two members that may be one image of
    it, that in the folder of the image is it; of two that may be it alike, the second is a
    duplicate. A tar in which the right one comes later is refused: the first had its record.
    """

    ids_of_names = False

    def __init__(self, source: Source, options: PairOptions):
        """Read the annotation file through. Raises SourceError, also if there is none."""
        path = options.annotations
        if path is None:
            path = annotation_file(source)
        if is_folder(path):
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
        if isinstance(number, int) and self._is_of_another(number, path):
            number = None
        if number is None:
            self.ignore(member.name, "unlisted")
            if len(self._unlisted) < NAMED:
                self._unlisted.append(path)
            return None
        if isinstance(number, str):
            self.reject(member, "bad-name", f"reader coco: {number}")
            return None
        if number in self._met:
            self._check_first(number, path)
            met = brief(self._met[number])
            detail = f"reader coco: {self.file.path.name} lists one image, which {met} is"
            self.reject(member, "duplicate", detail)
            return None
        if isinstance(self.file.id_of(number), str) and not self.is_first(member, path):
            return None
        self._met[number] = path
        return self.file.record(number, self._descriptor)

    def _agreement(self, number: int, path: str) -> int:
        return self.file.agreement(number, f"{self.source.name}/{path}")

    def _is_of_another(self, number: int, path: str) -> bool:
        """True if another file of the folder is the image of this number."""
        best = self._best_paths.get(number, path)
        return self._agreement(number, best) > self._agreement(number, path)

    @cached_property
    def _best_paths(self) -> dict[int, str]:
        """Number of an image → the file whose path agrees with its own best; of a folder alone."""
        best: dict[int, str] = {}
        if not isinstance(self._members, FolderStream) or not self.file.has_folders:
            return best
        for file in self._members.listed:
            number = self.file.find(f"{self.source.name}/{file.name}")
            if file.half == "jpeg" and isinstance(number, int):
                other = best.setdefault(number, file.name)
                if self._agreement(number, file.name) > self._agreement(number, other):
                    best[number] = file.name
        return best

    def _check_first(self, number: int, path: str) -> None:
        """Raise SourceError if the member that had the record of an image is another image."""
        met = self._met[number]
        if self._agreement(number, path) > self._agreement(number, met):
            listed = self.file.path_of(number)
            raise SourceError(
                f"{self.source.path}: {brief(met)} was taken for {brief(listed)} of "
                f"{self.file.path.name}, but {brief(path)} is that image: leave members out that "
                "the file does not list, or unpack it and pack the folder"
            )

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
