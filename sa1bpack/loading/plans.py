"""The memory, threads and files of a Loader, in numbers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LoaderPlan:
    """What a Loader will hold, known before anything is allocated.

    samples       samples of the largest batch of this rank
    most_masks    masks of a sample that there is room for
    slots         buffers: `ahead` + 2
    slot_bytes    bytes of one, enough for any batch; with masks="runs" for a usual one, and a slot
                  grows where that is not enough
    pinned        whether they are pinned; then they are rounded up to a power of two, as torch does
    host_bytes    all buffers together. What is not pinned takes up memory only as it is used
    device_bytes  at most so much on the device: `ahead` + 2 batches as they travel, and what is
                  made there of two (unpacked masks, RGB of planes), while the consumer keeps no
                  more than one batch; 0 on a CPU
    threads       that fill them
    files         files held open at most
    """

    samples: int
    most_masks: int
    slots: int
    slot_bytes: int
    pinned: bool
    host_bytes: int
    device_bytes: int
    threads: int
    files: int

    def __str__(self) -> str:
        kind = "pinned host memory" if self.pinned else "host memory"
        text = (
            f"{self.slots} buffers of {self.slot_bytes / 1e6:.1f} MB for batches of {self.samples} "
            f"samples with up to {self.most_masks} masks: {self.host_bytes / 1e6:.1f} MB of {kind}"
        )
        if self.device_bytes:
            text += f", up to {self.device_bytes / 1e6:.1f} MB on the device"
        return f"{text}; {self.threads} threads, up to {self.files} open files"
