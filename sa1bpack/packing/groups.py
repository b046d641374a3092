"""Pairs in groups: those of a shard that follow each other, and become samples together.

A group is made by one call, `sample.make_samples`, and handed on and written as one. Where a pair
of it cannot be used, it is left out, and if that does not help, the pairs are made one by one: what
becomes of a pair does not depend on its group.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from sa1bpack.packing.empty_masks import NONE_EMPTY
from sa1bpack.packing.kept_rows import KeptRows
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import (
    Buffers,
    Fault,
    Outcome,
    Packed,
    PairBytes,
    attempt,
    make_samples,
    most_image_bytes,
    read_masks,
    reject_of,
)
from sa1bpack.source.pairs import Reject

# Pairs of a group, and the bytes that their images can take in a pack. After an image was decoded,
# the processor's caches hold nothing of the interpreter's, so what Python does once for many pairs
# takes half the time of what it does again for a few. Workers have more groups in memory.
MAX_PAIRS = 32
_IMAGE_BYTES = 40 << 20
_IMAGE_BYTES_OF_WORKERS = 8 << 20
# Bytes of the images and records of a group of several, as files.
MAX_FILE_BYTES = 8 << 20


def pairs_per_group(options: PackOptions, in_workers: bool = False) -> int:
    """The most pairs of a group, which the thread of the run makes, or workers."""
    nbytes = _IMAGE_BYTES_OF_WORKERS if in_workers else _IMAGE_BYTES
    fitting: int = nbytes // most_image_bytes(options.layout)
    return min(max(fitting, 1), MAX_PAIRS)


@dataclass(frozen=True)
class GroupOutcome:
    """What became of the pairs of a group.

    Attributes:
        packed: the rows of those that became samples; None if none did.
        rejects: why others did not.
        dropped: number of those of which no mask remained, and the options drop such images.
    """

    packed: Packed | None
    rejects: tuple[Reject, ...] = ()
    dropped: int = 0

    @property
    def samples(self) -> int:
        """Number of samples."""
        return 0 if self.packed is None else self.packed.lengths.samples


def attempt_group(
    pairs: Sequence[PairBytes], options: PackOptions, buffers: Buffers
) -> GroupOutcome:
    """Make the samples of the pairs of a group; what goes wrong with one becomes its Reject.

    Raises what `attempt` raises.
    """
    if len(pairs) == 1:
        return group_of(attempt(pairs[0], options, buffers))
    with suppress(Exception):  # that of a record: no image was decoded yet
        return _attempt_at_once(pairs, options, buffers, [])
    faults = _faults_of_records(pairs, options)
    if 0 < len(faults) < len(pairs):
        with suppress(Exception):  # that of several together
            return _attempt_at_once(pairs, options, buffers, faults)
    outcomes = []
    for pair in pairs:
        outcome = attempt(pair, options, buffers)
        if isinstance(outcome, Packed):
            rows = {name: array.copy() for name, array in outcome.rows.items()}
            outcome = replace(outcome, rows=rows)  # its buffers are used for the next one
        outcomes.append(group_of(outcome))
    return joined_groups(outcomes)


def _attempt_at_once(
    pairs: Sequence[PairBytes], options: PackOptions, buffers: Buffers, of_records: list[Fault]
) -> GroupOutcome:
    """Make the samples of pairs but those whose records have faults, which are known."""
    without_use = [pair for pair, _ in of_records]
    sound = [pair for pair in pairs if pair not in without_use]
    of_images: list[Fault] = []
    packed = make_samples(sound, options, buffers, of_images)
    samples = 0 if packed is None else packed.lengths.samples
    rejects = []
    for pair, error in sorted(of_records + of_images, key=lambda fault: pairs.index(fault[0])):
        rejects.append(reject_of(pair, error, options))
    return GroupOutcome(packed, tuple(rejects), dropped=len(pairs) - samples - len(rejects))


def _faults_of_records(pairs: Sequence[PairBytes], options: PackOptions) -> list[Fault]:
    """The pairs whose records cannot be used, and why not; no image is decoded."""
    faults = []
    for pair in pairs:
        try:
            read_masks([pair], options)
        except Exception as error:
            faults.append((pair, error))
    return faults


def group_of(outcome: Outcome) -> GroupOutcome:
    """What became of a group of one pair."""
    if outcome is None:
        return GroupOutcome(None, dropped=1)
    if isinstance(outcome, Reject):
        return GroupOutcome(None, (outcome,))
    return GroupOutcome(outcome)


def joined_groups(groups: Sequence[GroupOutcome]) -> GroupOutcome:
    """What became of all pairs of several groups, the rows copied."""
    every = [group.packed for group in groups if group.packed is not None]
    return GroupOutcome(
        _joined_samples(every) if every else None,
        tuple(chain.from_iterable(group.rejects for group in groups)),
        sum(group.dropped for group in groups),
    )


def _joined_samples(parts: Sequence[Packed]) -> Packed:
    """The samples of at least one part."""
    first = parts[0]
    rows = {name: np.concatenate([part.rows[name] for part in parts]) for name in first.rows}
    unknown_keys: Counter[str] = Counter()
    empty_masks = NONE_EMPTY
    lengths = first.lengths
    for part in parts[1:]:
        lengths += part.lengths
    values = []
    for of_key in zip(*(part.kept_rows.values for part in parts), strict=True):
        values.append([*chain.from_iterable(of_key)])
    for part in parts:
        unknown_keys.update(part.unknown_keys)
        empty_masks += part.empty_masks
    kept_rows = KeptRows(
        tuple(values),
        tuple(chain.from_iterable(part.kept_rows.masks for part in parts)),
        frozenset().union(*(part.kept_rows.altered for part in parts)),
    )
    return Packed(rows, lengths, unknown_keys, kept_rows, empty_masks)
