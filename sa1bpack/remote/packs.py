"""Packs and features that are read through a cache.

A pack is a folder of the cache with its manifest, its index, and links to those of its shards that
are here: an ordinary pack once all are. It is named after the digests of manifest and checksums, so
that a pack that has changed is another folder; shards that are the same, by their digests, are
shared. What is in the folder of a shard is an ordinary shard.
"""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import xxhash

from sa1bpack.errors import FormatError, NotAPack, StoreError
from sa1bpack.format.arrays import METADATA_NAME, chunk_file
from sa1bpack.format.files import (
    CHECKSUMS_NAME,
    TEMPORARY_PREFIX,
    file_digest,
    read_checksums,
)
from sa1bpack.format.index import index_arrays, index_name_of
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    REJECTS_NAME,
    SHARDS_NAME,
    Manifest,
    ShardEntry,
    read_manifest,
)
from sa1bpack.format.side.spec import SIDES_NAME, ShardIdentity, SideSpec
from sa1bpack.remote.cache import Cache, Lock
from sa1bpack.remote.origin import (
    TRIES,
    Files,
    Origin,
    changed,
    digest_of,
    fetch_files,
    fetch_group,
    folder_bytes,
    is_replaced,
    is_sound,
    no_pack,
)
from sa1bpack.remote.stores import Bucket
from sa1bpack.urls import Counts, is_pack_url, local_folder, pack_url

# A link to a part that has not been brought leads nowhere.
_ABSENT = ".absent"

_origins: dict[tuple[str, int | None], Origin] = {}


def open_origin(url: str) -> Origin:
    """The origin at a URL, as `pack_url` spells it, one object per process: its counts are one.

    Raises OptionError without credentials, MissingPackage without the library.
    """
    local = local_folder(url) is not None
    key = url, None if local else os.getpid()
    if key not in _origins:
        _origins.setdefault(key, Origin(url) if local else Bucket(url))
    return _origins[key]


class _Brought:
    """A folder of a cache with links to what was brought there from an origin.

    url   of the origin
    root  the folder
    """

    def __init__(self, origin: Origin, cache: Cache, name: str, lease: Lock):
        self.url, self.root = origin.url, cache.root / name
        self._origin, self._cache, self._name, self._lease = origin, cache, name, lease

    def counts(self) -> Counts:
        """What this process has read so far of what has this URL."""
        return self._origin.counts

    def _bring(self, path: str, name: str, digest: str, arrays, link: str) -> Lock:
        """A shard or a part, in use; see `fetch.fetch_group`."""
        name = f"shards/{name}-{digest}"
        if (lease := self._cache.lease(name)) is not None:
            self._origin.count(Counts(hits=1))
        else:
            fetch = partial(fetch_group, self._origin, path, digest, arrays)
            sound = partial(is_sound, digest=digest)
            lease = self._cache.hold(name, folder_bytes(arrays), fetch, sound)
            self._origin.count(Counts(misses=1))
        _link(self.root / link, self._cache.root / name)
        return lease


class RemotePack(_Brought):
    """A pack, see `urls.ShardSource`. It pickles to its place in the cache."""

    @property
    def limit(self) -> int:
        """See ShardSource."""
        return self._cache.limit

    @property
    def forks(self) -> bool:
        """See ShardSource."""
        return self._origin.forks

    def bring(self, entry: ShardEntry, digest: str, layout: Layout) -> Lock:
        """See ShardSource."""
        path = f"{SHARDS_NAME}/{entry.name}"
        return self._bring(path, entry.name, digest, layout.array_rows(entry.extent), path)

    def open_side(self, name: str) -> "RemoteSide | None":
        """See ShardSource. Raises NotAPack for a URL of something else."""
        if not is_pack_url(name):
            return _open_side(self._origin, self._cache, f"{SIDES_NAME}/{name}/")
        origin = open_origin(pack_url("features", name))
        if (found := _open_side(origin, self._cache, "")) is None:
            raise NotAPack(f"{name}: not a feature: it has no {MANIFEST_NAME}")
        return found

    def __reduce__(self):
        return _reopened, (self.url, self._cache.root, self._name)


def _reopened(url: str, root: Path, name: str) -> RemotePack:
    """A pack that was pickled."""
    cache = Cache(root)
    if (lease := cache.lease(name)) is None:
        raise StoreError(f"{url}: it is no longer in the cache {root}; open it again")
    return RemotePack(open_origin(url), cache, name, lease)


class RemoteSide(_Brought):
    """A feature, see `urls.SideSource`, below a path in its origin: "", or "side/NAME/"."""

    def __init__(self, origin: Origin, cache: Cache, name: str, lease: Lock, prefix: str):
        super().__init__(origin, cache, name, lease)
        self._prefix, self._digest = prefix, file_digest(self.root / MANIFEST_NAME)

    def bring(self, spec: SideSpec, shard: ShardIdentity) -> Lock:
        """See SideSource."""
        path = f"{self._prefix}{shard.part}"
        manifest = f"{self._prefix}{MANIFEST_NAME}"
        if is_replaced(self._origin, manifest, self._digest):  # by another feature
            raise changed(self._origin, manifest)
        try:
            digest = digest_of(self._origin.read(f"{path}/{CHECKSUMS_NAME}"))
        except FileNotFoundError:
            raise FormatError(
                f"{self._origin.url}/{path}: no part for shard {shard.name}; run "
                "`sa1bpack derive` again, and upload what it makes"
            ) from None
        name, arrays = f"{spec.name}-{shard.part}", spec.arrays(shard.extent)
        return self._bring(path, name, digest, arrays, shard.part)


def _link(link: Path, folder: Path) -> None:
    """Make a link to a folder of the cache, unless it is there.

    Its working name is the same in all processes: who finds one, also of a killed one, uses it.
    """
    target = os.path.relpath(folder, link.parent)
    temporary = link.with_name(TEMPORARY_PREFIX + link.name)
    while not (link.is_symlink() and str(link.readlink()) == target):
        with suppress(FileExistsError):
            temporary.symlink_to(target)
        with suppress(FileNotFoundError):  # another process was faster
            temporary.replace(link)


def open_pack(url: str, folder: Path, limit: int | None) -> RemotePack:
    """A pack through the cache in a folder: manifest and index as they are now.

    url    as `pack_url` spells it
    limit  of the cache in bytes; None: that of who opened it last, or four fifths of the free disk

    Raises NotAPack if there is no pack, FormatError if it is damaged or being written, OptionError,
    StoreError, CacheFull, OSError.
    """
    cache, origin = Cache(folder, limit), open_origin(url)
    for _ in range(TRIES - 1):
        with suppress(FormatError):  # it may have been replaced while it was opened
            return _open_pack(origin, cache)
    return _open_pack(origin, cache)


def _open_pack(origin: Origin, cache: Cache) -> RemotePack:
    url, heads = origin.url, {}
    with TemporaryDirectory() as staging:
        for name in (MANIFEST_NAME, CHECKSUMS_NAME):
            try:
                heads[name] = origin.read(name)
            except FileNotFoundError:
                raise no_pack(url, name) from None
            Path(staging, name).write_bytes(heads[name])
        try:
            manifest = read_manifest(Path(staging))
            listed = read_checksums(Path(staging, CHECKSUMS_NAME))
        except FormatError as error:
            raise type(error)(str(error).replace(staging, url)) from None
    if not manifest.shards:
        raise FormatError(f"{url}: it holds no complete shard yet")
    marks = (f"{SHARDS_NAME}/{shard.name}/{CHECKSUMS_NAME}" for shard in manifest.shards)
    digests = [listed.get(mark, "") for mark in marks]
    if index_name_of(manifest.shards, digests) != manifest.index or (
        manifest.complete and digest_of(heads[MANIFEST_NAME]) != listed.get(MANIFEST_NAME)
    ):
        raise FormatError(
            f"{url}: {CHECKSUMS_NAME} is not that of {MANIFEST_NAME}: the pack is being uploaded, "
            "or was uploaded in part; upload both again"
        )

    def fetch(target: Path, beat) -> None:
        for name, data in heads.items():
            (target / name).write_bytes(data)
        fetch_files(origin, "", target, _index_files(manifest, listed), beat)

    name = _name("packs/", url, b"".join(heads.values()))
    nbytes = folder_bytes(index_arrays(manifest)) + sum(map(len, heads.values()))
    return RemotePack(origin, cache, name, cache.hold(name, nbytes, fetch, lambda _: False))


def _name(prefix: str, url: str, data: bytes) -> str:
    """What a folder of `packs` is called: like the last part of a URL, and what tells it apart."""
    last = url.rpartition("/")[2][:100]
    return f"{prefix}{last}-{xxhash.xxh32_hexdigest(url.encode())}-{digest_of(data)[:16]}"


def _index_files(manifest: Manifest, listed: dict[str, str]) -> Files:
    """The files of a pack's index, and the metadata of its groups, to be fetched."""
    lengths = {
        f"{manifest.index}/{spec.chunk_path}": chunk_file(spec, rows).file_bytes
        for spec, rows in index_arrays(manifest).items()
        if rows
    }
    others = {MANIFEST_NAME} if manifest.complete else {MANIFEST_NAME, REJECTS_NAME}
    return {
        name: (lengths.get(name), digest)
        for name, digest in listed.items()
        if name not in others and not name.endswith(f"/{CHECKSUMS_NAME}")
    }


def _open_side(origin: Origin, cache: Cache, prefix: str) -> RemoteSide | None:
    """A feature as it is now: its manifest, and a link for each of its parts.

    None if there is none.
    """
    try:
        heads = {name: origin.read(prefix + name) for name in (MANIFEST_NAME, METADATA_NAME)}
    except FileNotFoundError:
        return None
    path = prefix.rstrip("/")
    parts = [name for name in origin.folders(path) if not name.startswith(".")]
    name = _name("packs/side-", f"{origin.url}/{path}".rstrip("/"), repr((heads, parts)).encode())

    def fetch(target: Path, beat) -> None:
        for each, data in heads.items():
            (target / each).write_bytes(data)
        for part in parts:
            (target / part).symlink_to(_ABSENT)

    nbytes = sum(map(len, heads.values())) + folder_bytes({})
    lease = cache.hold(name, nbytes, fetch, lambda _: False)
    return RemoteSide(origin, cache, name, lease, prefix)
