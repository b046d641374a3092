"""The batches of one epoch of exact `Buckets`, each of which has samples of one class."""

import numpy as np

from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.indices import SampleClass
from sa1bpack.loading.order.classes import ClassCut, ClassEpoch
from sa1bpack.loading.order.epoch import EpochBatches, Position
from sa1bpack.loading.order.orders import BUCKETS
from sa1bpack.loading.order.rules import RANKS, BatchRules


class ClassBatches(EpochBatches):
    """`EpochBatches` of samples that have classes.

    A position in the epoch is that of the order, and `start` counts samples in the order of the
    batches.
    """

    def __init__(self, rules: BatchRules, epoch: int = 0, start: int = 0):
        """The batches from a place between two of them on.

        Raises OptionError if `start` is not between two batches.
        """
        assert isinstance(rules.cut, ClassCut), "only exact buckets have classes"
        assert rules.buckets is not None
        self.rules = rules
        self.epoch = epoch
        self.start = start
        self._buckets = rules.buckets
        self._cut = rules.cut
        of_epoch = rules.cut.of_epoch(epoch)
        number = int(np.searchsorted(of_epoch.before, start))
        if start > of_epoch.before[-1] or of_epoch.before[number] != start:
            raise OptionError(
                f"{start} samples of epoch {epoch} are no place between two of its batches: a "
                "state with exact buckets resumes with the same batch size of all ranks together"
            )
        last = len(of_epoch.classes)
        if rules.drop_last:
            last = of_epoch.full
        self.first = number
        self._count = max(0, last - number)

    @property
    def _of_epoch(self) -> ClassEpoch:
        return self._cut.of_epoch(self.epoch)

    def _class_of(self, number: int) -> SampleClass:
        return self._cut.classes.of(int(self._of_epoch.classes[number]))

    def position_after(self, k: int) -> Position:
        if k == len(self):
            return Position(self.epoch + 1, 0)
        return Position(self.epoch, int(self._of_epoch.before[self.first + k]))

    @property
    def parts(self) -> int:
        """Batches of a rank's size that these are cut into, several of which may be smaller."""
        size = self._cut.size(self.epoch, 0) // self.rules.world_size
        numbers = range(self.first, self.first + len(self))
        return sum(-(-self.samples_of_all_ranks(number) // size) for number in numbers)

    def samples_of_all_ranks(self, number: int) -> int:
        """Samples of a batch of all ranks, by its number, with those that fill it up."""
        rules = self.rules
        of_epoch = self._of_epoch
        samples = int(of_epoch.ends[number] - of_epoch.begins[number])
        if rules.pad_last is True:
            return self._cut.size(self.epoch, number)
        if rules.pad_last == RANKS:
            return max(samples, rules.world_size)
        return samples

    def _samples(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """int64 (n,) each: the samples of a batch of all ranks, and their positions in the epoch.

        What fills up a batch has positions behind the epoch's end: those of its class's first
        samples, an epoch later.
        """
        of_epoch = self._of_epoch
        rows = np.arange(of_epoch.begins[number], of_epoch.ends[number])
        lap = np.zeros(len(rows), np.int64)
        missing = self.samples_of_all_ranks(number) - len(rows)
        if missing:
            number_of_class = of_epoch.classes[number]
            class_begin = of_epoch.class_begins[number_of_class]
            class_count = of_epoch.class_begins[number_of_class + 1] - class_begin
            added = np.arange(missing)
            rows = np.concatenate([rows, class_begin + added % class_count])
            lap = np.concatenate([lap, 1 + added // class_count])
        samples = of_epoch.samples[rows].astype(np.int64)
        positions = rows
        if of_epoch.positions is not None:
            positions = of_epoch.positions[rows].astype(np.int64)
        positions = positions + lap * len(self.rules.order)
        word = int(self._key().words(BUCKETS, number, 1)[0])
        arrangement = self._buckets.arranged(samples, word)
        return samples[arrangement], positions[arrangement]

    def _draws(self, number: int, positions: np.ndarray) -> np.ndarray | None:
        """int64 (n,): `_repetitions`, if the dataset has each row once; None: all are 0."""
        order = self.rules.order
        if not order.repeats and positions.max() < len(order):
            return None
        lap, within = np.divmod(positions, len(order))
        if not order.repeats:
            return lap

        def repetitions() -> np.ndarray:
            return order.repetitions(self.epoch, 0, len(order))

        of_epoch = self.rules.repetitions.get(self.epoch, repetitions)
        draws: np.ndarray = of_epoch[within] + lap * len(order)
        return draws


def batches_from(rules: BatchRules, epoch: int = 0, start: int = 0) -> EpochBatches:
    """The batches of an epoch from its sample `start` on.

    Raises OptionError if a rank's share of the last batch would be empty, or `start` is not between
    two batches of classes.
    """
    if isinstance(rules.cut, ClassCut):
        return ClassBatches(rules, epoch, start)
    return EpochBatches(rules, epoch, start)


def check_full_classes(rules: BatchRules) -> None:
    """Raise LoaderError for short batches of classes, of batches that Accelerate deals out.

    It takes a short batch for the last one.
    """
    is_full = rules.drop_last or rules.pad_last is True
    if isinstance(rules.cut, ClassCut) and not is_full:
        raise LoaderError(
            "exact Buckets end each class with a batch that may be short, in mid-epoch, and "
            "Accelerate on several processes leaves such batches out, or fills them up with "
            "samples of other classes: choose drop_last=True or pad_last=True"
        )
