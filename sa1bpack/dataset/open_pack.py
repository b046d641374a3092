"""`sa1bpack.open`: a pack, or several, opened as one Dataset."""

import dataclasses
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from sa1bpack.arguments import bytes_of, choice
from sa1bpack.dataset.dataset import OTHER_NAMES, Dataset
from sa1bpack.dataset.layouts import check_layouts
from sa1bpack.dataset.pack import DUPLICATES, Pack
from sa1bpack.dataset.pack_folder import open_folders
from sa1bpack.dataset.places import Fetching, origins_of
from sa1bpack.dataset.sample_spec import SampleOptions
from sa1bpack.errors import OptionError
from sa1bpack.format.manifest import completeness_of, folder_to_write
from sa1bpack.format.selection import is_selection, packs_of
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.options import LAYOUTS, group_of
from sa1bpack.wording import brief

if TYPE_CHECKING:
    from sa1bpack.option_keywords import SampleKeywords

# What may be fetched of packs that are named by URL.
FETCHES = ("rows", "shards")

_log = logging.getLogger("sa1bpack")


@checks_options(**OTHER_NAMES)
@takes_options(SampleOptions)
def open(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    duplicates: str = "error",
    layouts: str = "equal",
    cache_dir: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    fetch: str | None = None,
    **options: Unpack["SampleKeywords"],
) -> Dataset:
    """Open a pack, or several as one, for training.

    Thresholds are those of `sa1bpack pack`, by the numbers of the annotation: inclusive, and NaN
    never passes. Samples, batches, columns and `max_masks` count the masks that are left. A sample
    that has none left stays, with no masks: indices do not depend on the rule. To leave such
    samples out, `ds.where(lambda c: c["mask_count"] > 0)`. A dataset with other thresholds has
    another fingerprint, hence other orders, and a state of one does not fit the other.

    `Dataset.with_options` changes the options from `mask_format` on later.

    A transform goes to worker processes with the dataset; spawned ones need it to be picklable.

    An incomplete pack is opened as far as it goes; the log (logger "sa1bpack") has a warning that
    names the counts.

    Args:
        path: folder of the pack; `~` is expanded. Several packs are a list of folders, or a glob
            pattern such as "/data/packs/*"; or the file that `Dataset.save_selection` wrote, which
            is opened with its packs, see docs/training.md. Or a URL, "s3://bucket/pack",
            "gs://bucket/pack", or "file:///mnt/nfs/pack" for a slow file system, see docs/cloud.md.
        duplicates: what becomes of image ids that occur more than once, in one pack or in several.
            "error" raises OptionError. "first" keeps one sample per id, that of the pack that is
            first in the list; of several in one pack, the first. The log and `Dataset.left_out` say
            how many are left out. "all" keeps every sample.
        layouts: what becomes of packs whose layouts differ. "equal" raises OptionError, which says
            what differs, and how to pack alike. "shared" opens them as one dataset of what all of
            them have: their images must be of one size, fit and form of pixels, and there must be
            a form of masks that all have. Numbers of masks that one pack lacks are no keys of
            samples and batches. Masks are the stored bits where all packs have bits of one grid;
            else they are drawn from the exact runs, on the grid of the first pack by the sampling
            "area", unless `mask_size` and `mask_sampling` say otherwise.
        cache_dir: a folder on a local disk for packs and features that are named by URL: their
            shards are fetched into it, whole, once, and shared by all processes of the machine.
            None: rows are fetched when they are needed, and not kept, but for indexes and small
            arrays, a hundredth of a pack, which are in a folder of the user in the system's
            temporary folder.
        cache_size: bytes that the cache may take, or a text such as "500 GB"; what was used least
            recently is removed. None: the size with which it was opened last, or four fifths of the
            free disk.
        fetch: what is fetched of packs and features that are named by URL. "rows": the samples
            that are read, when they are read, compared with their checksums; in a `cache_dir` they
            are kept as long as there is room, so that a second epoch is read from the disk.
            "shards": every shard, whole, when a sample of it is first read; with `cache_dir`. None:
            "shards" with a `cache_dir`, "rows" without one.

    Raises:
        FormatError: the folder is not a pack, or its manifest or index is not what the format
            demands. Shards are checked when they are first used.
        EmptyPack: there is no image, or none yet. Of several packs, those are passed over, with a
            warning.
        VersionError: a newer major version of the format.
        OptionError: a value that is not one of the choices, whole shards of a URL without
            `cache_dir`, a pattern that matches nothing, packs that differ in their layout (see
            `layouts`), image ids that occur more than once (see `duplicates`), or a feature that
            lacks the rows of a shard, or has them for other bytes.
        ResourceShortage: the system refuses memory or an open file.
        StoreError: an object store cannot be reached, or refuses.
        MissingPackage: the packages for object stores are not installed: obstore, botocore.

    Examples:
        >>> ds = sa1bpack.open("packed", mask_format="runs", min_area=100)
        >>> ds[0]["run_ends"].dtype, ds.spec_text
        (dtype('int32'), 'pad 1024 rgb, runs 256 area, stored coordinates')
    """
    sample_options = group_of(SampleOptions, options)
    choice("duplicates", duplicates, DUPLICATES)
    choice("layouts", layouts, LAYOUTS)
    limit = None if cache_size is None else bytes_of("cache_size", cache_size)
    cache = None if cache_dir is None else folder_to_write("cache_dir", cache_dir)
    fetching = Fetching(cache, limit, _what_to_fetch(fetch, cache))
    origins, empty = origins_of("path", path, fetching)
    selections = [origin for origin in origins if isinstance(origin, Path) and is_selection(origin)]
    if selections:
        if len(origins) > 1:
            raise OptionError(f"path is a list with the selection {selections[0]}: open it alone")
        packs, recorded = packs_of(selections[0])
        if duplicates == "error":
            duplicates = recorded
        origins, empty = origins_of("path", packs, fetching)
    cached = cache_dir is not None or cache_size is not None or fetch is not None
    if cached and origins and all(isinstance(origin, Path) for origin in origins):
        raise OptionError(
            f"cache_dir is {brief(cache_dir)}, cache_size {brief(cache_size)} and fetch "
            f"{brief(fetch)}, but {origins[0]} is read where it is: leave them out, or name a slow "
            "folder by a URL, file:///mnt/nfs/pack"
        )
    folders = open_folders(origins, empty)
    check_layouts({folder.root: folder.manifest for folder in folders}, layouts)
    pack = Pack(folders, duplicates)
    for folder in folders:
        if not folder.manifest.complete:
            _log.warning("%s: %s", folder.name, completeness_of(folder.root, folder.manifest))
    ds = Dataset(pack, pack.rows, dataclasses.replace(sample_options, features=()))
    if selections:
        ds = ds.load_selection(selections[0])
    if sample_options.features:
        ds = ds.with_options(features=sample_options.features)
    return ds


def _what_to_fetch(fetch: str | None, cache: Path | None) -> str:
    """What is fetched of packs at URLs. Raises OptionError."""
    if fetch is None:
        return "rows" if cache is None else "shards"
    choice("fetch", fetch, FETCHES)
    if fetch == "shards" and cache is None:
        raise OptionError(
            "fetch is 'shards', which are kept in a cache: name its folder, "
            "cache_dir='/folder/on/a/local/disk', or leave fetch out to fetch what is read alone"
        )
    return fetch
