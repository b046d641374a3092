"""Bringing a batch to a device: unpacking, padding, and the choice of the device."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from allocations import MIB, Peak, most

from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import OptionError
from sa1bpack.loading.batch.collate import Collate
from sa1bpack.loading.batch.mask_choice import MaskChoice
from sa1bpack.loading.batch.spec import LAYOUTS, BatchSpec, split_regions
from sa1bpack.loading.batch_copy import BatchSource
from sa1bpack.loading.devices import open_device
from sa1bpack.loading.finish import batch_views, finish, finishing_bytes
from sa1bpack.loading.planner import Planner
from sa1bpack.loading.sample_reader import SampleReader


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [[0, 4, 9], [1, 7], [10, 10]])  # 1 and 7 have no masks
def test_a_sent_batch_becomes_the_batch_of_collate_on_its_device(packed, layout, rows):
    ds = open_pack(packed.root)
    spec = BatchSpec.of(ds, LAYOUTS[layout], to_device=True)
    [(copy, errors)] = Planner(BatchSource(ds, spec, MaskChoice(4), None)).plan([np.array(rows)], 0)
    buffer = np.full(copy.nbytes, 255, np.uint8)
    copy.write_heads(buffer)
    copy.copy(0, len(copy), buffer, SampleReader(direct=False))
    assert not errors and not copy.errors()
    # Neither padding nor unpacked masks are sent.
    assert copy.regions["masks"].shape == (copy.total, 16, 2)
    batch = batch_views(torch.from_numpy(buffer), copy.regions)
    batch = finish(batch, spec, copy)
    expected = Collate(layout, max_masks=4)([ds[row] for row in rows])
    assert set(batch) == set(expected)
    for key, tensor in expected.items():
        assert batch[key].dtype == tensor.dtype and torch.equal(batch[key], tensor), key


def test_arrays_of_a_batch_begin_at_cache_lines_and_do_not_overlap(packed):
    ds = open_pack(packed.root)
    regions, nbytes = BatchSpec.of(ds, LAYOUTS["flat"], to_device=False).regions(3, 5, 7, 0)
    spans = sorted((region.start, region.start + region.nbytes) for region in regions.values())
    assert all(start % 64 == 0 for start, _ in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert spans[-1][1] <= nbytes


@pytest.mark.parametrize("side", [128, 384, 1024])
@pytest.mark.parametrize("pixels", ["rgb", "yuv420"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_made_on_a_device_takes_the_memory_that_is_planned(
    layout_packs, layout, pixels, side
):
    """Counted on tensors without contents, as torch counts them: the tensors that live at once, and
    those that remain."""
    ds = open_pack(layout_packs("pad", pixels))
    spec = BatchSpec.of(ds, LAYOUTS[layout], to_device=True)
    assert spec.to_rgb == (pixels == "yuv420")
    shape = (side * 3 // 2, side) if spec.to_rgb else (side, side, 3)
    spec = replace(spec, image=replace(spec.image, shape=shape))
    samples, capacity = {128: (4, 10), 384: (2, 30), 1024: (8, 64)}[side]
    total = samples * capacity
    regions, nbytes = spec.regions(samples, capacity, total, 0)
    data = torch.empty(nbytes, dtype=torch.uint8, device="meta")
    large, small, span = split_regions(regions)
    with Peak(most) as peak:
        sent = peak.size(nbytes)
        views = batch_views(data, large) | batch_views(data[span].clone(), small)
        batch = finish(views, spec, _Sized(samples, capacity))
        del views
        remaining = peak.now - sent  # the memory of what was sent is known by its views
    made, temporary = finishing_bytes(spec, samples, capacity, total)
    assert 0 <= made - remaining < 0.01 * made + 512, (made, remaining)
    taken = peak.most - sent
    assert taken <= made + temporary
    assert made + temporary <= 1.3 * taken + 64 * 512 + sent + 4 * MIB
    assert len(batch["images"]) == samples


class _Sized(SimpleNamespace):
    """The numbers of a copy."""

    def __init__(self, samples: int, capacity: int):
        super().__init__(capacity=capacity)
        self._samples = samples

    def __len__(self) -> int:
        return self._samples


def test_a_buffer_of_the_host_begins_at_a_cache_line():
    buffer = open_device("cpu").allocate(1000)
    assert len(buffer.bytes) == 1000 and buffer.bytes.ctypes.data % 64 == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_cuda_is_an_error_with_the_remedy():
    with pytest.raises(OptionError, match="finds no CUDA device; use device='cpu'"):
        open_device("cuda")
