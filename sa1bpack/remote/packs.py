"""Packs and side arrays that are read through a cache.

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
from sa1bpack.format.checksums import CHECKSUMS_NAME, read_checksums
from sa1bpack.format.files import temporary_beside
from sa1bpack.format.index import index_arrays, index_name_of
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import MANIFEST_NAME, SHARDS_NAME, Manifest, ShardEntry, read_manifest
from sa1bpack.format.publish import REJECTS_NAME
from sa1bpack.format.side.binding import ShardIdentity
from sa1bpack.format.side.spec import SIDES_NAME, SideSpec
from sa1bpack.format.zarr_metadata import METADATA_NAME, chunk_file
from sa1bpack.remote.cache import Cache, Lock
from sa1bpack.remote.fetch import (
    TRIES,
    changed,
    digest_of,
    fetch_files,
    fetch_group,
    folder_bytes,
    is_sound,
)
from sa1bpack.remote.origin import Origin, open_origin
from sa1bpack.urls import Counts, is_pack_url, pack_url

# A link to a part that has not been brought leads nowhere.
_ABSENT = ".absent"


class _Brings:
    """Brings folders of an origin into a cache, and makes links to them in a folder there."""

    def __init__(self, origin: Origin, cache: Cache, root: Path):
        self._origin, self._cache, self.root = origin, cache, root

    def _bring(self, path: str, name: str, digest: str, arrays, link: Path) -> Lock:
        """A shard or a part, in use; see `fetch.fetch_group`."""
        fetch = partial(fetch_group, self._origin, path, digest, arrays)
        name, misses = f"shards/{name}-{digest}", 0
        if (lease := self._cache.lease(name)) is None:
            lease, misses = (
                self._cache.hold(
                    name, folder_bytes(arrays), fetch, lambda folder: is_sound(folder, digest)
                ),
                1,
            )
        self._origin.count(Counts(hits=1 - misses, misses=misses))
        _link(link, self._cache.root / name)
        return lease


class RemotePack(_Brings):
    """A pack, see `urls.ShardSource`. It pickles to its place in the cache."""

    def __init__(self, url: str, cache: Cache, name: str, lease: Lock):
        super().__init__(open_origin(url), cache, cache.root / name)
        self.url, self.forks, self._name, self._lease = url, self._origin.forks, name, lease

    @property
    def limit(self) -> int:
        """See ShardSource."""
        return self._cache.limit

    def bring(self, entry: ShardEntry, digest: str, layout: Layout) -> Lock:
        """See ShardSource."""
        path = f"{SHARDS_NAME}/{entry.name}"
        arrays = layout.array_rows(entry.extent)
        return self._bring(path, entry.name, digest, arrays, self.root / path)

    def open_side(self, name: str) -> "RemoteSide | None":
        """See ShardSource. Raises NotAPack for a URL of something else."""
        if not is_pack_url(name):
            return _open_side(self._origin, self._cache, f"{SIDES_NAME}/{name}")
        origin = open_origin(pack_url("side", name))
        if (found := _open_side(origin, self._cache, "")) is None:
            raise NotAPack(f"{name}: not a side array: it has no {MANIFEST_NAME}")
        return found

    def counts(self) -> Counts:
        """See ShardSource."""
        return self._origin.counts

    def __reduce__(self):
        return _reopened, (self.url, self._cache.root, self._name)


class RemoteSide(_Brings):
    """A side array, see `urls.SideSource`."""

    def __init__(self, origin: Origin, cache: Cache, root: Path, path: str, lease: Lock):
        """path: in the origin."""
        super().__init__(origin, cache, root)
        self._prefix, self._lease = f"{path}/" if path else "", lease
        self._manifest = (root / MANIFEST_NAME).read_bytes()

    def bring(self, spec: SideSpec, shard: ShardIdentity) -> Lock:
        """See SideSource."""
        path = f"{self._prefix}{shard.part}"
        self._check_manifest(f"{self._prefix}{MANIFEST_NAME}")
        try:
            digest = digest_of(self._origin.read(f"{path}/{CHECKSUMS_NAME}"))
        except FileNotFoundError:
            raise FormatError(
                f"{self._origin.url}/{path}: no part for shard {shard.name}; run "
                "`sa1bpack derive` again, and upload what it makes"
            ) from None
        name, arrays = f"{spec.name}-{shard.part}", spec.arrays(shard.extent)
        return self._bring(path, name, digest, arrays, self.root / shard.part)

    def _check_manifest(self, path: str) -> None:
        """Raise StoreError if the parts of the origin are those of another side array by now."""
        try:
            if any(self._origin.read(path) == self._manifest for _ in range(TRIES)):
                return
        except FileNotFoundError:
            pass
        raise changed(self._origin, path)

    def counts(self) -> Counts:
        """What this process has read so far of what has this URL."""
        return self._origin.counts

    @property
    def url(self) -> str:
        """Of the origin."""
        return self._origin.url


def _link(link: Path, folder: Path) -> None:
    """Make a link to a folder of the cache, unless it is there."""
    target = os.path.relpath(folder, link.parent)
    if link.is_symlink() and str(link.readlink()) == target:
        return
    temporary = temporary_beside(link)
    temporary.symlink_to(target)
    temporary.replace(link)


def open_pack(url: str, folder: Path, limit: int | None) -> RemotePack:
    """A pack through the cache in a folder: manifest and index as they are now.

    url    as `pack_url` spells it
    limit  of the cache in bytes; None: that of who opened it last, or four fifths of the free disk

    Raises NotAPack if there is no pack, FormatError if it is damaged or being written, OptionError,
    StoreError, CacheFull, OSError.
    """
    cache, origin = Cache(folder, limit), open_origin(url)
    for _ in range(TRIES):
        heads = dict.fromkeys((MANIFEST_NAME, CHECKSUMS_NAME), b"")
        manifest, listed = _read_heads(origin, heads)
        name = _name("packs/", url, b"".join(heads.values()))
        arrays = index_arrays(manifest)
        nbytes = folder_bytes(arrays) + sum(map(len, heads.values()))

        def fetch(target: Path, beat, heads=heads, manifest=manifest, listed=listed) -> None:
            (target / SHARDS_NAME).mkdir()
            for each, data in heads.items():
                (target / each).write_bytes(data)
            _fetch_index(origin, target, manifest, listed, beat)

        try:
            lease = cache.hold(name, nbytes, fetch, lambda _: False)
        except FormatError:
            if origin.read(MANIFEST_NAME) == heads[MANIFEST_NAME]:
                raise
            continue  # it was replaced meanwhile
        return RemotePack(url, cache, name, lease)
    raise FormatError(
        f"{url}: it was replaced {TRIES} times while it was being opened; open it again"
    )


def _reopened(url: str, root: Path, name: str) -> RemotePack:
    """A pack that was pickled."""
    cache = Cache(root)
    if (lease := cache.lease(name)) is None:
        raise StoreError(f"{url}: it is no longer in the cache {root}; open it again")
    return RemotePack(url, cache, name, lease)


def _name(prefix: str, url: str, data: bytes) -> str:
    """What a folder of `packs` is called: like the last part of a URL, and what tells it apart."""
    last = url.rpartition("/")[2][:100]
    return f"{prefix}{last}-{xxhash.xxh32_hexdigest(url.encode())}-{digest_of(data)[:16]}"


def _read_heads(origin: Origin, heads: dict[str, bytes]) -> tuple[Manifest, dict[str, str]]:
    """Manifest and checksums, which fit; `heads` gets their bytes. Raises as `open_pack` does."""
    url, found = origin.url, None
    for _ in range(TRIES):
        for name in heads:
            try:
                heads[name] = origin.read(name)
            except FileNotFoundError:
                raise NotAPack(
                    f"{url}: not a pack: it has no {name}; name the folder that a pack was "
                    "uploaded to"
                ) from None
        with TemporaryDirectory() as staging:
            for name, data in heads.items():
                Path(staging, name).write_bytes(data)
            try:
                manifest = read_manifest(Path(staging))
                listed = read_checksums(Path(staging, CHECKSUMS_NAME))
            except FormatError as error:
                found = type(error)(str(error).replace(staging, url))
                continue
        if not manifest.shards:
            raise FormatError(f"{url}: it holds no complete shard yet")
        digests = [
            listed.get(f"{SHARDS_NAME}/{shard.name}/{CHECKSUMS_NAME}", "")
            for shard in manifest.shards
        ]
        if index_name_of(manifest.shards, digests) == manifest.index and (
            not manifest.complete or digest_of(heads[MANIFEST_NAME]) == listed.get(MANIFEST_NAME)
        ):
            return manifest, listed
    raise found or FormatError(
        f"{url}: {CHECKSUMS_NAME} is not that of {MANIFEST_NAME}: the pack is being uploaded, or "
        "was uploaded in part; upload both again"
    )


def _fetch_index(origin: Origin, folder: Path, manifest: Manifest, listed, beat) -> None:
    """Fetch the index of a pack, and the metadata of its groups."""
    index, lengths = manifest.index, {}
    names = [METADATA_NAME, f"{SHARDS_NAME}/{METADATA_NAME}", f"{index}/{METADATA_NAME}"]
    for spec, rows in index_arrays(manifest).items():
        names.append(f"{index}/{spec.name}/{METADATA_NAME}")
        if rows:
            names.append(f"{index}/{spec.chunk_path}")
            lengths[names[-1]] = chunk_file(spec, rows).file_bytes
    if manifest.complete and REJECTS_NAME in listed:
        names.append(REJECTS_NAME)
    try:
        files = {name: (lengths.get(name), listed.get(name)) for name in names}
        fetch_files(origin, "", folder, files, beat)
    except FileNotFoundError as error:
        raise FormatError(
            f"{origin.url}: {error.filename or error} is missing; upload the pack again"
        ) from None


def _open_side(origin: Origin, cache: Cache, path: str) -> RemoteSide | None:
    """A side array as it is now: its manifest, and a link for each of its parts.

    None if there is none.
    """
    prefix = f"{path}/" if path else ""
    try:
        heads = {name: origin.read(prefix + name) for name in (MANIFEST_NAME, METADATA_NAME)}
    except FileNotFoundError:
        return None
    parts = [name for name in origin.folders(path) if not name.startswith(".")]
    name = _name("packs/side-", f"{origin.url}/{path}".rstrip("/"), repr((heads, parts)).encode())

    def fetch(target: Path, beat) -> None:
        for each, data in heads.items():
            (target / each).write_bytes(data)
        for part in parts:
            with suppress(FileExistsError):
                (target / part).symlink_to(_ABSENT)

    nbytes = sum(map(len, heads.values())) + folder_bytes({})
    lease = cache.hold(name, nbytes, fetch, lambda _: False)
    return RemoteSide(origin, cache, cache.root / name, path, lease)
