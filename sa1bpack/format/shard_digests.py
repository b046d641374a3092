"""What identifies the content of a shard, wherever it lies: the digest of its checksum file.

That file has the digests of all other files of the shard, so two shards with the same digest have
the same bytes. It names neither the pack nor the place in it: a shard keeps its digest when its
pack grows, and in every pack that it is copied or merged into.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import missing
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.index import index_name_of
from sa1bpack.format.manifest import SHARDS_NAME, Manifest

# Small files that are hashed at the same time.
_THREADS = 16


def shard_digests(root: Path, manifest: Manifest) -> tuple[str, ...]:
    """The XXH3-128 of each shard's checksum file, 32 hexadecimal digits, in manifest order.

    They are taken from the pack's own checksum file, one read for all shards, if they are those
    that the name of the index was computed from. Otherwise, as while a packer or a repair runs,
    each shard's checksum file is read.

    Raises FormatError if one is missing, OSError if it cannot be read.
    """
    paths = [f"{SHARDS_NAME}/{shard.name}/{CHECKSUMS_NAME}" for shard in manifest.shards]
    try:
        listed = read_checksums(root / CHECKSUMS_NAME)
    except FormatError:  # missing or damaged: the shards have their own
        listed = {}
    found = tuple(listed.get(path, "") for path in paths)
    if all(found) and index_name_of(manifest.shards, found) == manifest.index:
        return found
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            return tuple(pool.map(lambda path: file_digest(root / path), paths))
    except FileNotFoundError as error:
        raise missing(Path(error.filename)) from None
