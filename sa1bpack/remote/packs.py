"""The core's access to URLs, see `urls.scheme_of`.

Packs and features are read through a cache, checked or uploaded; tars are read as streams; and a
pattern stands for files.

A pack is a folder of the cache with its manifest, its index, and links to those of its shards that
are here: an ordinary pack once all are. It is named after the digests of manifest and checksums, so
that a pack that has changed is another folder; shards that are the same, by their digests, are
shared. What is in the folder of a shard is an ordinary shard.
"""

import functools
import glob
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import xxhash

from sa1bpack.errors import EmptyPack, FormatError, NotAPack, OptionError, SourceError, StoreError
from sa1bpack.format.arrays import METADATA_NAME, ChunkFile
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.index import index_arrays, index_name_of
from sa1bpack.format.layout import ArraySpec, Layout
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    REJECTS_NAME,
    SHARDS_NAME,
    Manifest,
    ShardEntry,
    read_manifest,
)
from sa1bpack.format.problems import Report
from sa1bpack.format.removal import discard_entry
from sa1bpack.format.side.shard import items_in
from sa1bpack.format.side.shards import SIDES_NAME, ShardIdentity, shard_identities
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.format.working_names import TEMPORARY_PREFIX
from sa1bpack.paths import exists, temporary_folder
from sa1bpack.remote.attempts import OnWait
from sa1bpack.remote.bucket import Bucket, StoreFile
from sa1bpack.remote.cache import Cache, Lock
from sa1bpack.remote.flow import MOST_AHEAD, Flow
from sa1bpack.remote.kept_ranges import KEPT, KeptRanges
from sa1bpack.remote.mirror import verify_at_url
from sa1bpack.remote.origin import (
    TRIES,
    Files,
    LocalOrigin,
    Origin,
    changed,
    digest_of,
    fetch_files,
    fetch_group,
    folder_bytes,
    is_replaced,
    is_sound,
    no_pack,
    small_arrays,
)
from sa1bpack.remote.ranges import FolderRanges
from sa1bpack.remote.records import fetch_pack_records, fetch_shard_records
from sa1bpack.remote.stores import settings_digest, store_of
from sa1bpack.remote.web import WebFile
from sa1bpack.urls import (
    STORE_SCHEMES,
    Address,
    Counts,
    Patience,
    is_pack_url,
    local_folder,
    pack_url,
    parse_address,
)

# Begins the names of folders without large arrays, of which rows are fetched.
_SMALL = "rows-"

# Bytes of the name of a shard, or pack, in the names of its folder and of the lock of that.
_LONGEST_BEGIN = 180

# A link to a feature shard that has not been fetched leads nowhere.
_ABSENT = ".absent"


@functools.cache
def _bucket(url: str, process: int, settings: int) -> Bucket:
    return Bucket(url)


@functools.cache
def _local_origin(url: str, folder: Path) -> LocalOrigin:
    return LocalOrigin(url, folder)


def open_origin(url: str) -> Origin:
    """The origin at a URL, as `pack_url` spells it, one object per process: its counts are one.

    It is another one if the environment names other credentials, or another endpoint, by now.

    Raises OptionError without credentials, MissingPackage without the library.
    """
    folder = local_folder(url)
    if folder is None:
        return _bucket(url, os.getpid(), settings_digest())
    return _local_origin(url, folder)


@functools.cache
def _flow(url: str, process: int) -> Flow:
    """What measures the requests to an origin, one object per process."""
    return Flow()


class FetchMode(NamedTuple):
    """What is fetched of a pack, and what is kept.

    Attributes:
        rows: of large arrays, rows are fetched when they are needed; False: whole shards.
        keeps: rows that were fetched are kept in the cache, as long as it has room.
    """

    rows: bool
    keeps: bool


class _Cached:
    """A folder of a cache with links to what was fetched from an origin, see ShardSource.

    Attributes:
        fetches_rows: of shards, and feature shards, the large arrays are left out, of which rows
            are fetched when they are needed.
    """

    def __init__(self, origin: Origin, cache: Cache, name: str, lease: Lock, how: FetchMode):
        self.url = origin.url
        self.root = cache.root / name
        self.limit = cache.limit
        self.forks = origin.forks
        self.lists = origin.lists
        self.fetches_rows = how.rows
        self._how = how
        self._origin = origin
        self._cache = cache
        self._name = name
        self._lease = lease
        self._flow = _flow(origin.url, os.getpid())

    most_ahead = MOST_AHEAD

    @property
    def window(self) -> int:
        """See ShardSource."""
        return self._flow.bytes_ahead

    def counts(self) -> Counts:
        """The counts of what this process has read from this URL so far."""
        return self._origin.counts

    def _fetch(
        self,
        path: str,
        name: str,
        digest: str,
        arrays_of: Callable[[], Mapping[ArraySpec, int]],
        link: str,
    ) -> Lock:
        """A shard or feature shard, in use, with a link to it; fetched by `fetch_group` if need be.

        Args:
            path, digest: as in `fetch_group`.
            arrays_of: returns the arrays, as there, if it must be fetched.
            name: name of its folder in the cache, without the digest.
            link: path of the link in this folder.
        """
        whole = not self.fetches_rows
        prefix = "" if whole else _SMALL
        name = _in_cache(prefix, name, digest)
        lease = self._cache.lease(name)
        if lease is not None:
            self._origin.count(Counts(hits=1))
        else:
            arrays = arrays_of()
            fetch = functools.partial(fetch_group, self._origin, path, digest, arrays, whole=whole)
            sound = functools.partial(_is_sound, digest=digest, whole=whole)
            lease = self._cache.hold(name, self._kept_bytes(arrays), fetch, sound)
            self._origin.count(Counts(misses=1))
        _link(self.root / link, self._cache.root / name)
        return lease

    def _kept_bytes(self, arrays: Mapping[ArraySpec, int]) -> int:
        """Bytes that a folder with these arrays takes in the cache."""
        return folder_bytes(small_arrays(arrays) if self.fetches_rows else arrays)

    def _reader(self, path: str, name: str, digest: str) -> FolderRanges | None:
        """Reads the large arrays of a folder of the origin; None: they are in the cache.

        Args:
            path, digest: as in `fetch_group`.
            name: name of its folder in the cache, without the digest.
        """
        if not self.fetches_rows:
            return None
        kept = None
        if self._how.keeps:
            folder = _in_cache(_SMALL, name, digest)
            reserve = functools.partial(self._cache.grow, folder)
            kept = KeptRanges(self._cache.root / folder, reserve)
        return FolderRanges(self._origin, self._flow, path, digest, kept)


class RemotePack(_Cached):
    """A pack, see `urls.ShardSource`. It pickles to its place in the cache."""

    def fetch(self, entry: ShardEntry, digest: str, layout: Layout) -> Lock:
        """See ShardSource."""
        path = f"{SHARDS_NAME}/{entry.name}"
        arrays_of = functools.partial(layout.array_rows, entry.lengths)
        return self._fetch(path, entry.name, digest, arrays_of, path)

    def reader(self, entry: ShardEntry, digest: str) -> FolderRanges | None:
        """See ShardSource."""
        return self._reader(f"{SHARDS_NAME}/{entry.name}", entry.name, digest)

    def kept_bytes(self, entry: ShardEntry, layout: Layout) -> int:
        """See ShardSource."""
        return self._kept_bytes(layout.array_rows(entry.lengths))

    def open_side(self, name: str, whole: bool = False) -> "RemoteSide | None":
        """See ShardSource. Raises NotAPack for a URL of something else."""
        how = self._how
        if whole:
            how = how._replace(rows=False)
        if is_pack_url(name):
            return _open_side_at(name, self._cache, self._identities(), how)
        prefix = f"{SIDES_NAME}/{name}/"
        names = _feature_shards(self._origin, prefix, self._identities())
        return _open_side(self._origin, self._cache, prefix, names, how)

    def _identities(self) -> list[ShardIdentity]:
        return shard_identities(self.root, read_manifest(self.root))

    def fetch_records(self, folder: Path) -> None:
        """See ShardSource."""
        fetch_pack_records(self._origin, self.root, folder)

    def fetch_shard_records(self, folder: Path) -> None:
        """See ShardSource."""
        fetch_shard_records(self._origin, self._identities(), folder)

    def __reduce__(self) -> tuple[Callable[..., "RemotePack"], tuple[str, Path, str, FetchMode]]:
        return _reopened, (self.url, self._cache.root, self._name, self._how)


def _reopened(url: str, root: Path, name: str, how: FetchMode) -> RemotePack:
    """A pack that was pickled."""
    cache = Cache(root)
    lease = cache.lease(name)
    if lease is None:
        raise StoreError(f"{url}: it is no longer in the cache {root}; open it again")
    return RemotePack(open_origin(url), cache, name, lease, how)


class RemoteSide(_Cached):
    """A feature, see `urls.SideSource`, below a path in its origin: "", or "side/NAME/"."""

    def __init__(
        self,
        origin: Origin,
        cache: Cache,
        name: str,
        lease: Lock,
        how: FetchMode,
        prefix: str,
    ):
        super().__init__(origin, cache, name, lease, how)
        self._prefix = prefix
        self._digests: dict[str, str] = {}  # of feature shards that were fetched, by name
        self._digest = file_digest(self.root / MANIFEST_NAME)

    def fetch(self, spec: SideSpec, shard: ShardIdentity) -> Lock:
        """See SideSource."""
        path = f"{self._prefix}{shard.feature_shard}"
        manifest = f"{self._prefix}{MANIFEST_NAME}"
        if is_replaced(self._origin, manifest, self._digest):  # by another feature
            raise changed(self._origin, manifest)
        try:
            digest = digest_of(self._origin.read(f"{path}/{CHECKSUMS_NAME}"))
        except FileNotFoundError:
            why = "run `sa1bpack derive` again, and upload what it makes"
            raise FormatError(
                f"{self._origin.url}/{path}: no rows for {shard.name}; {why}"
            ) from None
        name = f"{spec.name}-{shard.feature_shard}"
        self._digests[shard.feature_shard] = digest

        def arrays_of() -> Mapping[ArraySpec, int]:
            return spec.arrays(shard.lengths, self.items(spec, shard))

        return self._fetch(path, name, digest, arrays_of, shard.feature_shard)

    def reader(self, spec: SideSpec, shard: ShardIdentity) -> FolderRanges | None:
        """See SideSource."""
        name = shard.feature_shard
        return self._reader(f"{self._prefix}{name}", f"{spec.name}-{name}", self._digests[name])

    def kept_bytes(self, spec: SideSpec, shard: ShardIdentity, items: int) -> int:
        """See SideSource."""
        return self._kept_bytes(spec.arrays(shard.lengths, items))

    def items(self, spec: SideSpec, shard: ShardIdentity) -> int:
        """See SideSource."""
        if not spec.ragged:
            return 0
        path = f"{self._prefix}{shard.feature_shard}/{METADATA_NAME}"
        name = f"{self._origin.url}/{path}"
        try:
            metadata = msgspec.json.decode(self._origin.read(path))
        except (
            FileNotFoundError,
            msgspec.DecodeError,
            UnicodeDecodeError,
            RecursionError,
        ) as error:
            raise FormatError(f"{name}: not JSON, or missing ({error}); upload it again") from None
        return items_in(metadata, name)


def _is_sound(folder: Path, digest: str, whole: bool) -> bool:
    """True if a folder that was made before the machine started is as it was.

    Ranges that were kept are removed: they have no digests.
    """
    if exists(folder / KEPT):
        discard_entry(folder / KEPT)
    return is_sound(folder, digest, whole=whole)


def _link(link: Path, folder: Path) -> None:
    """Make a link to a folder of the cache, unless it is there.

    Its working name is the same in all processes: one that a killed process left is used.
    """
    target = os.path.relpath(folder, link.parent)
    temporary = link.with_name(TEMPORARY_PREFIX + link.name)
    while not (link.is_symlink() and str(link.readlink()) == target):
        with suppress(FileExistsError):
            temporary.symlink_to(target)
        with suppress(FileNotFoundError):  # another process was faster
            temporary.replace(link)


def open_pack(url: str, folder: Path | None, limit: int | None, fetch: str) -> RemotePack:
    """A pack through the cache in a folder: manifest and index as they are now.

    Args:
        url: URL of the pack, as `pack_url` spells it.
        folder: folder of the cache; None: `default_folder`.
        limit: bytes that the cache may take; None: the limit with which it was opened last, or four
            fifths of the free disk.
        fetch: "shards", whole; or "rows" of large arrays when they are needed, of shards whose
            small arrays are in the cache. Rows are kept in a folder that is named, too.

    Raises:
        NotAPack: there is no pack.
        FormatError: the pack is damaged, or is being written.
        OptionError: a value that cannot be used.
        CacheFull: there is no room in the cache.
        StoreError, OSError: the object store or the disk fails.
    """
    cache = Cache(folder or default_folder(), limit)
    origin = open_origin(url)
    how = FetchMode(rows=fetch == "rows", keeps=folder is not None)
    for _ in range(TRIES - 1):
        with suppress(FormatError):  # it may have been replaced while it was opened
            return _open_pack(origin, cache, how)
    return _open_pack(origin, cache, how)


def default_folder() -> Path:
    """The folder of the cache for who names none: of this user, in the system's temporary folder.

    Raises OptionError if something else has that name.
    """
    folder = temporary_folder() / f"sa1bpack-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise OptionError(
            f"{folder} is not a folder of this user, so that the index and the small arrays of a "
            "pack at a URL cannot be kept there: name a folder, cache_dir='/folder/on/a/local/disk'"
        )
    return folder


def _open_pack(origin: Origin, cache: Cache, how: FetchMode) -> RemotePack:
    url = origin.url
    heads = {}
    with TemporaryDirectory() as staging:
        asked = {name: origin.begin(name) for name in (MANIFEST_NAME, CHECKSUMS_NAME)}
        for name, future in asked.items():
            try:
                heads[name] = bytes(origin.result(future))
            except FileNotFoundError:
                raise no_pack(url, name) from None
            Path(staging, name).write_bytes(heads[name])
        try:
            manifest = read_manifest(Path(staging))
            listed = read_checksums(Path(staging, CHECKSUMS_NAME))
        except FormatError as error:
            raise type(error)(str(error).replace(staging, url)) from None
    if not manifest.shards:
        raise EmptyPack(f"{url}: it has no image, or no complete shard yet")
    if not _matches(manifest, digest_of(heads[MANIFEST_NAME]), listed):
        raise FormatError(
            f"{url}: {CHECKSUMS_NAME} is not that of {MANIFEST_NAME}: the pack is being uploaded, "
            "or was uploaded in part; upload both again"
        )

    def fetch(target: Path) -> None:
        for name, data in heads.items():
            (target / name).write_bytes(data)
        fetch_files(origin, "", target, _index_files(manifest, listed))

    prefix = f"packs/{_SMALL if how.rows else ''}"  # links there are to other folders
    name = _name(prefix, url, b"".join(heads.values()))
    nbytes = folder_bytes(index_arrays(manifest)) + sum(map(len, heads.values()))
    lease = cache.hold(name, nbytes, fetch, lambda _: False)
    return RemotePack(origin, cache, name, lease, how)


def _matches(manifest: Manifest, digest: str, listed: Mapping[str, str]) -> bool:
    """True if a manifest of this digest, and its index, are those that a checksum file lists."""
    paths = (f"{SHARDS_NAME}/{shard.name}/{CHECKSUMS_NAME}" for shard in manifest.shards)
    digests = [listed.get(path, "") for path in paths]
    if index_name_of(manifest.shards, digests) != manifest.index:
        return False
    # Of a pack that is not complete, the checksum file may be older than the manifest.
    return not manifest.says_complete or listed.get(MANIFEST_NAME) == digest


def _name(prefix: str, url: str, data: bytes) -> str:
    """The name of a folder of `packs`: like the last part of a URL, and what tells it apart."""
    last = _begin_of(url.rpartition("/")[2])
    return f"{prefix}{last}-{xxhash.xxh32_hexdigest(url.encode())}-{digest_of(data)[:16]}"


def _in_cache(prefix: str, name: str, digest: str) -> str:
    """The folder of a shard, or feature shard, of this digest in a cache."""
    return f"shards/{prefix}{_begin_of(name)}-{digest}"


def _begin_of(name: str) -> str:
    """The begin of a name, for that of a folder: its length fits, and it is no working name."""
    return name.encode(errors="replace")[:_LONGEST_BEGIN].decode(errors="ignore").lstrip(".")


def _index_files(manifest: Manifest, listed: dict[str, str]) -> Files:
    """The files of a pack's index, and the metadata of its groups, to be fetched."""
    lengths = {}
    for spec, rows in index_arrays(manifest).items():
        if rows:
            lengths[f"{manifest.index}/{spec.chunk_path}"] = ChunkFile(spec, rows).file_bytes
    others = {MANIFEST_NAME}
    if not manifest.says_complete:
        others.add(REJECTS_NAME)
    index_files = {}
    for name, digest in listed.items():
        if name not in others and not name.endswith(f"/{CHECKSUMS_NAME}"):
            index_files[name] = lengths.get(name), digest
    return index_files


def open_side(url: str, shards: Sequence[ShardIdentity]) -> "RemoteSide":
    """A feature at a URL, of packs on this machine; its rows are fetched when they are needed.

    Args:
        url: URL of the feature.
        shards: the shards of the packs.

    Raises:
        NotAPack: there is no feature.
        StoreError, OSError: the object store or the disk fails.
    """
    cache = Cache(default_folder(), None)
    return _open_side_at(url, cache, shards, FetchMode(rows=True, keeps=False))


def _open_side_at(
    url: str, cache: Cache, shards: Sequence[ShardIdentity], how: FetchMode
) -> "RemoteSide":
    """A feature at a URL, through a cache. Raises NotAPack for something else."""
    origin = open_origin(pack_url("features", url))
    side = _open_side(origin, cache, "", _feature_shards(origin, "", shards), how)
    if side is None:
        raise NotAPack(f"{url}: not a feature: it has no {MANIFEST_NAME}")
    return side


def _feature_shards(origin: Origin, prefix: str, shards: Sequence[ShardIdentity]) -> list[str]:
    """Names of the feature shards of a feature below a path in its origin.

    Where they cannot be listed, those that a complete feature of these shards has.
    """
    if origin.lists:
        return [folder for folder in origin.folders(prefix) if not folder.startswith(".")]
    return [shard.feature_shard for shard in shards]


def _open_side(
    origin: Origin, cache: Cache, prefix: str, links: list[str], how: FetchMode
) -> RemoteSide | None:
    """A feature as it is now: its manifest, and a link for each of its feature shards.

    None if there is none.
    """
    try:
        heads = {name: origin.read(prefix + name) for name in (MANIFEST_NAME, METADATA_NAME)}
    except FileNotFoundError:
        return None
    path = prefix.rstrip("/")
    folder = f"packs/side-{_SMALL if how.rows else ''}"
    name = _name(folder, f"{origin.url}/{path}".rstrip("/"), repr((heads, links)).encode())

    def fetch(target: Path) -> None:
        for file_name, data in heads.items():
            (target / file_name).write_bytes(data)
        for link in links:
            (target / link).symlink_to(_ABSENT)

    nbytes = sum(map(len, heads.values())) + folder_bytes({})
    lease = cache.hold(name, nbytes, fetch, lambda _: False)
    return RemoteSide(origin, cache, name, lease, how, prefix)


# --------------------------------------------------------------------------------- other functions


def open_stream(address: Address, **options: Any) -> WebFile | StoreFile:
    """See `scheme_of`. The options are those of WebFile."""
    if address.scheme in STORE_SCHEMES:
        return StoreFile(address, **options)
    return WebFile(address, **options)


def verify(url: str, **options: Any) -> Report:
    """See `scheme_of`; the options and errors are those of `mirror.verify`."""
    return verify_at_url(url, **options)


def bucket_publisher(url: str, staging: Path, options: Any) -> Any:
    """See `scheme_of`. Raises as `upload.bucket_publisher` does."""
    # By name: reading a pack never loads the packer.
    return import_module("sa1bpack.remote.upload").bucket_publisher(url, staging, options)


def find_files(address: Address, on_wait: OnWait = None) -> list[Address]:
    """See `scheme_of`. A pattern has `*`, `?` or `[...]` and is one of an object store.

    It means there what it means on a disk: `*` stays within a folder, `**` stands for any folders,
    and a key that is the pattern itself comes before all that it matches.

    Raises MissingPackage or OptionError for an object store that cannot be opened, SourceError if
    nothing matches, or the bucket cannot be listed.
    """
    if address.scheme not in STORE_SCHEMES:
        return [address]
    store = store_of(address)
    if address.listed or not glob.has_magic(address.key):
        return [address]
    root = f"{address.scheme}://{address.bucket}"
    folder = re.split(r"[*?[]", address.key)[0].rpartition("/")[0]
    try:
        sizes = Bucket(root, store, Patience(), on_wait).files(folder)
    except (FileNotFoundError, StoreError) as error:
        raise SourceError(f"{address}: cannot be listed: {error}") from None
    keys = [address.key]
    if address.key not in sizes:
        pattern = address.key.split("/")
        keys = [key for key in sizes if _is_match(key.split("/"), pattern)]
    if not keys:
        raise SourceError(f"{address}: nothing matches this pattern; check the bucket and the path")
    return [parse_address("source", f"{root}/{key}") for key in keys]


def _is_match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """True if a path matches a pattern, part by part, by the rules of `glob` with `recursive`."""
    if not pattern or not parts:
        return not parts and set(pattern) <= {"**"}
    is_shown = pattern[0].startswith(".") or not parts[0].startswith(".")
    if pattern[0] == "**":
        return _is_match(parts, pattern[1:]) or (is_shown and _is_match(parts[1:], pattern))
    return is_shown and fnmatchcase(parts[0], pattern[0]) and _is_match(parts[1:], pattern[1:])
