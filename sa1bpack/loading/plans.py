"""The memory, threads or workers, and files of a loader, in numbers."""

from dataclasses import dataclass

from sa1bpack.batch.mask_choice import MaskChoice
from sa1bpack.batch.spec import BatchSpec, Regions, expected_runs
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.wording import counted, size_text


@dataclass(frozen=True)
class LoadingPlan:
    """What a Loader or a DataLoader will hold, known before anything is allocated.

    samples       samples of the largest batch of this rank
    most_masks    masks per sample that there is room for
    batch_bytes   of the largest batch; with runs of a usual one, and a buffer grows where that is
                  not enough
    batches       that exist at once: the buffers of a Loader; of a DataLoader, those that workers
                  make and have made ahead, one that is being pinned, and the consumer's. Each batch
                  beyond that which the consumer keeps takes `batch_bytes` more
    host_bytes    all of them together. Memory that is not pinned is taken up only as it is used
    pinned_bytes  the part of it that is pinned, rounded up to powers of two, as torch does
    shared_bytes  the part of it that is shared memory (/dev/shm), which workers send batches in
    device_bytes  at most so much on the device: the batches as they are sent, and what is made
                  there of two (unpacked masks, RGB of planes), while the consumer keeps no more
                  than one batch; 0 on a CPU
    threads       that fill the buffers of a Loader
    workers       processes of a DataLoader
    files         files held open at most by a Loader
    """

    samples: int
    most_masks: int
    batch_bytes: int
    batches: int
    host_bytes: int
    pinned_bytes: int = 0
    shared_bytes: int = 0
    device_bytes: int = 0
    threads: int = 0
    workers: int = 0
    files: int = 0

    def __str__(self) -> str:
        text = (
            f"{self.batches:,} batches at once, of up to "
            f"{counted(self.samples, 'sample')} with up to {counted(self.most_masks, 'mask')}, "
            f"{size_text(self.batch_bytes)} each: {size_text(self.host_bytes)} of host memory"
        )
        for nbytes, what in (
            (self.pinned_bytes, "of it pinned"),
            (self.shared_bytes, "of it shared"),
            (self.device_bytes, "at most on the device"),
        ):
            text += f", {size_text(nbytes)} {what}" if nbytes else ""
        text += f", and {size_text(self.batch_bytes)} for each further batch that you keep"
        for number, what in ((self.threads, "thread"), (self.workers, "worker")):
            text += f"; {counted(number, what)}" if number else ""
        return text + (f", up to {counted(self.files, 'open file')}" if self.files else "")


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that there can be, in a buffer.

    samples, most_masks, nbytes, regions  see LoadingPlan
    """

    samples: int
    most_masks: int
    nbytes: int
    regions: Regions

    @classmethod
    def of(
        cls, ds: Dataset, spec: BatchSpec, samples: int, choice: MaskChoice, capacity: int | None
    ) -> "LargestBatch":
        """Of batches of that many samples of a dataset.

        capacity  masks per sample in padded arrays; None: as many as the fullest sample has
        """
        most = int(choice.counts(ds.column("mask_count")).max(initial=0))
        runs = expected_runs(ds, samples * most)
        room = most if capacity is None else capacity
        regions, nbytes = spec.regions(samples, room, samples * most, runs)
        return cls(samples, most, nbytes, regions)
