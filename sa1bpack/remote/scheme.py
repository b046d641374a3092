"""What the core calls for a URL, see `urls.scheme_of`: the functions of this module."""

import glob
import re
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

from sa1bpack.errors import SourceError, StoreError
from sa1bpack.remote.packs import open_pack
from sa1bpack.remote.remote_file import RemoteFile as open_stream
from sa1bpack.remote.remote_file import opened_store
from sa1bpack.remote.stores import Bucket
from sa1bpack.remote.verify import verify
from sa1bpack.urls import STORE_SCHEMES, Address, parse_address

__all__ = ["find_files", "open_pack", "open_stream", "upload_state", "verify"]


def upload_state(url: str, staging: Path, options: Any) -> Any:
    """See `scheme_of`. Raises as `upload.UploadedState` does."""
    # By name: reading a pack never loads the packer.
    return import_module("sa1bpack.remote.upload").UploadedState(url, staging, options)


def find_files(address: Address) -> list[Address]:
    """See `scheme_of`. A pattern has `*`, `?` or `[...]` and is one of an object store.

    Raises MissingPackage or OptionError for an object store that cannot be opened, SourceError if
    nothing matches, or the bucket cannot be listed.
    """
    if address.scheme not in STORE_SCHEMES:
        return [address]
    opened_store(address)
    if address.listed or not glob.has_magic(address.key):
        return [address]
    root = f"{address.scheme}://{address.bucket}"
    folder = re.split(r"[*?[]", address.key)[0].rpartition("/")[0]
    try:
        keys = [key for key in Bucket(root).files(folder) if fnmatchcase(key, address.key)]
    except (FileNotFoundError, StoreError) as error:
        raise SourceError(f"{address}: cannot be listed: {error}") from None
    if not keys:
        raise SourceError(f"{address}: nothing matches this pattern; check the bucket and the path")
    return [parse_address("source", f"{root}/{key}") for key in keys]
