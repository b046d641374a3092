"""Batches that worker processes send to the loader."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sa1bpack.adapters.collate import Collate
from sa1bpack.adapters.dealing import OrderedIndices
from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.display import Batch, Sample
from sa1bpack.errors import LoaderError, ReadError
from sa1bpack.indices import SampleClass
from sa1bpack.loading.batch.mask_choice import MaskChoice, MaskSchedule
from sa1bpack.loading.options import ReadingOptions
from sa1bpack.loading.order.epoch import OrderedBatch
from sa1bpack.transforms.batch import make_known


class WorkerBatch(Batch):
    """A batch for the loader itself. It has no keys if no sample remained.

    Attributes:
        ordered: which batch it is, and the samples that remained.
        errors: errors of samples dropped from it.
    """

    ordered: OrderedBatch
    errors: list[ReadError]


make_known(WorkerBatch)


class WorkerCollate(Collate):
    """Collate for the samples of a dataset, transforms included.

    Sends the errors of dropped samples with the batch: attributes that a worker sets stay in the
    worker.
    """

    def __init__(
        self,
        ds: Dataset,
        options: ReadingOptions,
        chosen: ChosenFields,
        masks: MaskSchedule,
        repeats: bool,
        spec_text: str,
    ):
        """
        Args:
            ds: the dataset that is read, with the chosen fields alone.
            options: of the loader.
            chosen: the fields of the batches.
            masks: which masks are kept.
            repeats: a sample may come again in an epoch.
            spec_text: of the dataset with all its fields.
        """
        super().__init__(options.mask_layout, sample_spec=ds.spec, relations=options.relations)
        self._spec_text = spec_text
        if options.fields is not None:
            self.limit_to(chosen)
        self.masks = masks
        self.repeats = repeats

    def __call__(self, samples: Sequence[Sample | ReadError]) -> Batch:
        if isinstance(samples, OrderedIndices):
            return self._sent(samples)
        for sample in samples:
            if isinstance(sample, ReadError):
                raise sample
        epoch = getattr(samples, "epoch", self.epoch)
        step = getattr(samples, "step", None)
        if step is None and any(schedule.by == "step" for _, schedule in self.masks.schedules):
            raise LoaderError(
                f"{self.masks.schedules} change by step, but the library that takes these batches "
                "does not pass on which step they are: choose schedules by epoch"
            )
        repetitions = getattr(samples, "repetitions", None)
        sample_class = getattr(samples, "sample_class", None)
        batch = self._repeating(
            samples, self.masks.at(epoch, step), epoch, repetitions, sample_class
        )
        if sample_class is not None:
            batch["sample_class"] = _per_sample(sample_class.number, len(samples))
        batch["epoch"] = _per_sample(epoch, len(samples))
        if step is not None:
            batch["global_step"] = _per_sample(step, len(samples))
        return batch

    def _sent(self, samples: OrderedIndices) -> WorkerBatch:
        """The batch for the loader itself."""
        errors = [sample for sample in samples if isinstance(sample, ReadError)]
        remaining = [sample for sample in samples if not isinstance(sample, ReadError)]
        ordered = samples.ordered
        if errors:
            ordered = ordered.take(np.array([not isinstance(s, ReadError) for s in samples]))
        sent = WorkerBatch()
        sent.ordered = ordered
        sent.errors = errors
        if remaining:
            choice = self.masks.at(ordered.epoch, ordered.step)
            sent |= self._repeating(
                remaining, choice, ordered.epoch, ordered.repetitions, ordered.sample_class
            )
            if ordered.repeated is not None:
                sent["repeated"] = torch.from_numpy(ordered.repeated)
        return sent

    def _repeating(
        self,
        samples: Sequence[Any],
        choice: MaskChoice,
        epoch: int,
        repetitions: np.ndarray | None,
        sample_class: SampleClass | None,
    ) -> Batch:
        """The batch, which says that all repetitions are 0 where another batch has some."""
        if repetitions is None and self.repeats:
            repetitions = np.zeros(len(samples), np.int64)
        return self._batch(samples, choice, epoch, repetitions, sample_class)


def _per_sample(number: int, samples: int) -> torch.Tensor:
    """int64 (samples,): a number of a batch, in the form that libraries can move, cut and join."""
    if number >= 2**63:  # as int64 has it
        number -= 2**64
    return torch.full((samples,), number, dtype=torch.int64, device="cpu")
