"""`TarDataset`: the samples of tars and folders, in any order, without a pack; its caches."""

import copy
import logging
import os
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import xxhash

from sa1bpack import __version__
from sa1bpack.arguments import bytes_of, whole_number
from sa1bpack.dataset.map_style import MapStyle
from sa1bpack.dataset.rows import Rows, take
from sa1bpack.environment import pil_in_force
from sa1bpack.errors import OptionError, ReadError, UnknownName
from sa1bpack.format.manifest import folder_to_write
from sa1bpack.format.removal import remove_all_leftovers
from sa1bpack.format.working_names import temporary_beside
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.packing.options import PackOptions
from sa1bpack.raw.decoding import (
    PairDecoder,
    PairInfo,
    RawOptions,
    SampleArrays,
    Tars,
    no_pairs,
    sources_of,
)
from sa1bpack.raw.tar_index import open_index
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import Reject
from sa1bpack.source.tar import IMAGE_ENDINGS
from sa1bpack.wording import counted

if TYPE_CHECKING:
    from sa1bpack.option_keywords import RawKeywords

# Fractions of the limit of a folder, which 40 processes together keep.
_UNSEEN = 1 / 400  # a process that has added this much lists the files
_MANY = 0.9  # of more than this, some are removed
_LEFT = 0.8  # this much is left then

_SUFFIX = ".npz"

_log = logging.getLogger("sa1bpack")


class MemoryCache:
    """The rows of samples, at most `limit` bytes of them in each process.

    Safe in threads without a lock, which a fork might find held: each step is one call of C.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self._rows: OrderedDict[int, SampleArrays] = OrderedDict()  # the least recently used first

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryCache, (self.limit,)

    def get(self, key: int) -> SampleArrays | None:
        """The rows of a sample, which becomes the most recently used, or None."""
        rows = self._rows.pop(key, None)
        if rows is not None:
            self._rows[key] = rows
        return rows

    def put(self, key: int, rows: SampleArrays) -> None:
        """Keep the rows of a sample, if there is room for it at all."""
        if _nbytes(rows) > self.limit:
            return
        self._rows[key] = rows
        over = sum(map(_nbytes, list(self._rows.values()))) - self.limit
        with suppress(KeyError):  # other threads have removed all
            while over > 0:
                over -= _nbytes(self._rows.popitem(last=False)[1])


class DiskCache:
    """The rows of samples as files of a folder, which processes share: at most `limit` bytes.

    What is read is compared with its checksum, and decoded again if it differs.
    """

    def __init__(self, folder: Path, limit: int):
        self._folder = folder.absolute()
        self._limit = limit
        self._full = False  # a file could not be written
        self._unseen = limit  # bytes; all, so that the first sample looks at the folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(f"cache_dir is {folder}: {error.strerror}; name another") from error
        with suppress(OSError):  # what a killed process left, if it may be removed
            remove_all_leftovers(folder)

    def get(self, key: str) -> SampleArrays | None:
        """The rows of a sample, which becomes the most recently used, or None."""
        path = self._path(key)
        try:
            with np.load(path, allow_pickle=False) as file:  # compares checksums
                rows = dict(file)
            with suppress(OSError):  # the folder may be another user's
                os.utime(path)
            return rows
        except FileNotFoundError:
            return None
        except Exception as error:  # of a damaged file, any
            _log.warning("%s: damaged (%s); the sample is decoded again", path, error)
        with suppress(OSError):
            path.unlink()
        return None

    def put(self, key: str, rows: SampleArrays) -> None:
        """Keep the rows of a sample. What cannot be written is logged, once."""
        path = self._path(key)
        temporary = temporary_beside(path)
        arrays: dict[str, Any] = rows
        try:
            with temporary.open("wb") as file:
                np.savez(file, **arrays)
                self._unseen += file.tell()
            temporary.replace(path)
            if self._unseen > _UNSEEN * self._limit:
                self._remove_oldest()
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            if not self._full:
                self._full = True
                _log.warning("%s: samples cannot be kept: %s", self._folder, error.strerror)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _remove_oldest(self) -> None:
        """Remove the files that were used least recently, if there are too many bytes."""
        self._unseen = 0
        files = []
        for entry in os.scandir(self._folder):
            if _SUFFIX in entry.name:  # also what a killed process was writing
                with suppress(FileNotFoundError):  # another process has removed it
                    status = entry.stat()
                    files.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        if total <= _MANY * self._limit:
            return
        for _, size, path in sorted(files):
            if total <= _LEFT * self._limit:
                break
            Path(path).unlink(missing_ok=True)
            total -= size


def _nbytes(rows: SampleArrays) -> int:
    return sum(array.nbytes for array in rows.values())


def _cache_limit(name: str, size: int | str) -> int:
    """The bytes of a cache, 0 if there is to be none."""
    if size == 0:
        return 0
    return bytes_of(name, size)


# ------------------------------------------------------------------------------------- the dataset

# Options of packing that do not change what a sample is.
_NOT_OF_SAMPLES = ("samples_per_shard", "empty")


@checks_options(masks="mask_format")
class TarDataset(MapStyle):
    """The samples of tars and folders as they are: `ds[i]` decodes a pair when it is asked for.

    A sample is the dict, bit for bit, that a pack of the tars made with `options` and opened with
    the other options would have, as `Dataset` describes it; `row` counts the pairs of all tars.
    Use it for a look before packing, for a small job, or as the reference of a pack: decoding
    costs some hundred times as much as reading a pack (docs/raw.md).

    Indices are those of the pairs that each tar has, in the order in which packing meets them, tars
    sorted by name. A pair that cannot be decoded keeps its index: `ds[i]` raises ReadError for it,
    naming tar, member and reason, and no other sample is affected. Members without their other
    half are in `rejects`. An image that several of the tars have is several samples.

    `ds[slice]`, `ds[index array]` and `ds[bool array]` are datasets over those samples. Works in a
    torch DataLoader with any sampler and `Collate`, in threads, after fork and after spawn: it
    pickles to its paths and options, and a file is open only while it is read.

    Random access into a tar needs an index of its members, and for SA-1B's, which are gzip streams,
    of places at which inflating can begin. It is made once per tar, in one pass, and kept as a
    file: `.sa_000000.tar.index` beside the tar, a hundredth of its size. When the tar has changed,
    it is made again, with a warning in the log.

    Attributes:
        pack_options: options of a pack with the same samples.
        options: options that such a pack would be opened with.
        layout: image size, mask size and fit, as in that pack.
        spec: form of pixels, masks and coordinates, for `Collate(sample_spec=ds.spec)`.
        mask_size, mask_sampling: cells per side of the grid of masks, and their sampling.

    Examples:
        >>> ds = sa1bpack.TarDataset("tests/samples/sa_000000.tar", index_folder="indices")
        >>> len(ds), ds[0]["image"].shape, ds.metadata(0).masks
        (3, (1024, 1024, 3), 90)
    """

    @takes_options(RawOptions)
    def __init__(
        self,
        tars: Tars,
        *,
        options: PackOptions | None = None,
        on_error: str = "raise",
        index_folder: str | os.PathLike[str] | None = None,
        cache_size: int | str = 0,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_dir_size: int | str = 0,
        **samples: Unpack["RawKeywords"],
    ):
        """
        Args:
            tars: tars (gzip or plain) and extracted folders, or patterns of them, as for `pack`.
            options: options of packing: image size, fit, which masks are kept, and so on. None: the
                defaults of `pack`.
            on_error: as in `sa1bpack.open`: what `__getitems__` does with a pair that cannot be
                used, "raise" or "return" its ReadError.
            index_folder: folder for the indices of tars; None: beside each tar.
            cache_size: keep decoded samples in memory, at most this much per process: bytes, or a
                text such as "8 GB".
            cache_dir, cache_dir_size: keep them in a folder as well, which processes and later runs
                share, at most this much. Samples of other options lie beside these and count
                towards the same limit.

        Raises:
            OptionError: a value that cannot be used, a folder that cannot be written, or is in a
                pack.
            SourceError: a tar or folder that cannot be read, is damaged, or has no pairs.
            MissingPackage: zlib's library, which indexes gzip streams, or PIL is not installed.
        """
        sources = sources_of(tars)
        self._decoder = decoder = PairDecoder(options, on_error, RawOptions(**samples))
        self.pack_options = decoder.pack_options
        self.options = decoder.options
        self.layout = decoder.layout
        self.spec = decoder.spec
        self.mask_size = self.spec.masks.size
        self.mask_sampling = self.spec.masks.sampling
        if self.pack_options.empty == "drop":
            raise OptionError(
                "options have empty='drop', but which images have no masks left is not known "
                "before they are decoded: use 'keep' and look at the masks, or IterableTarDataset"
            )
        folder = None
        if index_folder is not None:
            folder = folder_to_write("index_folder", index_folder).absolute()
        memory_limit = _cache_limit("cache_size", cache_size)
        disk_limit = _cache_limit("cache_dir_size", cache_dir_size)
        if (cache_dir is None) != (disk_limit == 0):
            raise OptionError("cache_dir and cache_dir_size: give both, or neither")
        self._memory: MemoryCache | None = None
        if memory_limit:
            self._memory = MemoryCache(memory_limit)
        self._disk: DiskCache | None = None
        if cache_dir is not None:
            self._disk = DiskCache(folder_to_write("cache_dir", cache_dir), disk_limit)
        self._indices = [open_index(source, folder) for source in sources]
        for index in self._indices:
            if not len(index):
                raise no_pairs(index.source, index.rejects)
        self._first_row = np.cumsum([0, *map(len, self._indices)])
        self._rows: Rows = range(int(self._first_row[-1]))

    # ------------------------------------------------------------------------------------- samples

    def __getitem__(self, index: Any) -> Any:
        """A sample for an integer; a dataset for a slice, an index array or a bool array.

        Raises IndexError as lists do, TypeError for anything else, ReadError naming tar, member and
        reason if the pair cannot be used, SourceError if the tar cannot be read.
        """
        if isinstance(index, slice) or np.ndim(index):
            selected = copy.copy(self)
            selected._rows = take(self._rows, index)
            return selected
        return self._sample(self._row(index))

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """The samples at several indices: what torch's DataLoader calls for a batch."""
        return self._samples([self._row(index) for index in indices], indices)

    def _sample(self, row: int) -> Any:
        return self._decoder.sample(self._decoded(row), row)

    def by_id(self, image_id: int) -> Any:
        """The sample with that image id. Raises as `index_of` and `ds[index]` do."""
        return self[self.index_of(image_id)]

    def index_of(self, image_id: int) -> int:
        """The index in this dataset of the (first) sample with an image id.

        It is found by its name, which in SA-1B has the id: `sa_5.jpg`, or `sa_5.png` and so on if
        there is no such JPEG; its record is read, and no other. Raises UnknownName if there is no
        image of that name or its record has another id, and as `info` does.
        """
        image_id = whole_number("image_id", image_id, -(2**63), 2**63 - 1)
        for ending in IMAGE_ENDINGS:
            name = f"sa_{image_id}.{ending}"
            rows = [
                first_row + np.flatnonzero(tar.pairs["file_name"] == name.encode())
                for first_row, tar in zip(self._first_row[:-1], self._indices, strict=True)
            ]
            positions = np.flatnonzero(np.isin(self._rows, np.concatenate(rows)))
            if len(positions):
                break
        else:
            raise UnknownName(
                f"no image sa_{image_id}.jpg in {self!r}; see `ds.metadata(i).image_id`"
            )
        index = int(positions[0])
        pair = self.metadata(index)
        if pair.image_id != image_id:
            raise UnknownName(f"{pair.path}: the record of {name} has image_id {pair.image_id}")
        return index

    def _decoded(self, row: int) -> SampleArrays:
        """The rows of a sample, from a cache or from its pair."""
        if self._memory is None:
            return self._decoded_or_on_disk(row)
        rows = self._memory.get(row)
        if rows is None:
            rows = self._decoded_or_on_disk(row)
            self._memory.put(row, rows)
        return rows

    def _decoded_or_on_disk(self, row: int) -> SampleArrays:
        """The rows of a sample, from the cache in a folder or from its pair."""
        number, local = self._locate(row)
        tar = self._indices[number]
        key = ""
        if self._disk is not None:
            key = f"{self._samples_key}-{tar.key(local)}"
            stored = self._disk.get(key)
            if stored is not None:
                return stored
        jpeg = tar.read(local, "jpeg")
        json = tar.read(local, "json")
        try:
            rows = self._decoder.rows(tar.source, tar.file_name(local), jpeg, json)
        except ReadError as error:
            error.row = row
            raise
        assert rows is not None, "only empty='drop' drops pairs, and that is refused"
        if self._disk is not None:
            self._disk.put(key, rows)
        return rows

    @cached_property
    def _samples_key(self) -> str:
        """Digest of all that a sample depends on besides its bytes, 16 hex digits."""
        options = asdict(self.pack_options)
        for name in _NOT_OF_SAMPLES:
            del options[name]
        pil = pil_in_force()
        decoders = [__version__, version("simplejpeg")]
        return xxhash.xxh3_64_hexdigest(repr((options, decoders, pil and pil.core_sha256)).encode())

    # ------------------------------------------------------------------------------ what there is

    def metadata(self, index: int) -> PairInfo:
        """Tar, member, sizes and counts of a sample, from its record: no pixels are decoded.

        Raises IndexError as `ds[index]` does, ReadError if the record cannot be used, SourceError
        if the tar cannot be read.
        """
        row = self._row(index)
        number, local = self._locate(row)
        tar = self._indices[number]
        json = tar.read(local, "json")
        size = int(tar.pairs["jpeg_bytes"][local])
        return self._decoder.info(tar.source, row, local, tar.file_name(local), size, json)

    def _locate(self, row: int) -> tuple[int, int]:
        """Number of the source, and of the pair in it."""
        number = int(np.searchsorted(self._first_row, row, "right")) - 1
        return number, row - int(self._first_row[number])

    @property
    def sources(self) -> list[Source]:
        """The tars and folders, in the order of their samples."""
        return [index.source for index in self._indices]

    @property
    def rejects(self) -> list[tuple[str, Reject]]:
        """(name of the source, Reject) of members that are named like half of a pair and are not.

        Those that cannot be decoded are not among them: nothing is decoded before it is asked for.
        """
        return [(index.source.name, reject) for index in self._indices for reject in index.rejects]

    def __repr__(self) -> str:
        whole = int(self._first_row[-1])
        samples = counted(whole, "sample")
        if len(self) < whole:
            samples = f"{len(self):,} of {samples}"
        sources = counted(len(self._indices), "source")
        return f"<TarDataset of {sources}: {samples}, {self.spec.as_text()}>"
