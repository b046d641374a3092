"""A pack that is made in a staging folder and uploaded to an object store, shard by shard.

A shard is complete in the bucket once its checksum file is there, which is uploaded last; every
object is read back and compared with its digest. Then the bytes of its large arrays are removed
from the working folder in `staging`: it keeps their length, and the small files, from which the
index is made. So the working folder, whose name is hidden, is not a pack, and neither is `staging`.
Index, checksums and manifest follow when everything is uploaded: until then, readers of the bucket
see what was there before. A run that was killed is continued from the staging folder, or without it
from the bucket.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from sa1bpack.errors import OptionError, OutputLocked, OutputRefused, SourceError
from sa1bpack.format.arrays import METADATA_NAME, ChunkFile, canonical_json, read_json
from sa1bpack.format.fetched import LARGE_ARRAYS
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.files import make_folder, write_durably
from sa1bpack.format.index import top_files
from sa1bpack.format.layout import AxisLengths, Layout
from sa1bpack.format.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    REJECTS_NAME,
    SHARDS_NAME,
    Manifest,
    ShardEntry,
    check_shard_name,
    read_manifest,
)
from sa1bpack.format.removal import discard_entry, remove_published
from sa1bpack.format.replacing import replace_file
from sa1bpack.format.side.kept import KeptKey, remove_kept_rows
from sa1bpack.format.side.shards import SIDES_NAME, ShardIdentity
from sa1bpack.format.working_names import temporary_beside
from sa1bpack.interrupts import result_of
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.publishers import FolderPublisher, folder_publisher, make_pack
from sa1bpack.packing.records import PublishedShard
from sa1bpack.packing.requested_options import RequestedOptions
from sa1bpack.paths import exists, is_folder, naming, paths_below
from sa1bpack.remote.bucket import Bucket
from sa1bpack.remote.origin import fetch_files, is_large
from sa1bpack.threads import ThreadPool
from sa1bpack.urls import folder_url

# Shards that wait for their upload, or are being uploaded; packing waits when there are more.
MOST_WAITING = 2

# In a working folder: the names of the shards that are in the bucket.
_MARKS = ".uploaded"

# What is at the top of a pack, besides its index.
_KNOWN = {MANIFEST_NAME, CHECKSUMS_NAME, METADATA_NAME, REJECTS_NAME, SHARDS_NAME, SIDES_NAME}


@contextmanager
def bucket_publisher(
    url: str, staging: Path, options: RequestedOptions
) -> Iterator["BucketPublisher"]:
    """The publisher of a pack in a bucket, which continues what the bucket holds.

    The working folder of this URL, in `staging`, is locked in the block.

    Raises as `folder_publisher` and `open_store` do, OptionError for a URL without a folder,
    OutputRefused if one of the folders holds something else, StoreError.
    """
    if exists(staging / MANIFEST_NAME):
        raise OutputRefused(
            f"{staging} holds a pack of this machine: name an empty folder as staging (a "
            "finished pack is uploaded by a tool of the cloud, such as aws s3 sync)"
        )
    bucket = Bucket(folder_url("output", url))
    if not bucket.lists:
        raise OptionError(
            f"output is {bucket.url!r}: a pack is made in an object store (s3://, gs://, az://), "
            "or in a folder that is uploaded afterwards"
        )
    if not bucket.prefix:
        raise OptionError(f"output is {bucket.url!r}: name a bucket and a folder in it")
    root = staging / f".upload-{xxhash.xxh32_hexdigest(bucket.url.encode())}"
    with _staging_folder(staging), folder_publisher(root, options) as folder:
        keys = bucket.files()
        if not exists(root / MANIFEST_NAME):
            recorded = _recorded_options(bucket, keys)
            if recorded is not None:
                make_pack(root, options.of_pack(recorded, bucket.url))
        make_pack(root, folder.ledger.options)
        (root / _MARKS).mkdir(exist_ok=True)
        is_new = not (folder.ledger.shards or folder.ledger.sources)
        manifest = _restore(root, bucket, keys, is_new)
        ledger = Ledger.load(root, options)  # of what was restored, too
        publisher = BucketPublisher(root, ledger, bucket, manifest)
        try:
            publisher.upload_all()
            yield publisher
        finally:
            publisher.close()


@contextmanager
def _staging_folder(staging: Path) -> Iterator[None]:
    """Remove a staging folder that the block has made if it raises and no shard is in it."""
    is_new = not exists(staging)
    try:
        yield
    except OutputLocked:  # another process came meanwhile
        raise
    except BaseException:
        if is_new and not _has_shard(staging):
            discard_entry(staging)
        raise


def _has_shard(staging: Path) -> bool:
    """True if a shard is in one of the working folders of a staging folder."""
    for path in paths_below(staging):
        in_shards = path.parent.name == SHARDS_NAME and not path.name.startswith(".")
        if in_shards and is_folder(path):
            return True
    return False


class BucketPublisher(FolderPublisher):
    """Publishes a pack in a bucket: what is published in its working folder is uploaded.

    The bucket gets index and manifest at the end, from `finish`.
    """

    shards_at_once = MOST_WAITING + 2  # one more is made, and one is uploaded

    def __init__(self, root: Path, ledger: Ledger, bucket: Bucket, manifest: bytes | None):
        """
        Args:
            root, ledger: the working folder, as for a FolderPublisher.
            bucket: the bucket's folder.
            manifest: the manifest that it has; None if it has none.
        """
        super().__init__(root, ledger)
        self._bucket = bucket
        self._marks = root / _MARKS
        self._bucket_manifest = manifest
        self._uploads: deque[Future[None]] = deque()
        self._pool = ThreadPool(1, thread_name_prefix="sa1bpack-upload")

    def add_shard(self, shard: PublishedShard) -> None:
        """Enter a published shard, and upload it.

        Waits while others wait for that. Raises what an earlier upload raised.
        """
        super().add_shard(shard)
        self._upload(shard.entry)

    def upload_all(self) -> None:
        """Upload every shard that is not in the bucket yet. Raises as `add_shard` does."""
        for shard in self.ledger.shards.values():
            self._upload(shard.entry)

    def withdraw(self, source: str) -> int:
        """Remove every shard of a source, in the bucket too; returns their number."""
        self._settle()
        for shard in self.ledger.shards_of(source).values():
            name = shard.entry.name
            keys = self._bucket.files(f"{SHARDS_NAME}/{name}/")
            checksums = f"{SHARDS_NAME}/{name}/{CHECKSUMS_NAME}"
            if checksums in keys:
                self._bucket.delete([checksums])  # first: without it, nothing counts
            self._bucket.delete(key for key in keys if key != checksums)
            for kept_key in self.ledger.options.kept_keys:
                feature = f"{SIDES_NAME}/{kept_key.name}/"
                rows = f"{feature}{name}-"
                paths = self._bucket.files(feature)
                self._bucket.delete(path for path in paths if path.startswith(rows))
            (self._marks / name).unlink(missing_ok=True)
        return super().withdraw(source)

    def how_to_remove(self, names: Sequence[str]) -> str:
        """What to remove from the bucket, in words for a message."""
        folders = ", ".join(f"{SHARDS_NAME}/{name}/" for name in names)
        return f"remove {folders} from {self._bucket.url}"

    def finish(self, failed: Mapping[str, SourceError]) -> Manifest:
        """Publish in the working folder, and upload what the bucket lacks.

        Index, checksums and manifest are last. Raises StoreError, and what an upload of a shard
        raised.
        """
        published = super().finish(failed)
        self._settle()
        manifest = read_manifest(self.root)  # with the name of the index
        keys = self._bucket.files()
        top = top_files(self.root, manifest)
        same = self._bucket_manifest == (self.root / MANIFEST_NAME).read_bytes()
        if same and {CHECKSUMS_NAME, *top} <= set(keys):
            return published
        indexes = {key.partition("/")[0] for key in keys if key.startswith("index-")}
        of_shards = {path for path in top if path.endswith(f"/{CHECKSUMS_NAME}")}  # are there
        self._put(sorted(top - of_shards - {CHECKSUMS_NAME, MANIFEST_NAME}))
        last = [CHECKSUMS_NAME, MANIFEST_NAME]
        if failed:
            last.reverse()
        for path in last:
            self._put([path])
        for index in sorted(indexes - {manifest.index}):
            self._bucket.delete(self._bucket.files(f"{index}/"))
        return published

    def close(self) -> None:
        """End uploads."""
        if any(not upload.done() for upload in self._uploads):
            self._bucket.cancel()
        self._pool.shutdown(cancel_futures=True)

    # ---------------------------------------------------------------------------------- uploading

    def _upload(self, entry: ShardEntry) -> None:
        self._settle(MOST_WAITING - 1)
        self._uploads.append(self._pool.submit(self._upload_shard, entry))

    def _settle(self, waiting: int = 0) -> None:
        """Wait until at most `waiting` uploads are left. Raises what one of them raised."""
        while self._uploads and (len(self._uploads) > waiting or self._uploads[0].done()):
            result_of(self._uploads[0], float("inf"))
            self._uploads.popleft()

    def _upload_shard(self, entry: ShardEntry) -> None:
        """Upload a shard unless it is in the bucket, and remove its large arrays here."""
        name = entry.name
        folder = self.shards_dir / name
        digest = file_digest(folder / CHECKSUMS_NAME)
        mark = self._marks / name
        key = f"{SHARDS_NAME}/{name}/"
        if exists(mark) and mark.read_text() == digest:
            return
        self._reopen()
        for kept_key in self.ledger.options.kept_keys:  # first: no shard is there without
            self._upload_rows(kept_key, ShardIdentity(name, digest, entry.lengths))
        listed = read_checksums(folder / CHECKSUMS_NAME)
        self._bucket.put({key + path: (folder / path, listed[path]) for path in listed})
        self._bucket.put({key + CHECKSUMS_NAME: (folder / CHECKSUMS_NAME, digest)})
        replace_file(mark, digest.encode())  # durably, before anything is removed here
        _empty_large_files(folder, self.ledger.options.layout, entry.lengths)
        remove_kept_rows(self.root, self.ledger.options.kept_keys, name)

    def _upload_rows(self, kept_key: KeptKey, shard: ShardIdentity) -> None:
        """Upload what is kept of a key for a shard, and the files of the feature above it."""
        feature = kept_key.folder(self.root)
        rows = feature / shard.feature_shard
        for folder in (feature, rows):
            paths = [folder / path for path in read_checksums(folder / CHECKSUMS_NAME)]
            paths.append(folder / CHECKSUMS_NAME)  # the last
            self._put(path.relative_to(self.root).as_posix() for path in paths)

    def _reopen(self) -> None:
        """Publish a complete pack as not complete, before anything is added to it."""
        if self._bucket_manifest is None:
            return
        manifest = msgspec.json.decode(self._bucket_manifest)
        if manifest["complete"]:
            data = canonical_json(manifest | {"complete": False})
            self._bucket.put({MANIFEST_NAME: (data, xxhash.xxh3_128_hexdigest(data))})
        self._bucket_manifest = None  # only now: until then, no shard may be added

    def _put(self, paths: Iterable[str]) -> None:
        files = {path: self.root / path for path in paths}
        self._bucket.put({path: (file, file_digest(file)) for path, file in files.items()})


def _recorded_options(bucket: Bucket, keys: Iterable[str]) -> dict[str, Any] | None:
    """The options that a pack in a bucket has recorded; None if no part of one is there.

    They are in its manifest, which is uploaded last, and in every shard. A damaged file is found
    where all of it is read.
    """
    paths = set(keys)
    with suppress(msgspec.DecodeError, KeyError, TypeError):
        recorded: dict[str, Any]
        if MANIFEST_NAME in paths:
            recorded = msgspec.json.decode(bucket.read(MANIFEST_NAME))["options"]
            return recorded
        for path in sorted(paths):
            folder, _, name = path.rpartition("/")
            if folder.startswith(f"{SHARDS_NAME}/") and name == CHECKSUMS_NAME:
                metadata = msgspec.json.decode(bucket.read(f"{folder}/{METADATA_NAME}"))
                recorded = metadata["attributes"]["sa1bpack"]["options"]
                return recorded
    return None


def _restore(root: Path, bucket: Bucket, keys: Iterable[str], is_new: bool) -> bytes | None:
    """Bring into the working folder what is complete in the bucket, and is not there yet.

    Of shards, all but the bytes of the large arrays. Objects of shards that are not complete are
    removed: their upload was killed. Shards of the working folder that were uploaded, and are not
    in the bucket any more, are removed as well.

    Args:
        root: the working folder.
        bucket: the bucket's folder.
        keys: paths of its objects.
        is_new: nothing is in the working folder yet.

    Returns:
        The bucket's manifest; None if it has none.

    Raises:
        OutputRefused: the bucket's folder is not that of a pack.
        Whatever `bucket_publisher` raises.
    """
    tops = {key.partition("/")[0] for key in keys}
    strange = sorted(name for name in tops - _KNOWN if not INDEX_NAME.match(name))
    if strange:
        raise OutputRefused(f"{bucket.url} holds {strange[0]}, which no pack has: choose another")
    make_folder(root / SHARDS_NAME)
    manifest = bucket.read(MANIFEST_NAME) if MANIFEST_NAME in keys else None
    if manifest is not None and is_new:
        replace_file(root / MANIFEST_NAME, manifest)
    names = {key.split("/")[1] for key in keys if key.startswith(f"{SHARDS_NAME}/")}
    for name in sorted(names - {METADATA_NAME}):
        folder = f"{SHARDS_NAME}/{name}/"
        if folder + CHECKSUMS_NAME not in keys:
            bucket.delete(key for key in keys if key.startswith(folder))
            names.remove(name)
            continue
        check_shard_name(name, bucket.url)
        if not exists(root / SHARDS_NAME / name):
            _restore_shard(root, name, bucket)
    for mark in sorted((root / _MARKS).iterdir()):
        if mark.name not in names:  # removed there, and here are holes
            if exists(root / SHARDS_NAME / mark.name):
                remove_published(root / SHARDS_NAME / mark.name)
            mark.unlink()
    return manifest


def _restore_shard(root: Path, name: str, bucket: Bucket) -> None:
    """Make the folder of a shard that is in the bucket, with holes in place of its large arrays."""
    path = f"{SHARDS_NAME}/{name}"
    folder = root / SHARDS_NAME / name
    staging = temporary_beside(folder)
    staging.mkdir()
    try:
        text = bucket.read(f"{path}/{CHECKSUMS_NAME}")
        write_durably(staging / CHECKSUMS_NAME, text)
        listed = read_checksums(staging / CHECKSUMS_NAME)
        whole = {p: (None, digest) for p, digest in listed.items() if not is_large(p)}
        fetch_files(bucket, path, staging, whole)
        attributes = read_json(staging / METADATA_NAME)["attributes"]["sa1bpack"]
        layout = Layout.from_json(attributes["layout"], f"{bucket.url}/{path}: layout")
        counts = (attributes[key] for key in ("samples", "masks", "runs", "image_bytes"))
        _empty_large_files(staging, layout, AxisLengths(*counts))
        # First: a folder with holes and without a mark would be uploaded, over what is there.
        replace_file(root / _MARKS / name, file_digest(staging / CHECKSUMS_NAME).encode())
        staging.rename(folder)
    finally:
        discard_entry(staging)


def _empty_large_files(folder: Path, layout: Layout, lengths: AxisLengths) -> None:
    """Put files of the same length, that take no room, in place of the large ones."""
    for spec, rows in layout.array_rows(lengths).items():
        if spec.name in LARGE_ARRAYS and rows:
            path = folder / spec.chunk_path
            path.parent.mkdir(exist_ok=True)
            empty = temporary_beside(path)
            file = ChunkFile(spec, rows)
            with empty.open("xb") as stream, naming(path):  # what follows the rows is written
                stream.truncate(file.padded_bytes)
                stream.seek(file.padded_bytes)
                stream.write(file.tail()[file.padded_bytes - file.data_bytes :])
            empty.replace(path)
