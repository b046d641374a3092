"""Where the files of a pack come from: an object store, or a folder on a slower file system."""

import os
import re
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from sa1bpack.cache.store_origin import EndsEarly, StoreOrigin
from sa1bpack.cloud.addresses import STORE_SCHEMES, folder_url
from sa1bpack.errors import OptionError
from sa1bpack.format.files import cut_short, naming

_URL = re.compile(rf"({'|'.join(STORE_SCHEMES)}|file)://", re.IGNORECASE)


class Origin(Protocol):
    """A folder of files, read in whole or in ranges, by any number of threads at once.

    Every method raises FileNotFoundError for what is not there, and StoreError if the store cannot
    be reached, refuses, or returns fewer bytes than asked for: EndsEarly if the file has no more.

    url    of the folder, without credentials
    forks  whether it can be read in a child that was forked
    """

    url: str
    forks: bool

    def read(self, path: str) -> Any:
        """The bytes of a small file."""

    def read_range(self, path: str, first: int, stop: int) -> Any:
        """Bytes `first` to `stop` of a file, exactly so many: an object with a buffer."""

    def folders(self, path: str) -> list[str]:
        """Names of the folders right below a folder, sorted; empty if there is none."""


class FolderOrigin:
    """A folder of this machine, such as a mounted network file system."""

    forks = True

    def __init__(self, root: Path):
        """Raises OptionError for a path that is not absolute."""
        if not root.is_absolute():
            raise OptionError(f"path is file://{root}: after file:// comes an absolute path")
        self._root, self.url = root, f"file://{root}"

    def read(self, path: str) -> bytes:
        """See Origin."""
        return (self._root / path).read_bytes()

    def read_range(self, path: str, first: int, stop: int) -> bytearray:
        """See Origin."""
        data = bytearray(stop - first)
        view, done = memoryview(data), 0
        file = os.open(self._root / path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while done < len(data):
                with naming(self._root / path):
                    count = os.preadv(file, [view[done:]], first + done)
                if count == 0:
                    raise EndsEarly(str(cut_short(self._root / path, first + done, stop)))
                done += count
        finally:
            os.close(file)
        return data

    def folders(self, path: str) -> list[str]:
        """See Origin."""
        try:
            return sorted(entry.name for entry in os.scandir(self._root / path) if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []


def is_url(value: Any) -> bool:
    """Whether a path is a URL of a kind that is read through a cache."""
    return isinstance(value, str) and _URL.match(value) is not None


def origin_url(name: str, url: str) -> str:
    """A URL in its one spelling, without secrets, as it may be shown and written.

    name  of the argument, for messages

    Raises OptionError as `addresses.folder_url` does.
    """
    if url.partition("://")[0].lower() != "file":
        return folder_url(name, url)
    return f"file://{url.partition('://')[2].rstrip('/') or '/'}"


def local_folder(url: str) -> Path | None:
    """The folder that a file URL names; None for any other URL."""
    scheme, _, path = url.partition("://")
    return Path(unquote(path)) if scheme.lower() == "file" else None


def open_origin(url: str) -> Origin:
    """The origin of a pack: a URL, or a folder of this machine.

    Raises OptionError for a kind of URL that is not supported, MissingPackage without the library.
    """
    folder = local_folder(url)
    return StoreOrigin(url) if folder is None else FolderOrigin(folder)
