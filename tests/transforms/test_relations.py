"""Relations of batches: on every path those of `masks.relate`, sample by sample."""

import numpy as np
import pytest
import torch
from allocations import Peak
from allocations import most as most_counted
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from made_batches import (
    LAYOUT,
    RECTANGLES,
    RELATIONS,
    dataset,
    made_by,
    moved,
    ragged,
    rectangle_batch,
    rectangle_runs,
)
from mask_oracle import runs_of
from torch.nn.utils.rnn import pad_sequence

from sa1bpack import masks, transforms
from sa1bpack.transforms import Relate, RunBatch

NAMES = tuple(RELATIONS)


def batch_of(samples: list[np.ndarray], padded: bool) -> dict[str, torch.Tensor]:
    """A batch of bool (m, h, w) each."""
    counts = torch.tensor([len(sample) for sample in samples])
    rows = [torch.from_numpy(sample) for sample in samples]
    if padded:
        return {"masks": pad_sequence(rows, batch_first=True), "mask_counts": counts}
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return {"masks": torch.cat(rows), "mask_counts": counts, "mask_offsets": offsets}


def by_torch(relate: Relate, batch: dict, padded: bool, most: int | None = None) -> dict:
    """The relations that a device without compiled kernels makes."""
    with made_by():
        return relate.of_masks(batch["masks"], batch["mask_counts"], padded, most)


def check(found: dict, samples: list[np.ndarray], padded: bool, **rule) -> None:
    """Compare a batch's relations with those of each sample, and its padding with none."""
    assert tuple(found) == NAMES
    most = max(map(len, samples))
    first = 0
    for k, sample in enumerate(samples):
        expected = masks.relate_bits(sample, **rule)
        for name, (pairs, none) in RELATIONS.items():
            value = found[name][k] if padded else found[name][first : first + len(sample)]
            count = len(sample)
            own = value[:count, :count] if pairs else value[:count]
            exact = getattr(expected, name)
            types = {"float64": "torch.float32"}
            assert str(own.dtype) == types.get(str(exact.dtype), f"torch.{exact.dtype}")
            np.testing.assert_array_equal(own.numpy(), exact.astype(own.numpy().dtype), name)
            rest = value.clone()
            if pairs:
                rest[:count, :count] = none
                assert value.shape[1] == most
            else:
                rest[:count] = none
            assert (rest == none).all(), name
        first += len(sample)


some_samples = st.tuples(st.integers(1, 9), st.sampled_from([8, 16, 72])).flatmap(
    lambda size: st.lists(
        st.integers(0, 5).flatmap(lambda m: arrays(bool, (m, *size), elements=st.booleans())),
        min_size=1,
        max_size=3,
    )
)


@settings(max_examples=30)  # the first example may compile
@given(some_samples, st.booleans(), st.sampled_from([0.5, 1.0]), st.sampled_from([4, 8]))
def test_relations_of_a_batch_are_those_of_its_samples(samples, padded, share, neighbors):
    batch = batch_of(samples, padded)
    relate = Relate(NAMES, share=share, neighbors=neighbors)
    rule = {"share": share, "neighbors": neighbors}
    check(relate(batch), samples, padded, **rule)
    check(by_torch(relate, batch, padded), samples, padded, **rule)
    bits = batch | {"masks": torch.from_numpy(masks.pack_bits(batch["masks"].numpy()))}
    check(relate(bits), samples, padded, **rule)
    check(by_torch(relate, bits, padded), samples, padded, **rule)


@pytest.mark.parametrize("layout", ["padded", "concat", "padded_bits", "concat_bits"])
@pytest.mark.parametrize("names", [("ious",), ("centroids",), ("touching",), NAMES])
def test_relations_on_a_device_take_no_more_memory_than_stated(names, layout):
    """On meta tensors, as torch counts those of CUDA; and the bound is not far above, where masks
    are many or large."""
    relate = Relate(names)
    for samples, most, side in ((8, 100, 1024), (2, 3, 16), (1, 400, 64), (2, 8, 512)):
        padded = layout.startswith("padded")
        packed = layout.endswith("bits")
        total = samples * most - 1
        leading = (samples, most) if padded else (total,)
        kind, width = (torch.uint8, side // 8) if packed else (torch.bool, side)
        counts = torch.empty(samples, dtype=torch.int64, device="meta")
        with Peak(most_counted) as peak:
            given_masks = torch.empty((*leading, side, width), dtype=kind, device="meta")
            before = peak.now
            by_torch(relate, {"masks": given_masks, "mask_counts": counts}, padded, most)
        taken = peak.most - before
        rows = samples * most if padded else total
        stated = relate.scratch_bytes(samples, most, total, side * side, padded, packed)
        stated += relate.nbytes(rows, most)
        assert taken <= stated
        assert side < 256 or stated <= 2.5 * taken


def nested(count: int, side: int) -> np.ndarray:
    """Squares in squares, the largest first."""
    found = np.zeros((count, side, side), bool)
    for k in range(count):
        found[k, k : side - k, k : side - k] = True
    return found


def test_products_of_many_cells_and_long_chains_are_exact():
    samples = [nested(31, 100), ~nested(7, 100)]  # 10,000 cells are not a multiple of a group
    batch = batch_of(samples, True)
    on_device = by_torch(Relate(NAMES), batch, True)
    assert on_device["intersections"][0, 0, 0] == 10_000
    assert on_device["depths"][0].tolist() != sorted(on_device["depths"][0].tolist(), reverse=True)
    check(on_device, samples, True)
    deep = by_torch(Relate(NAMES, share=0.5), batch, True)
    assert deep["depths"][0].tolist() == list(range(31))


@pytest.mark.parametrize("width", [1, 7, 8, 256, 1020, 1024, 2040, 2048])
def test_cells_are_counted_exactly_at_any_width(width):
    drawn = np.random.default_rng(width).random((2, 3, width)) < 0.5
    samples = [drawn, np.ones((1, 3, width), bool), np.zeros((0, 3, width), bool)]
    for turned in (samples, [sample.transpose(0, 2, 1) for sample in samples]):
        check(by_torch(Relate(NAMES), batch_of(turned, True), True), turned, True)


@pytest.mark.parametrize("padded", [True, False])
def test_relations_of_runs_are_in_source_pixels(padded):
    samples = [nested(5, 40), np.zeros((0, 40, 40), bool), ~nested(2, 40)]
    batch = batch_of(samples, padded)
    ids = torch.zeros(batch["masks"].shape[: 1 + padded], dtype=torch.int64)
    runs = RunBatch.collate([(*runs_of(sample), 40, 40) for sample in samples])
    of_runs = {key: batch[key] for key in batch.keys() - {"masks"}} | {"runs": runs}
    check(Relate(NAMES)(of_runs | {"annotation_ids": ids}), samples, padded)
    check(Relate(NAMES)(of_runs), samples, padded)  # without another array of masks


@pytest.mark.parametrize("kind", ["padded", "concat", "padded_bits", "concat_bits", "runs"])
def test_a_pipeline_relates_what_is_left_in_the_picture(kind, any_way):
    if kind == "runs":
        batch = rectangle_batch(LAYOUT, RECTANGLES)
        del batch["masks"]
        batch["runs"] = rectangle_runs(RECTANGLES)
    else:
        batch = ragged(kind)
    batch = moved(batch, any_way)
    steps = [transforms.RandomResizedCrop((0.2, 0.3)), transforms.RandomHorizontalFlip()]
    ds = dataset(LAYOUT)
    relate = Relate(NAMES, share=0.6)
    found = transforms.Pipeline(ds, steps, relations=relate)(batch, epoch=1)
    plain = transforms.Pipeline(ds, steps)(batch, epoch=1)
    assert set(found) - set(plain) == set(NAMES)
    first = 0
    before = 0
    after = 0
    for k, count in enumerate(batch["mask_counts"].tolist()):
        at = slice(first, first + count) if "mask_offsets" in batch else (k, slice(count))
        expected = masks.relate_bits(plain["masks"][at].cpu().numpy(), share=0.6)
        for name in NAMES:
            value = found[name][at].cpu().numpy()
            value = value[:, :count] if RELATIONS[name][0] else value
            np.testing.assert_allclose(value, getattr(expected, name), rtol=1e-6, err_msg=name)
        first, before, after = first + count, before + count, after + int(expected.areas.sum())
    assert 0 < after < before * 96 * 96
