"""Batches of samples that are alike, so that padding them to one shape wastes less."""

from typing import Any

import numpy as np
import xxhash

from sa1bpack.arguments import (
    checks_options,
    choice,
    numbers_of,
    select_nested,
    torch_subset,
    whole_number,
)
from sa1bpack.errors import OptionError
from sa1bpack.wording import brief

BY = ("mask_count", "aspect")
MAX_WINDOW = 2**20


@checks_options
class Buckets:
    """The key by which samples are sorted, and the number of batches that are sorted together.

    A window of `batches` successive batches of the order is sorted, and cut into batches again,
    which come in random order. So a sample moves by less than a window, and the batches of an
    epoch remain a pure function of (seed, epoch, fingerprint). The samples that do not fill a batch
    at the end of an epoch are not sorted: which samples they are remains as random as the order.

    Within a batch the samples are arranged so that contiguous parts, the ranks' and those of
    gradient accumulation, have about the same number of masks: the fullest sample stands beside the
    emptiest, the next fullest beside the next emptiest, and so on.

    Attributes:
        keys: (n,), what the samples of the dataset are sorted by.
        counts: int32 (n,), their masks.
        batches: the size of a window.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> buckets = sa1bpack.Buckets(ds, "mask_count", batches=256)
        >>> order = sa1bpack.ShuffleOrder(ds)
        >>> batches = sa1bpack.OrderedBatches(order, 2, bucket_by=buckets)
        >>> [len(batch) for batch in batches]
        [2, 1]
    """

    def __init__(self, ds: Any, by: str | np.ndarray = "mask_count", *, batches: int = 64):
        """
        Args:
            ds: the dataset of the order.
            by: "mask_count", or "aspect": height / width of the stored image, and among equals the
                mask count; or an array with one finite number per sample.
            batches: the size of a window, 1 or more. A larger one wastes less, and mixes less.

        Raises:
            OptionError: a value that cannot be used; "aspect" where all images are squashed into
                squares.
        """
        ds, selections = torch_subset(ds)
        ds = select_nested(ds, selections)
        self.batches = whole_number("batches", batches, 1, MAX_WINDOW)
        if not (hasattr(ds, "fingerprint") and hasattr(ds, "column")):
            raise OptionError(
                f"buckets are of a dataset, not of {brief(ds)}: choose one of sa1bpack.open, or a "
                "torch Subset of one"
            )
        self.fingerprint = ds.fingerprint
        self.counts = ds.column("mask_count").astype(np.int32)
        if np.ndim(by) == 0:
            self.by = choice("bucket_by", by, BY)
            self.keys = self.counts if by == "mask_count" else self._ratios(ds)
        else:
            self.keys = numbers_of("bucket_by", by, len(ds), "sample")
            digest = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(self.keys).tobytes())
            self.by = f"{self.keys.dtype} {digest}"

    def _ratios(self, ds: Any) -> np.ndarray:
        if ds.layout.fit == "squash":
            raise OptionError(
                "bucket_by is 'aspect', but this pack's images are squashed into squares (fit "
                "squash), all of one shape: use bucket_by='mask_count'"
            )
        size = ds.column("size")
        return (size[:, 2] / size[:, 3]).astype(np.float32)

    def as_text(self) -> str:
        """The key and the window, which decide the batches: "mask_count, windows of 64 batches"."""
        return f"{self.by}, windows of {self.batches} batches"

    def __repr__(self) -> str:
        return f"<Buckets by {self.as_text()}, {len(self.keys):,} samples>"

    def order(self, samples: np.ndarray) -> np.ndarray:
        """int64 (k,): the positions that sort int64 (k,) samples; equal ones keep their order."""
        return np.lexsort((self.counts[samples], self.keys[samples]))

    def arranged(self, samples: np.ndarray, word: int) -> np.ndarray:
        """The samples of a batch, int64 (k,), in an order whose contiguous parts are alike.

        word  random: decides which part is the fullest, if they are not equal
        """
        ranked = samples[np.argsort(self.counts[samples], kind="stable")]
        count = len(ranked)
        pairs = np.roll(_spread(count // 2), int(word % max(1, count // 2)))
        places = np.stack([pairs, count - 1 - pairs], 1).ravel()
        if count % 2:
            places = np.append(places, count // 2)
        return ranked[places]


def _spread(count: int) -> np.ndarray:
    """int64 (count,): range(count), with the numbers of any stretch spread over all of it.

    By their bits, reversed (van der Corput's sequence).
    """
    bits = max(count - 1, 0).bit_length()
    numbers = np.arange(1 << bits)
    reverse = np.zeros_like(numbers)
    for bit in range(bits):
        reverse |= ((numbers >> bit) & 1) << (bits - 1 - bit)
    return reverse[reverse < count]
