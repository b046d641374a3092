"""The files of an extracted folder: images and records, in the order in which they are packed.

An extracted tar is a folder of `sa_<id>.jpg` and `sa_<id>.json` files, sorted by their number, so
that the two halves of a pair are adjacent and packing the folder twice produces the same bytes. Its
images may be in other formats.
Subfolders are searched. Links to files are followed, because Hugging Face caches, DVC and git-annex
consist of them; links to folders are not.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sa1bpack.errors import SourceError
from sa1bpack.paths import is_of_root
from sa1bpack.source.tar import Half, Member, decode_name, is_other_image, is_plain_name, split_name

# What the system answers for a link that leads to no file.
_OF_DANGLING_LINKS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)

_NUMBERED = re.compile(r"(.*?)(\d+)$", re.ASCII)


class FolderFile(NamedTuple):
    """A file of a folder that is named like half of a pair; files are sorted by these fields.

    Attributes:
        unnumbered, prefix, number: the parts of its name that sort sa_5 before sa_10 in any
            folders; `unnumbered` is 1 for one without a number, which come last.
        name: name of the member that it is, the path below the folder, safe to print.
        problem: why the member cannot be used, in words; empty if it can.
        path: its path.
        half: the half of a pair that it is, by its name.
    """

    unnumbered: int
    prefix: str
    number: int
    name: str
    problem: str
    path: str
    half: Half

    def size(self) -> int | None:
        """Its size now, in bytes; None if it is no regular file.

        Raises SourceError if the disk does not say.
        """
        try:
            status = os.stat(self.path)  # noqa: PTH116 - avoids an object per file
        except OSError as error:
            if error.errno in _OF_DANGLING_LINKS and os.path.islink(self.path):  # noqa: PTH114
                return None
            raise SourceError(f"{self.path}: cannot be read: {error.strerror}") from error
        if stat.S_ISREG(status.st_mode):  # opening a pipe would hang
            return status.st_size
        return None

    def member(self, size: int | None) -> Member:
        """The member that it is, if it has this size."""
        if size is None:
            return Member(self.name, 0, "special", self.problem)
        return Member(self.name, size, "file", self.problem)


def list_folder(folder: Path, all_images: bool = False) -> list[FolderFile]:
    """Every entry below the folder that is named like an image or JSON file, in pack order.

    In a folder with JPEGs, images in other formats are left out if they have no record, or their
    stem is that of a JPEG: they may be maps of depth. With `all_images` none is: something else
    says which images there are.

    Raises SourceError if a folder cannot be listed.
    """
    return split_folder(folder, all_images)[0]


def images_below(folder: Path) -> list[FolderFile]:
    """The images at any depth; JSON beside tars may be of annotations, or of a pack made there."""
    return [file for file in list_folder(folder) if file.half == "jpeg"]


def split_folder(folder: Path, all_images: bool = False) -> tuple[list[FolderFile], list[str]]:
    """The files of `list_folder`, and the names of the images that it leaves out, sorted."""
    files = []
    all_jpegs = True
    for below, name in files_below(folder):
        stem, half = split_name(name)
        if half is None:
            continue
        member = below + name
        path = f"{folder}/{member}"
        problem = ""
        if not is_plain_name(member):
            member, problem = decode_name(os.fsencode(member))
            stem = split_name(member)[0]
        prefix = stem
        number = 0
        numbered = _NUMBERED.match(stem)
        if numbered is not None:
            prefix = numbered[1]
            number = int(numbered[2])
        unnumbered = int(numbered is None)
        files.append(FolderFile(unnumbered, prefix, number, member, problem, path, half))
        all_jpegs = all_jpegs and not is_other_image(name)
    passed_over: list[str] = []
    if not all_images and not all_jpegs:
        jpegs = _without_other_files(files)
        passed_over = sorted({file.name for file in files} - {file.name for file in jpegs})
        files = jpegs
    files.sort()
    return files, passed_over


def files_below(folder: Path) -> Iterator[tuple[str, str]]:
    """Folder below this one, with a slash at its end, and name of every file.

    Raises SourceError.
    """

    def fail(error: OSError) -> None:
        if is_of_root(error):
            return
        raise SourceError(f"{error.filename}: cannot be listed: {error.strerror}") from error

    for parent, _, names in os.walk(folder, onerror=fail):
        below = os.path.relpath(parent, folder) + "/"
        if below == "./":
            below = ""
        for name in names:
            yield below, name


def count_images(folder: Path, all_images: bool = True) -> int:
    """The number of files below a folder that are named like images. Raises SourceError.

    Without `all_images`, of those that `list_folder` has.
    """
    if not all_images:
        return sum(file.half == "jpeg" for file in list_folder(folder))
    return sum(split_name(name)[1] == "jpeg" for _, name in files_below(folder))


def _without_other_files(files: list[FolderFile]) -> list[FolderFile]:
    """Files of a folder, without the images in other formats that `list_folder` leaves out."""
    jpegs = set()
    records = set()
    for file in files:
        stem = split_name(file.name)[0]
        if file.half == "json":
            records.add(stem)
        elif not is_other_image(file.name):
            jpegs.add(stem)
    if not jpegs:
        return files
    records -= jpegs
    kept = []
    for file in files:
        if not is_other_image(file.name) or split_name(file.name)[0] in records:
            kept.append(file)
    return kept
