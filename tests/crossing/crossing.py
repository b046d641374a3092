"""One case: packs opened in some way, two epochs read in some way, every batch compared.

What a batch must be is computed with numpy from `ds[i]`, and these samples are compared with those
of their own packs, opened plainly.
"""

import copy
import os
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from absent_numbers import SAMPLE_KEYS
from batches import OF_LOADERS, flattened, same_samples
from cases import WHERE_MASKS, Case, draw_reading, drawn_opening, opened_dataset
from expected import NUMBERS, expected_batch, expected_input, kept_masks, of_fields
from packs import ANY_LENGTH, FEATURES, Packs
from page_cache import drop, forget

import sa1bpack
from sa1bpack import transforms

ORDERS = {
    "shuffle": sa1bpack.ShuffleOrder,
    "local": sa1bpack.LocalShuffleOrder,
    "by_node": sa1bpack.NodeShuffleOrder,
    "sequential": sa1bpack.SequentialOrder,
    "weighted": sa1bpack.WeightedOrder,
    "passes": sa1bpack.MaskPassOrder,
}
DUPLICATES = {"deepcopy": copy.deepcopy, "pickle": lambda it: pickle.loads(pickle.dumps(it))}
LARGE = ("image", "mask_bits", "run_ends", "values")  # arrays that are read past the page cache


def run_case(seed: int, packs: Packs, direct: bool) -> None:
    """Run the case of a seed; an error or a failed assertion is its failure."""
    case = drawn_opening(seed)
    try:
        with tempfile.TemporaryDirectory(dir=packs.folder) as folder:
            ds = opened_dataset(case, packs, Path(folder))
            draw_reading(case, ds, direct)
            Crossing(case, ds, [*packs.of(*case.layout), Path(folder)]).run()
    except BaseException as error:
        error.add_note(str(case))
        raise


class Crossing:
    """One case: two epochs, and what they must be."""

    def __init__(self, case: Case, ds: sa1bpack.Dataset, folders: list[Path]):
        self.case, self.ds, self._folders = case, ds, folders
        name, options = case.order
        self.order = ORDERS[name](ds, **options)
        self.seed = options.get("seed", 0)
        buckets = case.reading.get("bucket_by")
        if isinstance(buckets, str | np.ndarray):
            buckets = sa1bpack.Buckets(ds, buckets)
        self.plain = {
            ranks: [self._batches(rank, ranks, buckets) for rank in range(ranks)]
            for ranks in case.ranks
        }
        self.relate = transforms.Relate.of(case.reading.get("relations", ()))
        self.pipeline = transforms.Pipeline(ds) if case.transform else None
        self.samples: dict[int, dict] = {}

    def _batches(
        self, rank: int, ranks: int, buckets: sa1bpack.Buckets | None
    ) -> sa1bpack.OrderedBatches:
        last = {name: True for name in ("drop_last", "pad_last") if name in self.case.reading}
        return sa1bpack.OrderedBatches(
            self.order, global_batch_size=self.case.size, bucket_by=buckets, rank=rank,
            world_size=ranks, **last,
        )  # fmt: skip

    def run(self) -> None:
        """Read both epochs, then compare: samples map files, whose pages then stay in memory."""
        readers, step, found = self._readers(0), 0, []
        for epoch in (0, 1):
            indices = {
                ranks: [[np.array(batch) for batch in batches] for batches in of_ranks]
                for ranks, of_ranks in self.plain.items()
            }
            self._check_indices(*indices.values())
            self._cool(self.case.cold[epoch], certain=epoch == 0)
            total = len(indices[len(readers)][0])
            batches = zip(*readers, strict=True)
            for number in range(total):
                place = {"epoch": epoch, "batch_idx": number, "global_step": step}
                for rank, batch in enumerate(next(batches)):
                    rows = indices[len(readers)][rank][number]
                    again = self.plain[len(readers)][rank].current[number].repeated
                    if again is None:
                        again = np.zeros(len(rows), bool)
                    found.append((*self._taken(batch), rows, again, place))
                step += 1
                if self.case.stop == (epoch, number + 1):
                    readers = self._resumed(readers)
                    batches = zip(*readers, strict=True) if number + 1 < total else iter(())
            assert next(batches, None) is None
        self._end(readers)
        for each in found:
            self._compare(*each)
        if self._repeats:
            self._check_repetitions(found)
        self._compare_samples()

    def _readers(self, turn: int) -> list[Any]:
        case, options = self.case, dict(self.case.reading)
        name, of_order = case.order
        if name == "weighted" or of_order.keys() - {"seed"}:
            options["order"] = self.order
        elif name in ("shuffle", "sequential"):
            options |= {"shuffle": name == "shuffle", **of_order}
        else:
            options |= {"order": name, **of_order}
        make = sa1bpack.Loader if case.workers is None else sa1bpack.make_dataloader
        options |= case.own[turn]
        if (count := case.ranks[turn]) == 1:
            return [make(self.ds, case.size, **options)]
        options["world_size"] = count
        if case.seed % 2 and isinstance(case.size, int):
            options["batch_size"] = case.size // count
        else:
            options["global_batch_size"] = case.size
        return [make(self.ds, rank=rank, **options) for rank in range(count)]

    def _resumed(self, readers: list[Any]) -> list[Any]:
        """Others that continue where these are."""
        state = readers[-1].state_dict()
        if self.case.duplicate:
            others = [DUPLICATES[self.case.duplicate](reader) for reader in readers]
            assert all(other.state_dict() == state for other in others)
        else:
            others = self._readers(1)
        self._end(readers)
        for reader in others:
            reader.load_state_dict(state)
        return others

    def _end(self, readers: list[Any]) -> None:
        for reader in readers if self.case.workers is None else ():
            reader.close()

    def _taken(self, batch: dict) -> tuple[dict, dict | None]:
        """A batch, and what the pipeline makes of it."""
        assert batch.spec == self.ds.spec_text
        made = None if self.pipeline is None else flattened(self.pipeline(batch))
        batch = flattened(batch)
        if not self.case.keep:
            batch = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        return batch, made

    def _cool(self, how: str, certain: bool) -> None:
        """Drop the large files from the page cache, or all but some pieces of them.

        Args:
            certain: none of them has been read yet, so that all of them can be dropped.
        """
        files = [path for root in self._folders for path in large_files(root)]
        for path in files if how else ():
            drop(path) if certain and not self.case.cache else forget(path)
        rng = np.random.default_rng(self.case.seed)
        for path in files if how == "some" else ():
            with path.open("rb", buffering=0) as file:
                size = path.stat().st_size
                for start in rng.integers(0, max(size, 1), 3).tolist():
                    file.seek(start)
                    file.read(min(size // 4, 1 << 20))

    def _check_indices(self, *of_ranks: list[list[np.ndarray]]) -> None:
        """What the order and the last batch promise of an epoch, on any number of ranks."""
        found = [
            [np.concatenate(parts).tolist() for parts in zip(*each, strict=True)]
            for each in of_ranks
        ]
        assert all(each == found[0] for each in found)
        all_of_them, reading = np.concatenate(found[0]).astype(int), self.case.reading
        if self.case.order[0] == "passes":
            turns = -(-self.ds.column("mask_count") // self.case.order[1]["masks"])
            times = np.bincount(all_of_them, minlength=len(self.ds))
            assert (times <= turns).all() or "pad_last" in reading
            assert (times >= turns).all() or "drop_last" in reading
        elif self.case.order[0] == "weighted":
            assert self.case.order[1]["weights"][all_of_them].all()
        else:
            times = np.bincount(all_of_them, minlength=len(self.ds))
            assert times.max() <= 1 or "pad_last" in reading
            assert times.min() >= 1 or "drop_last" in reading
        if self.case.order[0] == "sequential" and "bucket_by" not in self.case.reading:
            first = all_of_them[: len(self.ds)].tolist()
            assert first == list(range(len(first)))

    def _compare(
        self, batch: dict, made: dict | None, indices: np.ndarray, repeated: np.ndarray, place: dict
    ) -> None:
        """Compare a batch with what it must be."""
        case, ds = self.case, self.ds
        for index in set(indices.tolist()) - self.samples.keys():
            self.samples[index] = ds[index]
        samples = [self.samples[index] for index in indices.tolist()]
        epoch, step = place["epoch"], place["global_step"]
        most = value_at(case.reading.get("max_masks"), epoch, step)
        mask_select = value_at(case.reading.get("mask_select", "largest"), epoch, step)
        if isinstance(mask_select, np.ndarray):
            keys = ds.mask_column(case.weighed).tolist()
            mask_select = weighing(case.weighed, dict(zip(keys, mask_select, strict=True)))
        repetitions = repeated.astype(np.int64)
        if self._repeats:  # `_check_repetitions` compares them
            repetitions = batch["repetitions"].numpy()
        elif repeated.any() and self._is_exact:  # a small class may fill up a batch several times
            repetitions = batch["repetitions"].numpy()
            assert np.array_equal(repetitions > 0, repeated)
            pairs = zip(indices.tolist(), repetitions.tolist(), strict=True)
            assert len(set(pairs)) == len(indices)
        kept = [
            kept_masks(sample, most, mask_select, self.seed, epoch, repetition)
            for sample, repetition in zip(samples, repetitions.tolist(), strict=True)
        ]
        rows = most if case.reading.get("pad_to_max") else None
        layout = case.reading["mask_layout"]
        canvas = self._check_class(batch, samples)
        expected = expected_batch(samples, kept, ds, layout, rows, self.relate, canvas)
        if "fields" in case.reading:
            expected = of_fields(expected, case.reading["fields"], ds, self.relate)
        if case.reading.get("on_error") == "drop":
            expected["dropped"] = np.empty(0, np.int64)
        if "pad_last" in case.reading:
            expected["repeated"] = repeated
        if "pad_last" in case.reading or self._repeats:
            expected["repetitions"] = repetitions
        assert {key: batch[key] for key in OF_LOADERS} == place
        same_arrays(batch, expected, OF_LOADERS | ({"sample_class"} if canvas else set()))
        if made is not None:
            plain = ds.with_options(pixels="rgb", mask_format="bool")
            inputs = expected_input([plain[i] for i in indices.tolist()], kept, plain)
            self._compare_input(made, inputs, expected)

    def _check_class(self, batch: dict, samples: list[dict]) -> tuple[int, int] | None:
        """Check that images are of the class of their batch, and return its canvas."""
        if not self._is_exact:
            return None
        buckets = self.case.reading["bucket_by"]
        number = batch["sample_class"]
        ratios = np.array(buckets.aspects)
        for sample in samples:
            distances = np.abs(ratios - sample["size"][0] / sample["size"][1])
            assert distances[number] <= distances.min() + 1e-12
        return buckets.canvases[number]

    def _compare_input(self, made: dict, inputs: dict, expected: dict) -> None:
        counts, padded = expected["mask_counts"], "mask_offsets" not in expected
        for key, array in inputs.items():
            value = made[key].numpy()
            if key != "images" and padded:
                pairs = list(zip(value, counts.tolist(), strict=True))
                assert key != "valid" or not any(own[count:].any() for own, count in pairs)
                value = np.concatenate([own[:count] for own, count in pairs])
            assert value.shape == array.shape, key
            tolerance = 0 if array.dtype == bool else 1e-3
            np.testing.assert_allclose(value, array, rtol=0, atol=tolerance, err_msg=key)
        spatial = {feature.name for feature in self.ds.spec.features if feature.spatial}
        changed = {"images", "masks", "bboxes", "point_coords"} | spatial
        rest = {key: array for key, array in expected.items() if key not in changed}
        same_arrays({key: made[key] for key in rest}, rest, ())
        for name in spatial:
            np.testing.assert_allclose(made[name].numpy(), expected[name], rtol=1e-5, err_msg=name)

    @property
    def _is_exact(self) -> bool:
        """True if every batch has images of one class."""
        return getattr(self.case.reading.get("bucket_by"), "exact", False)

    @property
    def _repeats(self) -> bool:
        """True if an epoch may have an image several times, besides those that fill up a batch."""
        return self.case.order[0] in ("weighted", "passes") or self._has_copies

    @cached_property
    def _rows(self) -> list[int]:
        """The row in the pack of each sample of the dataset."""
        return [self.ds[index]["row"] for index in range(len(self.ds))]

    @property
    def _has_copies(self) -> bool:
        return len(set(self._rows)) < len(self._rows)

    def _check_repetitions(self, found: list[tuple]) -> None:
        """No two occurrences of an image in an epoch have one number.

        Of an order that draws images again they are counted from 0. Those that fill up the last
        batch have others.
        """
        for epoch in (0, 1):
            numbers = defaultdict(list)
            for batch, _, indices, repeated, place in found:
                if place["epoch"] == epoch:
                    own = zip(indices[~repeated], batch["repetitions"][~repeated], strict=True)
                    for index, repetition in own:
                        numbers[self._rows[index]].append(int(repetition))
            for repetitions in numbers.values():
                assert len(set(repetitions)) == len(repetitions)
                is_whole = self.case.order[0] == "weighted" or "drop_last" not in self.case.reading
                if not self._has_copies and is_whole:
                    assert sorted(repetitions) == list(range(len(repetitions)))

    def _compare_samples(self) -> None:
        """The samples are those of their own pack, opened plainly."""
        case = self.case
        plainly = case.opened.keys() - {"verify_checksums", "layouts"}
        options = {name: case.opened[name] for name in plainly}
        roots = self._folders[:2] if case.several else [self._folders[case.seed % 2]]
        packs = [sa1bpack.open(root, **options) for root in roots]
        for index, sample in self.samples.items():
            assert sample["image_id"] == self.ds.column("image_id")[index]
            [pack] = [each for each in packs if sample["image_id"] in each.column("image_id")]
            expected = pack.by_id(sample["image_id"])
            if case.where_masks:
                kept = fulfilling(pack, sample["image_id"], case.where_masks)
                expected = with_masks(expected, kept)
            lacking = {SAMPLE_KEYS[name] for name in case.absent}
            assert same_samples(
                sample, {key: expected[key] for key in expected if key not in lacking}
            )


def fulfilling(pack: sa1bpack.Dataset, image_id: int, condition: str) -> np.ndarray:
    """bool (m,): the masks of an image that fulfil WHERE_MASKS, or WITHOUT_SCORES, by numpy."""
    [index] = pack.index_of([image_id]).tolist()
    area, box = pack.mask_column("area"), pack.mask_column("bbox")
    first = box[:, 0] > 12
    if condition == WHERE_MASKS:
        first = pack.mask_column("stability_score") > 0.96
    edges = pack.mask_offsets[index : index + 2]
    return (first & (box[:, 2] < 60) | (area >= 700))[slice(*edges.tolist())]


def with_masks(sample: dict, kept: np.ndarray) -> dict:
    """The sample with these of its masks."""
    count = len(kept)
    of_masks = {*NUMBERS, "crop_boxes", "masks"}
    of_masks |= {name for name, (axis, *_) in FEATURES.items() if axis == "mask"}
    chosen = {
        key: value[kept] if key in of_masks and len(value) == count else value
        for key, value in sample.items()
    }
    if "run_ends" in sample:
        pieces = np.split(sample["run_ends"], sample["run_offset"][1:-1])[:count]
        pieces = [piece for piece, keep in zip(pieces, kept, strict=True) if keep]
        chosen["run_ends"] = np.concatenate([np.empty(0, np.int32), *pieces])
        chosen["run_offset"] = np.cumsum([0, *map(len, pieces)])
    for name, (axis, dtype, _, missing) in ANY_LENGTH.items():
        if axis != "mask" or name not in sample:
            continue
        if missing:
            chosen[f"{name}_present"] = sample[f"{name}_present"][kept]
        if dtype == "text":
            chosen[name] = [text for text, keep in zip(sample[name], kept, strict=True) if keep]
            continue
        pieces = np.split(sample[name], sample[f"{name}_offsets"][1:-1])[:count]
        pieces = [piece for piece, keep in zip(pieces, kept, strict=True) if keep]
        chosen[name] = np.concatenate([sample[name][:0], *pieces])
        chosen[f"{name}_offsets"] = np.cumsum([0, *map(len, pieces)])
    return chosen


def large_files(folder: Path) -> Iterator[Path]:
    """The files of arrays that are read past the page cache, in packs or in a cache."""
    for root, _, names in os.walk(folder):
        if Path(root).name in LARGE:
            yield from (Path(root, name) for name in names if name != "zarr.json")


def value_at(option: Any, epoch: int, step: int) -> Any:
    """The value of an option that may be a schedule."""
    if isinstance(option, list):
        return option[min(epoch, len(option) - 1)]
    if isinstance(option, sa1bpack.PiecewiseSchedule | sa1bpack.LinearSchedule):
        return option(step if option.by == "step" else epoch)
    return option


def weighing(name: str, weights: dict[int, float]) -> Any:
    """Weights by the values of a column as a function of columns."""
    return lambda columns: np.array([weights[i] for i in columns[name].tolist()])


def same_arrays(batch: dict, expected: dict, others: Any) -> None:
    """Assert that a batch has these arrays, and of keys besides only `others`."""
    assert batch.keys() == expected.keys() | set(others), batch.keys() ^ expected.keys()
    for key, array in expected.items():
        value = batch[key]
        if isinstance(array, list):  # of texts
            assert value == array, key
            continue
        if value.dtype == torch.bfloat16:  # numpy has its bits
            value, array = value.view(torch.int16), array.view(np.int16)
        found = value.numpy()
        assert found.dtype == array.dtype and found.shape == array.shape, (
            f"{key} is {found.dtype} {found.shape}, not {array.dtype} {array.shape}"
        )
        if key in ("ious", "containments", "distances", "centroids"):  # sums in another order
            np.testing.assert_allclose(found, array, rtol=1e-5, atol=1e-5, err_msg=key)
        else:
            np.testing.assert_array_equal(found, array, err_msg=key)
