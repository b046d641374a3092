"""What the core calls for a URL, see `urls.Scheme`: the functions of this module."""

import glob
from importlib import import_module
from pathlib import Path
from typing import Any

from sa1bpack.errors import SourceError
from sa1bpack.remote.packs import open_pack
from sa1bpack.remote.remote_file import RemoteFile, opened_store
from sa1bpack.remote.stores import list_keys
from sa1bpack.remote.verify import verify
from sa1bpack.urls import STORE_SCHEMES, Address, parse_address

__all__ = ["find_files", "open_pack", "open_stream", "upload_state", "verify"]


def upload_state(url: str, staging: Path, options: Any) -> Any:
    """See Scheme. Raises as `upload.UploadedState` does."""
    # By name: reading a pack never loads the packer.
    return import_module("sa1bpack.remote.upload").UploadedState(url, staging, options)


def open_stream(address: Address, **options: Any) -> RemoteFile:
    """See Scheme; `options` are those of RemoteFile."""
    return RemoteFile(address, **options)


def find_files(address: Address) -> list[Address]:
    """See Scheme. A pattern has `*`, `?` or `[...]` and is one of an object store.

    Raises MissingPackage or OptionError for an object store that cannot be opened, SourceError if
    nothing matches, or the bucket cannot be listed.
    """
    if address.scheme not in STORE_SCHEMES:
        return [address]
    opened_store(address)
    if address.listed or not glob.has_magic(address.key):
        return [address]
    keys = list_keys(address)
    if not keys:
        raise SourceError(f"{address}: nothing matches this pattern; check the bucket and the path")
    root = f"{address.scheme}://{address.bucket}/"
    return [parse_address("source", root + key) for key in keys]
