"""Buckets: samples that are alike come in one batch, so that padding wastes less."""

from typing import Any

import numpy as np
import xxhash

from sa1bpack.arguments import choice, flag, numbers_of, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.loading.order.classes import (
    MAX_CLASSES,
    SampleClasses,
    Sides,
    canvases_of,
    nearest,
    parse_aspects,
)
from sa1bpack.loading.order.orders import Latest, described
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

    With `exact`, there are no windows: every batch has samples of one class alone, of equal keys or
    of one of the `aspects`. Each class is cut into batches in the order of its samples, a batch
    comes where its last sample does, and the samples of each class that do not fill a batch come
    last: a short batch for each class, or what `drop_last` and `pad_last` make of it.

    Attributes:
        keys: (n,), values by which the samples of the dataset are sorted.
        counts: int32 (n,), their numbers of masks.
        batches: size of a window.
        exact: every batch has samples of one class.
        aspects: tuple of float, height / width of each class; None: not given.
        sizes: tuple of (height, width) of each class, if `aspects` has them; else None.
        canvases: with `exact` and `aspects`, tuple of the (height, width) of each class on which a
            loader hands out its images; else None.
        class_counts: int64 (k,), with `exact`, the samples of each class; else None.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> buckets = sa1bpack.Buckets(ds, "mask_count", batches=256)
        >>> order = sa1bpack.ShuffleOrder(ds)
        >>> batches = sa1bpack.OrderedBatches(order, 2, bucket_by=buckets)
        >>> [len(batch) for batch in batches]
        [2, 1]
        >>> buckets = sa1bpack.Buckets(ds, aspects=[0.6, 1.0, 1.5], exact=True)
        >>> buckets.class_counts.tolist(), buckets.canvases
        ([2, 0, 1], ((704, 1024), (16, 16), (1024, 688)))
    """

    def __init__(
        self,
        ds: Any,
        by: str | np.ndarray | None = None,
        *,
        batches: int = 64,
        aspects: Any = None,
        exact: bool = False,
        multiple: int = 16,
    ):
        """
        Args:
            ds: the dataset of the order.
            by: "mask_count", or "aspect": height / width of the stored image, and among equals the
                mask count; or an array with one finite number per sample. None: "mask_count", or
                the class of `aspects`.
            batches: size of a window, 1 or more. A larger one wastes less, and mixes less. With
                `exact` it has no meaning.
            aspects: in place of `by`, classes of height / width of the source image: a list of
                ratios; a list of sizes (height, width) in pixels, which a `Pipeline` can give to
                the images of each class; or a dict from ratio to size. The class of an image is
                that whose ratio differs least from its own.
            exact: every batch has samples of one class: of one key, or of one of the aspects.
            multiple: sides of the canvas of a class are multiples of this, up to the side of the
                pack's images.

        Raises:
            OptionError: a value that cannot be used.
        """
        ds = described(ds)
        self.exact = flag("exact", exact)
        multiple = whole_number("multiple", multiple, 1, 2**14)
        self.batches = whole_number("batches", batches, 1, MAX_WINDOW)
        self.fingerprint = ds.fingerprint
        # Samples of a damaged shard cannot be read, wherever they are: a loader drops them, or ends
        # with their error.
        self.counts = ds.column("mask_count", missing=0).astype(np.int32)
        self.aspects: tuple[float, ...] | None = None
        self.sizes: tuple[Sides, ...] | None = None
        self.classes: SampleClasses | None = None
        if aspects is not None:
            if by is not None:
                raise OptionError(f"by is {brief(by)}, and aspects are given: choose one of them")
            self._set_aspects(ds, aspects, multiple)
            return
        if by is None:
            by = "mask_count"
        if np.ndim(by) == 0:
            self.by = choice("bucket_by", by, BY)
            self.keys = self.counts
            if by == "aspect":
                size = ds.column("size", missing=1)
                self.keys = (size[:, 2] / size[:, 3]).astype(np.float32)
        else:
            self.keys = numbers_of("bucket_by", by, len(ds), "sample")
            digest = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(self.keys).tobytes())
            self.by = f"{self.keys.dtype} {digest}"
        if self.exact:
            self._set_classes_of_keys()

    def _set_aspects(self, ds: Any, aspects: Any, multiple: int) -> None:
        """Set the classes of aspects."""
        ratios, self.sizes = parse_aspects(aspects)
        self.aspects = tuple(ratios.tolist())
        size = ds.column("size", missing=1)
        self.keys = nearest(ratios, size[:, 0] / size[:, 1])
        self.by = f"{len(ratios)} aspects"
        if not self.exact:
            digest = xxhash.xxh3_64_hexdigest(self.keys.astype("<u2").tobytes())
            self.by += f" {digest}"
            return
        names = tuple(f"{ratio:.4g}" for ratio in self.aspects)
        side = ds.layout.image_size
        canvases = canvases_of(self.keys, size[:, 2:], len(ratios), multiple, side)
        self.classes = SampleClasses(self.keys, names, canvases, Latest())

    def _set_classes_of_keys(self) -> None:
        """Set the classes of samples with equal keys."""
        if self.by == "aspect":
            raise OptionError(
                'by is "aspect", of which photographs have any: with exact=True, say what the '
                "classes are by aspects=[...]"
            )
        values, numbers = np.unique(self.keys, return_inverse=True)
        if len(values) > MAX_CLASSES:
            raise OptionError(
                f"the keys have {len(values):,} values, but with exact=True each is a class, and "
                f"there may be {MAX_CLASSES:,}"
            )
        names = tuple(map(str, values.tolist()))
        self.classes = SampleClasses(numbers.astype(np.uint16), names, None, Latest())

    @property
    def class_counts(self) -> np.ndarray | None:
        """int64 (k,), the samples of each class, with `exact`."""
        if self.classes is None:
            return None
        return self.classes.counts.copy()

    @property
    def canvases(self) -> tuple[Sides, ...] | None:
        """(height, width) of the canvas of each class, with `exact` and `aspects`."""
        if self.classes is None:
            return None
        return self.classes.canvases

    def as_text(self) -> str:
        """What decides the batches, such as "mask_count, windows of 64 batches"."""
        if self.classes is not None:
            return f"{self.by}, {self.classes.text}"
        return f"{self.by}, windows of {self.batches} batches"

    def __repr__(self) -> str:
        return f"<Buckets by {self.as_text()}, {len(self.keys):,} samples>"

    def order(self, samples: np.ndarray) -> np.ndarray:
        """int64 (k,): the positions that sort int64 (k,) samples; equal ones keep their order."""
        sorting: np.ndarray = np.lexsort((self.counts[samples], self.keys[samples]))
        return sorting

    def arranged(self, samples: np.ndarray, word: int) -> np.ndarray:
        """The positions of int64 (k,) samples of a batch, whose contiguous parts are then alike.

        Args:
            word: random word: decides which part is the fullest, if they are not equal.
        """
        ranked = np.argsort(self.counts[samples], kind="stable")
        count = len(ranked)
        pairs = np.roll(_spread(count // 2), int(word % max(1, count // 2)))
        places = np.stack([pairs, count - 1 - pairs], 1).ravel()
        if count % 2:
            places = np.append(places, count // 2)
        arrangement: np.ndarray = ranked[places]
        return arrangement


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
