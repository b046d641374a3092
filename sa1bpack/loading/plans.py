"""The needs of a loader, and how it reads: memory, threads or workers, and files, in numbers."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.shards import ArrayRef
from sa1bpack.disk.aio import CONTEXTS
from sa1bpack.disk.direct import direct_obstacle
from sa1bpack.environment import available_cpus
from sa1bpack.loading.batch.mask_choice import MaskSchedule
from sa1bpack.loading.batch.regions import Regions
from sa1bpack.loading.batch.spec import BatchSpec
from sa1bpack.loading.order.batches import OrderedBatches
from sa1bpack.wording import counted, size_text

# Small batches are joined up to so many bytes, and to so many batches: what a batch costs besides
# its bytes is divided by their number.
_JOINED_BYTES = 32 << 20
_MOST_JOINED = 32

# What a plan without a cap compares with. SA-1B has about 100 masks per image, and some images have
# more than 400, which a small part of it may not show.
USUAL_CAP = 64
MANY_MASKS = 400


@dataclass(frozen=True)
class LoadingPlan:
    """The resources that a Loader or a DataLoader will take, known before any is allocated.

    Attributes:
        samples: number of samples of this rank's largest batch.
        most_masks: number of masks that a sample of a batch can have at most.
        capacity: masks per sample in its padded arrays.
        batch_bytes: bytes of the largest batch; with runs, or features with rows of any length, of
            a typical batch: a buffer grows if that is not enough.
        batches: batches that exist at once: the buffers of a Loader; for a DataLoader, those in
            progress or ready in workers, one that is being pinned, and the consumer's. Each further
            batch that the consumer keeps takes `batch_bytes` more.
        together: small batches without masks share a buffer, so many of them at most, and are read
            and handed over as one: one of them that is kept keeps the memory of all. 1 for others.
        host_bytes: bytes of all of them. Memory that is not pinned is committed only as it is used.
        pinned_bytes: the part of host_bytes that is pinned: all buffers of a Loader for a device;
            of a DataLoader, two batches, whose tensors torch rounds up to powers of two.
        shared_bytes: the part of host_bytes in shared memory (/dev/shm), through which workers
            send.
        device_bytes: at most this much on the device while the consumer keeps at most one batch:
            the batches as sent, the arrays made there of two of them (unpacked masks, RGB from
            planes, relations), and what making them takes; with runs, for typical batches. In
            addition, a batch that was dropped takes memory until the device has reached that point:
            as many of them as the program runs ahead of the device. 0 on a CPU.
        threads: number of threads that fill the buffers of a Loader. In addition to `host_bytes`,
            each takes scratch memory for up to eight samples as they are stored, if they are not
            read straight to their place: 24 MiB for photographs of 1024 pixels in fit="native".
        workers: number of processes of a DataLoader.
        io: how a Loader reads what is not in the page cache, and why.
        near: on a machine with several NUMA nodes, where the threads and buffers of a Loader for a
            device are, and why.
        uncapped: without max_masks: which image decides how large a batch gets, and what a batch
            takes of SA-1B's images with 400 masks, and with a cap.
        ahead_bytes: of packs at URLs whose rows are fetched, the most bytes that are asked for
            ahead, besides `host_bytes`; 0 for others.
        epoch_requests, epoch_bytes: requests, and bytes, that an epoch over all samples, of all
            ranks, makes for rows of such packs at most: neighbours share requests.
        schedules: what changes from epoch to epoch or from step to step; the figures are those of
            the batch that takes the most bytes, of all epochs.
    """

    samples: int
    most_masks: int
    capacity: int
    batch_bytes: int
    batches: int = 0
    together: int = 1
    host_bytes: int = 0
    pinned_bytes: int = 0
    shared_bytes: int = 0
    device_bytes: int = 0
    threads: int = 0
    workers: int = 0
    io: str = ""
    near: str = ""
    uncapped: str = ""
    ahead_bytes: int = 0
    epoch_requests: int = 0
    epoch_bytes: int = 0
    schedules: str = ""

    def __str__(self) -> str:
        shares = (
            (self.pinned_bytes, "of it pinned"),
            (self.shared_bytes, "of it shared"),
            (self.device_bytes, "at most on the device"),
        )
        notes = []
        for count, noun in ((self.threads, "thread"), (self.workers, "worker")):
            if count:
                notes.append(counted(count, noun))
        notes += [self.io, self.near, self.uncapped]
        if self.schedules:
            notes.append(f"the largest batch with {self.schedules}")
        memory = (
            f"{counted(self.batches, 'batch')} at once, of up to "
            f"{counted(self.samples, 'sample')} with up to {counted(self.most_masks, 'mask')}, "
            f"{size_text(self.batch_bytes)} each: {size_text(self.host_bytes)} of host memory",
            *(f"{size_text(nbytes)} {share}" for nbytes, share in shares if nbytes),
            f"and {size_text(self.batch_bytes)} for each further batch that you keep",
        )
        if self.ahead_bytes:
            notes.append(
                f"up to {size_text(self.ahead_bytes)} are asked for ahead; an epoch fetches up to "
                f"{size_text(self.epoch_bytes)} in {counted(self.epoch_requests, 'request')}"
            )
        if self.together > 1:
            notes.append(f"up to {self.together} batches share their memory")
        return "; ".join([", ".join(memory), *filter(None, notes)])


def regions_of(
    ds: Dataset, spec: BatchSpec, samples: int, most: int, capacity: int
) -> tuple[Regions, int]:
    """The regions of a batch of `samples` with `most` masks each, and their bytes.

    Padded arrays have `capacity` rows per sample; a batch has as many runs as its masks usually
    have, by the average of the pack, and ragged rows of features have the average of some shards,
    twice that where they are padded.
    """
    total = samples * most
    masks = 0
    runs = 0
    for shard in ds.manifest.shards:
        masks += shard.masks
        runs += shard.runs
    items = {}
    for feature in spec.batch_features:
        mean = ds.pack.features[feature.number].mean_items
        rows = total if feature.per_mask else samples
        items[feature.spec.name] = ceil(2 * mean if feature.pads_items else rows * mean)
    typical_runs = -(-total * runs // max(masks, 1))
    return spec.regions(samples, capacity, total, typical_runs, items=items)


def largest_batch(
    ds: Dataset, spec: BatchSpec, ordered: OrderedBatches, masks: MaskSchedule
) -> LoadingPlan:
    """The part of any loader's plan that follows from its largest batch, of any epoch."""
    rules = ordered.current.rules
    sizes = rules.cut.sizes
    schedules = [*masks.schedules]
    uncapped = ""
    candidates = []
    for size, cap in masks.with_sizes(sizes):
        most = ds.most_masks if spec.chosen.of_masks else 0
        if cap is not None:
            most = min(most, cap)
        capacity = cap if masks.pads and cap is not None else most
        samples = rules.most_per_rank(size)
        _, nbytes = regions_of(ds, spec, samples, most, capacity)
        candidates.append((nbytes, samples, most, capacity))
    nbytes, samples, most, capacity = max(candidates)
    if not sizes.constant:
        schedules.insert(0, ("batch_size", sizes))
    if masks.unlimited and spec.chosen.of_masks:
        _, capped = regions_of(ds, spec, samples, USUAL_CAP, USUAL_CAP)
        uncapped = (
            f"without max_masks the image with the most masks, {most:,}, decides (some of SA-1B "
            f"have more than {MANY_MASKS}): max_masks={USUAL_CAP} takes {size_text(capped)} each"
        )
    return LoadingPlan(
        samples=samples,
        most_masks=most,
        capacity=capacity,
        batch_bytes=nbytes,
        uncapped=uncapped,
        schedules=", ".join(f"{name}={schedule}" for name, schedule in schedules),
    )


def with_fetching(plan: LoadingPlan, ds: Dataset, chosen: ChosenFields) -> LoadingPlan:
    """A plan with what is fetched in an epoch, if rows of the dataset are."""
    pack = ds.pack
    if not pack.fetches_rows:
        return plan
    if not pack.shard_sources:  # features alone are at URLs
        chosen = replace(chosen, images=False, masks=False, of_shards=False)
    arrays = sum(feature.spec.name in chosen.features for feature in pack.features)
    if chosen.images:
        arrays += 1
    if chosen.masks:
        arrays += len({"mask_bits", "run_ends"} & ds.layout.array_names)
    return replace(
        plan,
        ahead_bytes=max(source.most_ahead for source in pack.sources),
        epoch_requests=len(ds) * arrays,
        epoch_bytes=dataset_bytes(ds, chosen),
    )


def joined_batches(spec: BatchSpec, batch_bytes: int) -> int:
    """The batches of so many bytes that share a buffer; 1: they do not."""
    if not spec.joins:
        return 1
    return max(1, min(_JOINED_BYTES // max(batch_bytes, 1), _MOST_JOINED))


def cores() -> int:
    """Cores that this process may use: those of its affinity, shared with its node's other ranks.

    The number of ranks on the node is LOCAL_WORLD_SIZE, which torchrun sets.
    """
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(1, available_cpus() // max(1, ranks))


def dataset_bytes(ds: Dataset, chosen: ChosenFields | None = None) -> int:
    """Bytes of the dataset's samples on disk, by the average of the pack.

    Args:
        ds: the dataset, with the chosen features alone.
        chosen: the fields that are read; None: everything.
    """
    manifest = ds.manifest
    total = sum(shard.bytes for shard in manifest.shards)
    if chosen is not None:
        total -= _left_out_bytes(ds, chosen)
    for feature in ds.pack.features:
        rows = manifest.samples if feature.spec.axis == "sample" else manifest.masks
        total += round(rows * feature.mean_items * feature.spec.row_bytes)
    return total * len(ds) // max(ds.manifest.samples, 1)


def _left_out_bytes(ds: Dataset, chosen: ChosenFields) -> int:
    """Bytes of shards that are not read for the chosen fields: of all, or of images and masks."""
    if not chosen.of_shards:
        return sum(shard.bytes for shard in ds.manifest.shards)
    left_out = set()
    if not chosen.images:
        left_out.add("image")
    if not chosen.masks:
        left_out |= {"mask_bits", "run_ends"}
    total = 0
    for shard in ds.manifest.shards:
        for array, rows in ds.layout.array_rows(shard.lengths).items():
            if array.name in left_out:
                total += rows * array.row_bytes
    return total


def _filled(ds: Dataset, refs: Sequence[ArrayRef]) -> Iterator[tuple[int, Path]]:
    """The number of a shard and a chunk file, for each shard and array that has rows in it."""
    for number, shard in enumerate(ds.manifest.shards):
        for ref in refs:
            if ref.feature >= 0:
                feature = ds.pack.features[ref.feature]
                if shard.samples and feature.mean_items:
                    yield number, feature.shard_folder(number) / feature.spec.values.chunk_path
                continue
            spec = ds.layout.array(ref.name)
            if spec.rows(shard.lengths):
                yield number, ds.pack.folder(number) / spec.chunk_path


def io_obstacle(ds: Dataset, refs: Sequence[ArrayRef]) -> str | None:
    """The obstacle to reading the dataset's files past the page cache; None if there is none.

    Reads a block of the first array that is read, in the first shard that has rows of it. Others
    may lie on other file systems; see `ShardFiles`.
    """
    obstacle = None
    if ds.pack.fetches_rows:
        return "rows of packs at URLs are fetched"
    first = next(_filled(ds, refs), None)
    if first is not None:
        number, path = first
        opened = ds.pack.open(number) if ds.pack.sources else None  # keeps the file there
        obstacle = direct_obstacle(path)
        del opened
    if obstacle is None:
        try:
            CONTEXTS.append(CONTEXTS.take())
        except OSError as error:
            return f"the system refuses Linux AIO ({error.strerror or error})"
    return obstacle
