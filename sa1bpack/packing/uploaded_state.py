"""A pack that is made in a staging folder and uploaded to an object store, shard by shard.

A shard is complete in the bucket once its checksum file is there, which is uploaded last; every
object is read back and compared with its digest. Then the bytes of its large arrays are removed
from the staging folder: it keeps their length, and the small files, from which the index is made.
Index, checksums and manifest follow when everything is uploaded: until then, readers of the bucket
see what was there before. A run that was killed is continued from the staging folder, or without it
from the bucket.
"""

import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import xxhash

from sa1bpack.cache.build import fetch_files, make_sparse
from sa1bpack.cache.contents import LARGE
from sa1bpack.cache.requests import Requests
from sa1bpack.cache.store_origin import StoreOrigin
from sa1bpack.cloud.bucket import BucketFolder
from sa1bpack.disk.direct import BLOCK
from sa1bpack.disk.holes import punch
from sa1bpack.errors import OutputRefused
from sa1bpack.format.array_reader import read_metadata
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.files import (
    make_folder,
    remove_published,
    replace_file,
    temporary_beside,
    write_durably,
)
from sa1bpack.format.hollow import UPLOADED_NAME, URL_NAME, refuse_hollow, uploaded_to
from sa1bpack.format.layout import Extent, Layout
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    SHARDS_NAME,
    check_shard_name,
    is_index_name,
    read_manifest,
)
from sa1bpack.format.publish import REJECTS_NAME, shard_folders, top_files
from sa1bpack.format.side.spec import SIDES_NAME
from sa1bpack.format.zarr_metadata import METADATA_NAME, canonical_json, chunk_file
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.pack_state import PackState, check_holds_a_pack
from sa1bpack.packing.shard_builder import PublishedShard

# Shards that wait for their upload, or are being uploaded; packing waits when there are more.
MOST_WAITING = 2

# What is at the top of a pack, besides its index.
_KNOWN = {
    MANIFEST_NAME, CHECKSUMS_NAME, METADATA_NAME, REJECTS_NAME, SHARDS_NAME, SIDES_NAME
}  # fmt: skip


class UploadedState(PackState):
    """The state of a pack in a bucket, made in a staging folder."""

    def __init__(self, root: Path, options: PackOptions, bucket: BucketFolder):
        """Lock the staging folder, and continue what the bucket holds.

        Raises as PackState does, OutputRefused if the bucket's folder holds something else,
        StoreError.
        """
        self._bucket = bucket
        self._waiting = threading.Semaphore(MOST_WAITING)
        self._uploads: list[Future] = []
        self._pool: ThreadPoolExecutor | None = None
        self._manifest_there: bytes | None = None
        super().__init__(root, options)
        try:
            self.write_first_manifest()
            self._marks.mkdir(exist_ok=True)
            replace_file(self._marks / URL_NAME, bucket.url.encode())
            bucket.abort_uploads()
            self._manifest_there = _restore(root, bucket, fresh=not (self.shards or self.sources))
            self.shards.clear()
            self._load()
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="sa1bpack-upload")
            for shard in list(self.shards.values()):
                self._upload(shard.entry.name)
        except BaseException:
            self.release()
            raise

    def _check_folder(self, root: Path) -> None:
        """Refuse the staging folder of another pack, and a pack that no upload has begun."""
        check_holds_a_pack(root)
        url = uploaded_to(root)
        if url is None and shard_folders(root):
            refuse_hollow(root)
            raise OutputRefused(
                f"{root} holds a pack of this machine, whose pixels and masks would be removed as "
                "they are uploaded: name an empty or a new folder as staging. To upload a finished "
                "pack, copy it with a tool of the cloud, such as aws s3 sync"
            )
        if url not in (None, self._bucket.url):
            raise OutputRefused(
                f"{root} is the staging folder of {url}: name another one for {self._bucket.url}"
            )

    def add_shard(self, shard: PublishedShard) -> None:
        """Enter a published shard, and upload it.

        Waits while others wait for that. Raises what an earlier upload raised.
        """
        super().add_shard(shard)
        if self._pool is not None:  # else it was here before
            self._upload(shard.entry.name)

    def withdraw(self, source: str) -> int:
        """Remove every shard of a source, in the bucket too; returns their number."""
        names = [shard.entry.name for shard in self.parts_of(source).values()]
        self._settle()
        for name in names:
            keys = self._bucket.keys(f"{SHARDS_NAME}/{name}/")
            mark = f"{SHARDS_NAME}/{name}/{CHECKSUMS_NAME}"
            self._bucket.delete([mark] * (mark in keys))  # first: without it, nothing counts
            self._bucket.delete(key for key in keys if key != mark)
            (self._marks / name).unlink(missing_ok=True)
        return super().withdraw(source)

    def finish(self, complete: bool) -> None:
        """Upload what is missing, then index, checksums and manifest, as `publish` has made them.

        Raises StoreError, and what an upload of a shard raised.
        """
        self._settle()
        manifest = read_manifest(self.root)
        there, top = self._bucket.keys(""), top_files(self.root, manifest)
        same = self._manifest_there == (self.root / MANIFEST_NAME).read_bytes()
        if same and {CHECKSUMS_NAME, *top} <= set(there):
            return
        old = {key.partition("/")[0] for key in there if key.startswith("index-")}
        last = (CHECKSUMS_NAME, MANIFEST_NAME)
        self._bucket.put_all(
            {
                path: (self.root / path, file_digest(self.root / path))
                for path in sorted(top)
                if path not in last and not path.endswith(f"/{CHECKSUMS_NAME}")
            }
        )
        for path in last if complete else reversed(last):
            self._put(path)
        for index in sorted(old - {manifest.index}):
            self._bucket.delete(self._bucket.keys(f"{index}/"))

    def release(self) -> None:
        """End uploads, abort what they left, and unlock the folder."""
        pool, self._pool = self._pool, None
        try:
            if pool is not None:
                if any(not each.done() for each in self._uploads):
                    self._bucket.cancel()
                pool.shutdown(cancel_futures=True)
                self._bucket.abort_uploads()
        finally:
            super().release()

    # ---------------------------------------------------------------------------------- uploading

    @property
    def _marks(self) -> Path:
        return self.root / UPLOADED_NAME

    def _upload(self, name: str) -> None:
        self._raise_first()
        while not self._waiting.acquire(timeout=0.2):  # so that Ctrl-C is not held up
            self._raise_first()
        future = self._pool.submit(self._upload_shard, name)
        future.add_done_callback(lambda _: self._waiting.release())
        self._uploads.append(future)

    def _settle(self) -> None:
        """Wait for uploads. Raises what one of them raised."""
        for each in self._uploads:
            each.result()

    def _raise_first(self) -> None:
        for each in self._uploads:
            if each.done():
                each.result()

    def _upload_shard(self, name: str) -> None:
        """Upload a shard unless it is in the bucket, and remove its large arrays here."""
        folder = self.shards_dir / name
        digest, mark = file_digest(folder / CHECKSUMS_NAME), self._marks / name
        key = f"{SHARDS_NAME}/{name}/"
        if mark.exists() and mark.read_text() == digest:
            return
        self._reopen()
        listed = read_checksums(folder / CHECKSUMS_NAME)
        self._bucket.put_all(
            {key + path: (folder / path, expected) for path, expected in listed.items()}
        )
        self._bucket.put(key + CHECKSUMS_NAME, folder / CHECKSUMS_NAME, digest)
        write_durably(mark, digest.encode())
        for path in filter(_is_large, listed):
            size = (folder / path).stat().st_size
            punch(folder / path, 0, -(-size // BLOCK) * BLOCK)

    def _reopen(self) -> None:
        """Before anything is added to a complete pack, it is published as not complete."""
        there, self._manifest_there = self._manifest_there, None
        if there is None or not (found := msgspec.json.decode(there))["complete"]:
            return
        data = canonical_json(found | {"complete": False})
        self._bucket.put(MANIFEST_NAME, data, xxhash.xxh3_128_hexdigest(data))

    def _put(self, path: str) -> None:
        file = self.root / path
        self._bucket.put(path, file.read_bytes(), file_digest(file))


def _restore(root: Path, bucket: BucketFolder, fresh: bool) -> bytes | None:
    """Bring what is complete in the bucket, and not in the staging folder, there.

    fresh  nothing is in the staging folder yet

    Of shards, all but the bytes of the large arrays. Objects of shards that are not complete are
    removed: their upload was killed. Shards of the staging folder that were uploaded, and are not
    in the bucket any more, are removed as well. Returns the bucket's manifest, if it has one.

    Raises OutputRefused if the bucket's folder is not that of a pack, and as UploadedState does.
    """
    keys = bucket.keys("")
    tops = {key.partition("/")[0] for key in keys}
    strange = sorted(name for name in tops - _KNOWN if not is_index_name(name))
    if strange:
        raise OutputRefused(f"{bucket.url} holds {strange[0]}, which no pack has: choose another")
    make_folder(root / SHARDS_NAME)
    requests = Requests(StoreOrigin(bucket.url))
    manifest = requests.read(MANIFEST_NAME) if MANIFEST_NAME in keys else None
    if manifest is not None and fresh:
        replace_file(root / MANIFEST_NAME, manifest)
    shards: dict[str, list[str]] = {}
    complete: set[str] = set()
    for key in keys:
        if key.startswith(f"{SHARDS_NAME}/") and key.count("/") > 1:
            shards.setdefault(key.split("/")[1], []).append(key)
    for name, found in sorted(shards.items()):
        if f"{SHARDS_NAME}/{name}/{CHECKSUMS_NAME}" not in found:
            bucket.delete(found)
            continue
        check_shard_name(name, bucket.url)
        if not (root / SHARDS_NAME / name).exists():
            _restore_shard(root, name, requests)
        complete.add(name)
    for name in sorted(path.name for path in (root / UPLOADED_NAME).iterdir()):
        if name != URL_NAME and name not in complete:  # removed there, and here are holes
            if (root / SHARDS_NAME / name).exists():
                remove_published(root / SHARDS_NAME / name)
            (root / UPLOADED_NAME / name).unlink()
    return manifest


def _restore_shard(root: Path, name: str, requests: Requests) -> None:
    """Make the folder of a shard that is in the bucket, with holes in place of its large arrays."""
    path, folder = f"{SHARDS_NAME}/{name}", root / SHARDS_NAME / name
    staging = temporary_beside(folder)
    staging.mkdir()
    try:
        text = requests.read(f"{path}/{CHECKSUMS_NAME}")
        write_durably(staging / CHECKSUMS_NAME, text)
        listed = read_checksums(staging / CHECKSUMS_NAME)
        whole = {p: (None, digest) for p, digest in listed.items() if not _is_large(p)}
        fetch_files(requests, path, staging, whole)
        attributes = read_metadata(staging / METADATA_NAME)["attributes"]["sa1bpack"]
        layout = Layout.from_json(attributes["layout"], f"{requests.origin.url}/{path}: layout")
        counts = (attributes[key] for key in ("samples", "masks", "runs", "image_bytes"))
        for spec, rows in layout.array_rows(Extent(*counts)).items():
            if _is_large(spec.chunk_path) and rows:
                make_sparse(staging, spec, rows, chunk_file(spec, rows).file_bytes)
        staging.rename(folder)
        write_durably(root / UPLOADED_NAME / name, file_digest(folder / CHECKSUMS_NAME).encode())
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _is_large(path: str) -> bool:
    """Whether a file of a shard is the chunk file of a large array."""
    array, _, file = path.partition("/")
    return array in LARGE and file != METADATA_NAME
