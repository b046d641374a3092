"""The Loader with a CUDA device; `benchmarks/gpu.py` runs these where there is one."""

import numpy as np
import pytest
import torch

from sa1bpack.batch.collate import Collate
from sa1bpack.batch.layout import LAYOUTS
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import OptionError
from sa1bpack.loading.devices import open_device
from sa1bpack.loading.loader import Loader

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("max_masks", [None, 3])
def test_batches_on_cuda_are_those_of_collate(packed, layout, max_masks):
    ds = open_pack(packed.root)
    collate = Collate(layout, max_masks=max_masks)
    with Loader(ds, 5, device="cuda", masks=layout, max_masks=max_masks) as loader:
        for _ in range(3):
            for batch in loader:
                expected = collate([ds[row] for row in batch["indices"].tolist()])
                assert set(batch) == set(expected)
                for key, tensor in expected.items():
                    assert batch[key].is_cuda and batch[key].dtype == tensor.dtype, key
                    assert torch.equal(batch[key].cpu(), tensor), key


def test_batches_that_are_kept_do_not_change_while_buffers_are_reused(packed):
    ds = open_pack(packed.root)
    with Loader(ds, 1, device="cuda", ahead=1, order="sequential") as loader:
        kept = [batch for _ in range(5) for batch in loader]
    torch.cuda.synchronize()
    for number, batch in enumerate(kept):
        row = number % len(ds)
        assert np.array_equal(batch["images"][0].cpu().numpy(), ds[row]["image"])


def test_the_consumers_own_stream_may_be_any(packed):
    ds = open_pack(packed.root)
    stream = torch.cuda.Stream()
    sums = []
    with Loader(ds, 2, device="cuda", order="sequential") as loader, torch.cuda.stream(stream):
        for batch in loader:
            torch.cuda._sleep(2_000_000)  # the device lags the host
            sums.append(batch["images"].long().sum())
            del batch
    stream.synchronize()
    expected = [sum(int(ds[row]["image"].astype(np.int64).sum()) for row in rows)
           for rows in np.arange(len(ds)).reshape(-1, 2)]  # fmt: skip
    assert [int(value) for value in sums] == expected


def test_a_buffer_is_not_reused_before_its_copy_is_done(packed):
    device = open_device("cuda")
    buffer = device.allocate(1 << 20)
    assert buffer.pinned.is_pinned()
    buffer.event = torch.cuda.Event()
    torch.cuda._sleep(1_000_000_000)
    buffer.event.record()
    with pytest.raises(TimeoutError, match="did not end within 0 s"):
        device.wait(buffer, 0.0)
    device.wait(buffer, 60.0)
    assert buffer.event is None


def test_the_plan_states_pinned_and_device_memory(packed):
    ds = open_pack(packed.root)
    loader = Loader(ds, 4, device="cuda", masks="padded")
    plan = loader.plan()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        for _ in loader:
            pass
    loader.close()
    assert plan.pinned_bytes == plan.host_bytes >= plan.batches * plan.batch_bytes
    # The allocator rounds every tensor up to 512 bytes; unpacking needs the masks twice.
    limit = 2 * plan.device_bytes + 512 * 64
    assert torch.cuda.max_memory_allocated() - before <= limit


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(OptionError, match=r"cuda:99.*CUDA devices"):
        open_device("cuda:99")
