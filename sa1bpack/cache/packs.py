"""Packs and side arrays of an object store, opened through a cache: folders that look like them.

A pack is fetched once, but for its shards: manifest, checksums and index. `attached` recognises its
folder, also in a process that was only given the path, and brings shards when they are opened. A
pack that has changed has another index, and so another folder; shards that are the same, by their
digests, are shared.
"""

import os
import shutil
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from sa1bpack.cache.build import TRIES, changed, digest_of, fetch_files, folder_of
from sa1bpack.cache.contents import ShardContents, SideContents
from sa1bpack.cache.folder import Cache
from sa1bpack.cache.group import Group, shared
from sa1bpack.cache.origin import open_origin
from sa1bpack.cache.requests import Counts, Requests
from sa1bpack.errors import FormatError, NotAPack
from sa1bpack.format.checksums import CHECKSUMS_NAME, read_checksums
from sa1bpack.format.files import flush_file, replace_file, temporary_beside
from sa1bpack.format.hollow import ORIGIN_NAME
from sa1bpack.format.index import index_arrays, index_name_of
from sa1bpack.format.manifest import MANIFEST_NAME, SHARDS_NAME, Manifest, ShardEntry, read_manifest
from sa1bpack.format.side.binding import ShardIdentity
from sa1bpack.format.side.spec import SIDES_NAME, SideSpec
from sa1bpack.format.zarr_metadata import METADATA_NAME, chunk_file


class _Origin(msgspec.Struct, frozen=True, kw_only=True):
    """url: of the pack, or of what the side array belongs to; path: of the folder in it."""

    url: str
    path: str


class CachedPack:
    """A pack whose folder is in a cache.

    url    where it comes from
    cache  its Cache
    """

    def __init__(self, root: Path, url: str):
        self.cache = Cache.at(root.parent.parent)
        self.url, self.root = url, root
        self.requests = _requests_of(url)

    def shard(self, entry: ShardEntry, digest: str, manifest: Manifest) -> Group:
        """A shard, everything of it but the rows of its large arrays fetched.

        Raises StoreError, CacheFull, OSError; FormatError if a file of the origin is damaged.
        """
        make = partial(ShardContents, layout=manifest.layout, extent=entry.extent)
        path = f"{SHARDS_NAME}/{entry.name}"
        return _group(
            self.cache, self.requests, path, f"{entry.name}-{digest}", make, self.root / path
        )

    def side(self, name: str) -> Path | None:
        """The folder of one of the pack's own side arrays, brought up to date; None if it has none.

        Raises as `shard` does.
        """
        path = f"{SIDES_NAME}/{name}"
        try:
            return _bring_side(self.cache, self.requests, path, self.root / path)
        except FileNotFoundError:
            return None

    def counts(self) -> Counts:
        """What this process has read of the pack so far."""
        return self.requests.counts()


class CachedSide:
    """A side array whose folder is in a cache."""

    def __init__(self, folder: Path, cache: Cache, requests: Requests, path: str):
        self.folder, self.cache, self.requests, self.path = folder, cache, requests, path
        self._manifest = (folder / MANIFEST_NAME).read_bytes()

    def part(self, spec: SideSpec, shard: ShardIdentity, mask_offset: np.ndarray) -> Group:
        """The part for a shard, everything of it but its rows fetched.

        mask_offset  int64 (N + 1,), of the shard

        Raises StoreError, CacheFull, OSError; FormatError if a file of the origin is damaged.
        """
        prefix = f"{self.path}/" if self.path else ""
        path = f"{prefix}{shard.part}"
        self._check_manifest(f"{prefix}{MANIFEST_NAME}")
        try:
            digest = digest_of(self.requests.read(f"{path}/{CHECKSUMS_NAME}"))
        except FileNotFoundError:
            raise FormatError(
                f"{self.requests.origin.url}/{path}: no part for shard {shard.name}; run "
                "`sa1bpack derive` again, and upload what it makes"
            ) from None
        make = partial(SideContents, spec=spec, extent=shard.extent, mask_offset=mask_offset)
        name = f"{spec.name}-{shard.part}-{digest}"
        return _group(self.cache, self.requests, path, name, make, self.folder / shard.part)

    def _check_manifest(self, path: str) -> None:
        """Raise StoreError if the parts of the origin are those of another side array by now."""
        try:
            if any(self.requests.read(path) == self._manifest for _ in range(TRIES)):
                return
        except FileNotFoundError:
            pass
        raise changed(self.requests, path)


def _group(cache: Cache, requests: Requests, path: str, name: str, make, link: Path) -> Group:
    """The folder of that name, in use, and a link to it where a reader of the pack looks for it."""
    blocks = folder_of(cache, requests, path, name, make)
    target = os.path.relpath(blocks.folder, link.parent)
    if not link.is_symlink() or str(link.readlink()) != target:
        temporary = temporary_beside(link)
        temporary.symlink_to(target)
        temporary.replace(link)
    return shared(blocks, lambda: Group(cache, blocks, make(blocks.folder), requests, path))


def open_pack(url: str, folder: Path, limit: int | None) -> Path:
    """The folder of a pack, in the cache in `folder`: manifest and index as they are now.

    url    as `origin_url` returns it: folders are named after it
    limit  of the cache in bytes; None: that of who opened it last, or four fifths of the free disk

    Raises NotAPack if there is no pack, FormatError if it is damaged or being written, OptionError,
    StoreError, OSError.
    """
    cache, requests = Cache.at(folder, limit), _requests_of(url)
    for _ in range(TRIES):
        if (root := _bring_pack(cache, requests, url)) is not None:
            return root
    raise FormatError(
        f"{url}: it was replaced {TRIES} times while it was being opened; open it again"
    )


def _bring_pack(cache: Cache, requests: Requests, url: str) -> Path | None:
    """What `open_pack` returns; None if the pack was replaced meanwhile. Raises as it does."""
    staging = temporary_beside(cache.root / "packs" / "pack")
    staging.mkdir()
    try:
        manifest = _read_heads(requests, staging)
        name = f"{url.rpartition('/')[2]}-{xxhash.xxh32_hexdigest(url.encode())}"
        root = cache.root / "packs" / f"{name}-{manifest.index.rpartition('-')[2]}"
        if root.is_dir():
            for each in (CHECKSUMS_NAME, MANIFEST_NAME):
                data = (staging / each).read_bytes()
                if (root / each).read_bytes() != data:
                    replace_file(root / each, data)
            return root
        try:
            _fetch_index(requests, staging, manifest)
        except FormatError:
            with suppress(FileNotFoundError):
                if requests.read(MANIFEST_NAME) != (staging / MANIFEST_NAME).read_bytes():
                    return None
            raise
        (staging / ORIGIN_NAME).write_bytes(msgspec.json.encode(_Origin(url=url, path="")))
        _flush(staging)
        with suppress(OSError):  # another process was first
            staging.rename(root)
        return root
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _read_heads(requests: Requests, staging: Path) -> Manifest:
    """Fetch manifest and checksums into a folder. Raises as `open_pack` does."""
    url, found = requests.origin.url, None
    for _ in range(TRIES):
        for name in (MANIFEST_NAME, CHECKSUMS_NAME):
            try:
                (staging / name).write_bytes(requests.read(name))
            except FileNotFoundError:
                raise NotAPack(
                    f"{url}: not a pack: it has no {name}; name the folder that a pack was "
                    "uploaded to"
                ) from None
        try:
            manifest, listed = read_manifest(staging), read_checksums(staging / CHECKSUMS_NAME)
        except FormatError as error:
            found = type(error)(str(error).replace(str(staging), url))
            continue
        if not manifest.shards:
            raise FormatError(f"{url}: it holds no complete shard yet")
        digests = [
            listed.get(f"{SHARDS_NAME}/{shard.name}/{CHECKSUMS_NAME}", "")
            for shard in manifest.shards
        ]
        own = digest_of((staging / MANIFEST_NAME).read_bytes())
        if index_name_of(manifest.shards, digests) == manifest.index and (
            not manifest.complete or own == listed.get(MANIFEST_NAME)
        ):
            return manifest
    raise found or FormatError(
        f"{url}: {CHECKSUMS_NAME} is not that of {MANIFEST_NAME}: the pack is being uploaded, or "
        "was uploaded in part; upload both again"
    )


def _fetch_index(requests: Requests, staging: Path, manifest: Manifest) -> None:
    """Fetch the index of a pack, and the metadata of its groups."""
    listed, index = read_checksums(staging / CHECKSUMS_NAME), manifest.index
    files: dict[str, tuple[int | None, str | None]] = {
        METADATA_NAME: (None, listed.get(METADATA_NAME)),
        f"{SHARDS_NAME}/{METADATA_NAME}": (None, listed.get(f"{SHARDS_NAME}/{METADATA_NAME}")),
        f"{index}/{METADATA_NAME}": (None, listed.get(f"{index}/{METADATA_NAME}")),
    }
    for spec, rows in index_arrays(manifest).items():
        path = f"{index}/{spec.name}/{METADATA_NAME}"
        files[path] = None, listed.get(path)
        path = f"{index}/{spec.chunk_path}"
        if rows:
            files[path] = chunk_file(spec, rows).file_bytes, listed.get(path)
    try:
        fetch_files(requests, "", staging, files)
    except FileNotFoundError as error:
        raise FormatError(
            f"{requests.origin.url}: {error.filename or error} is missing; upload the pack again"
        ) from None


def open_side(url: str, cache: Cache) -> Path:
    """The folder of a side array that lies by itself in an object store, brought up to date.

    url  as `origin_url` returns it

    Raises NotAPack if there is none, FormatError, StoreError, OSError.
    """
    name = f"side-{url.rpartition('/')[2]}-{xxhash.xxh32_hexdigest(url.encode())}"
    try:
        return _bring_side(cache, _requests_of(url), "", cache.root / "packs" / name)
    except FileNotFoundError:
        raise NotAPack(f"{url}: not a side array: it has no {MANIFEST_NAME}") from None


def _bring_side(cache: Cache, requests: Requests, path: str, folder: Path) -> Path:
    """Fetch what is at the top of a side array, and make a link for each of its parts."""
    prefix = f"{path}/" if path else ""
    found = {name: requests.read(prefix + name) for name in (MANIFEST_NAME, METADATA_NAME)}
    found[ORIGIN_NAME] = msgspec.json.encode(_Origin(url=requests.origin.url, path=path))
    folder.mkdir(parents=True, exist_ok=True)
    for name in requests.folders(path):
        if not name.startswith(".") and not (folder / name).is_symlink():
            with suppress(FileExistsError):  # another process was first
                (folder / name).symlink_to(".absent")  # until the part is needed
    for name, data in reversed(found.items()):
        if not (folder / name).exists() or (folder / name).read_bytes() != data:
            replace_file(folder / name, data)
    return folder


def attached(root: Path) -> CachedPack | None:
    """The pack whose folder in a cache this is; None for any other folder.

    Raises FormatError if what it says of itself is damaged.
    """
    found = _origin_of(root)
    return None if found is None else CachedPack(root, found.url)


def attached_side(folder: Path) -> CachedSide | None:
    """The side array whose folder in a cache this is; None for any other folder."""
    found = _origin_of(folder)
    if found is None:
        return None
    depth = 1 if not found.path else 1 + len(Path(found.path).parts)
    return CachedSide(folder, Cache.at(folder.parents[depth]), _requests_of(found.url), found.path)


def _origin_of(folder: Path) -> _Origin | None:
    try:
        return msgspec.json.decode((folder / ORIGIN_NAME).read_bytes(), type=_Origin)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{folder / ORIGIN_NAME}: {error}; remove {folder}") from None


def _requests_of(url: str) -> Requests:
    """The requests of this process to one origin: all counted together."""
    with _mutex:
        if url not in _requests:
            _requests[url] = Requests(open_origin(url))
        return _requests[url]


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        file = os.open(path, os.O_RDONLY)
        try:
            flush_file(file, path)
        finally:
            os.close(file)


_mutex = threading.Lock()
_requests: dict[str, Requests] = {}


def _after_fork() -> None:
    global _mutex
    _mutex = threading.Lock()
    for each in _requests.values():
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)
