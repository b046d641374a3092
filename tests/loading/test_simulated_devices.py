"""Which simulated CUDA device a Loader uses, how much of its memory, and what a batch shares; a
Loader while a graph is captured, and in forked children."""

import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from batches import LAYOUTS, same, tensors_of
from forked import forked_child
from packs_with_features import SPECS, with_features  # noqa: F401 - a fixture
from simulated_cuda import SimulatedCuda
from simulated_loading import LATE, simulate, take_rows
from torch.utils._python_dispatch import TorchDispatchMode

from sa1bpack import Collate, Loader, LoaderError, OptionError, ReadError, ReadingOptions
from sa1bpack import open as open_pack
from sa1bpack.finalizers import settle
from sa1bpack.loading import loaded_batch, tensors
from sa1bpack.loading.batch.spec import BatchSpec, MaskLayout
from sa1bpack.transforms import host

# ------------------------------------------------------------------------------------ which device


def first_device(batches: Loader, cuda: SimulatedCuda) -> int:
    """The device that the first batch of an iteration was sent to."""
    before = dict(cuda.most)
    cuda.most.clear()
    next(iter(batches))
    settle()
    [index] = cuda.most
    cuda.most.update(before)
    return index


def test_cuda_is_the_device_that_is_current_where_the_loader_is_made(ds, cuda):
    """In a new thread, cuda:0 is current whatever other threads have chosen."""
    cuda.set_device(1)
    with Loader(ds, 2, device="cuda") as batches, ThreadPoolExecutor(1) as pool:
        assert "cuda:1, " in repr(batches)
        assert pool.submit(first_device, batches, cuda).result() == 1
        assert first_device(batches, cuda) == 1
    assert cuda.contexts == {1}


def test_before_cuda_is_used_the_device_is_settled_by_the_first_iteration(ds, cuda):
    """A Loader may be made before the process has chosen its device, or forks."""
    with Loader(ds, 2, device="cuda") as batches:
        assert not cuda.in_use() and "cuda, " in repr(batches)
        cuda.set_device(1)
        assert first_device(batches, cuda) == 1 and "cuda:1, " in repr(batches)
        sent = pickle.loads(pickle.dumps(batches))  # to a process with another device
        cuda.set_device(0)
        with sent:
            assert first_device(sent, cuda) == 0
        with pytest.raises(LoaderError, match="was cuda:1 before, but now cuda:0 is current: call"):
            next(iter(batches))
        cuda.set_device(1)
        assert first_device(batches, cuda) == 1


def test_a_device_that_no_thread_can_know_is_an_error_that_says_how_to_name_it(ds, cuda):
    with Loader(ds, 2, device="cuda") as batches, ThreadPoolExecutor(1) as pool:
        with pytest.raises(LoaderError, match=r"made in another thread.*device='cuda:1'"):
            pool.submit(first_device, batches, cuda).result()
        cuda.devices = 1
        assert pool.submit(first_device, batches, cuda).result() == 0


def test_an_index_is_the_device_whatever_is_current(ds, cuda):
    with pickle.loads(pickle.dumps(Loader(ds, 2, device="cuda:1"))) as batches:
        assert first_device(batches, cuda) == 1
    assert cuda.contexts == {1} and cuda.thread.index == 0


def test_a_device_that_is_not_there_is_refused_before_cuda_is_used(ds, cuda):
    with pytest.raises(OptionError, match=r"device is 'cuda:2', but torch .* finds 2 CUDA devices"):
        Loader(ds, 2, device="cuda:2")
    cuda.devices = 0
    with pytest.raises(OptionError, match="finds 0 CUDA devices; use device='cpu'"):
        Loader(ds, 2, device="cuda")
    assert cuda.contexts == set()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_of_a_device_are_those_of_collate_with_features(
    with_features,  # noqa: F811
    cuda,
    layout,
):
    ds = open_pack(with_features.root, features=list(SPECS))
    collate = Collate(layout, sample_spec=ds.spec, max_masks=4)
    with Loader(ds, 5, device="cuda", mask_layout=layout, max_masks=4) as batches:
        for batch in batches:
            cuda.synchronize()
            same(batch, collate(ds.__getitems__(batch["indices"].tolist())))


# ------------------------------------------------------------------------- memory that is not there


@pytest.mark.parametrize("evaluates", [False, True], ids=["trains", "evaluates"])
@pytest.mark.parametrize("masks", ["bits", "runs"])
def test_the_host_knows_the_numbers_of_what_it_sent(layout_packs, cuda, masks, evaluates):
    """All that a pipeline reads but images and masks: nothing has to wait for them."""
    with (
        torch.inference_mode(evaluates),
        Loader(open_pack(layout_packs(), mask_format=masks), 5, device="cuda") as batches,
    ):
        for batch in batches:
            cuda.synchronize()
            known, items = host.numbers_of(batch), batch.unseen()
            assert {*host.SMALL} & items.keys() <= known.keys()
            there = {key: items[key] for key in known.keys() & items.keys()}
            if masks == "runs":
                there["mask_offset"] = items["runs"].mask_offset
                there["source_sizes"] = items["runs"].sizes
            assert there.keys() == known.keys()
            for key, tensor in there.items():
                assert torch.equal(known[key], tensor) and not tensor.is_inference()
                assert known[key].data_ptr() != tensor.data_ptr()


def test_taking_a_batch_asks_the_device_for_nothing(damaged, cuda, monkeypatch):
    """Neither for the mask count of the fullest sample nor for the samples that remain."""

    def asked(*arguments):
        raise AssertionError("this waits for a device")

    monkeypatch.setattr("sa1bpack.transforms.masks.relations.fullest", asked)
    monkeypatch.setattr(torch.Tensor, "cpu", asked)
    options = {"on_error": "drop", "max_dropped": 0.5, "pad_last": True, "relations": ["ious"]}
    with Loader(damaged, 9, device="cuda", mask_layout="concat", **options) as batches:
        found = [batch["repeated"].tolist() for batch in batches]
    assert found == [6 * [False], 3 * [False] + 4 * [True]]


@pytest.mark.parametrize(
    ("of", "batches_that_fit", "named"),
    [
        ("pins", 2, "no memory for 6 batches at once.*lower batch_size"),
        ("memory", 0, "cuda:1 has no memory for a batch of .*lower batch_size.*Tried to"),
    ],
)
def test_missing_memory_is_an_error_with_the_remedy(ds, cuda, of, batches_that_fit, named):
    """Pinned memory, or that of the device."""
    with Loader(ds, 4, device="cuda:1") as batches:
        setattr(cuda, of, batches_that_fit * batches.plan().batch_bytes)
        with pytest.raises(LoaderError, match=named):
            next(iter(batches))
        setattr(cuda, of, None)
        assert sum(len(batch["images"]) for batch in batches) == len(ds)


NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
NO_WORKSPACE = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")


# Of a step by which a batch is made: where it is called, what it raises, options by which it is
# called once for each batch, and whose memory is missing.
STEPS = {
    "tensor": (tensors, "unpack_bits", NO_MEMORY, {"mask_layout": "padded"}, "cuda:0"),
    "workspace": (tensors, "unpack_bits", NO_WORKSPACE, {"mask_layout": "padded"}, "cuda:0"),
    "the last key": (loaded_batch, "rows_of", NO_MEMORY, {"on_error": "drop"}, "cpu"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", range(3))
def test_missing_memory_for_what_is_made_of_a_batch_is_a_named_error_and_loses_no_sample(
    ds, cuda, monkeypatch, after, step
):
    module, name, error, options, device = STEPS[step]
    real = getattr(module, name)
    calls = []

    def no_memory(*arguments):
        calls.append(arguments)
        if len(calls) == after + 1:
            raise error
        return real(*arguments)

    monkeypatch.setattr(module, name, no_memory)
    rows = []
    with Loader(ds, 4, device="cuda", shuffle=True, **options) as batches:
        named = f"{device} has no memory for a batch of.*lower batch_size.*not lost"
        with pytest.raises(LoaderError, match=named):
            take_rows(batches, cuda, rows)
        assert len(rows) == 4 * after
        batches.load_state_dict(batches.state_dict())
        take_rows(batches, cuda, rows)
    assert sorted(rows) == list(range(len(ds)))


def test_another_error_while_a_batch_is_arranged_is_raised_as_it_is(ds, cuda, monkeypatch):
    def fails(bits: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(tensors, "unpack_bits", fails)
    with Loader(ds, 4, device="cuda", mask_layout="padded") as batches:
        with pytest.raises(RuntimeError, match="illegal memory access") as raised:
            next(iter(batches))
        assert not isinstance(raised.value, LoaderError)


def test_if_cuda_cannot_pin_memory_torch_does_which_is_logged_once(ds, cuda, caplog):
    cuda.fail["pin"] = RuntimeError("CUDA error: operation not supported")
    collate = Collate("concat_bits")
    with Loader(ds, 2, device="cuda:1", mask_layout="concat_bits") as batches:
        for batch in batches:
            cuda.synchronize()
            same(batch, collate(ds.__getitems__(batch["indices"].tolist())))
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "cuda:1 cannot pin memory" in record.message and "not supported" in record.message
    settle()
    assert len(cuda.cached) == len(cuda.pinned) == 1  # the others were the Loader's own


@pytest.mark.parametrize("stored", [(0, 16), (-2, 16), (16, 129), (2**31 - 1, 16)])
def test_sizes_of_planes_are_checked_before_the_device_uses_them(
    layout_packs, tmp_path, cuda, stored
):
    """There, an index outside the planes is an assertion that loses the context."""
    root = tmp_path / "pack"
    shutil.copytree(layout_packs("pad", "yuv420"), root)
    path = next(next(root.glob("shards/*-000/size")).glob("c.*"))
    sizes = np.memmap(path, np.int32, mode="r+")
    sizes[6:8] = stored
    sizes.flush()
    with (
        Loader(open_pack(root), 6, device="cuda") as batches,
        pytest.raises(ReadError, match=r"/size: sides must be .*at most 128"),
    ):
        next(iter(batches))
    assert cuda.most == {}  # nothing was sent


# ------------------------------------------------------------------------------ what a batch shares


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_small_tensors_do_not_hold_the_pixels(ds, cuda, device):
    with Loader(ds, 4, device=device, mask_layout="concat_bits") as batches:
        batch = next(iter(batches))
        pixels = batch["images"].untyped_storage()
        small = [tensor for key, tensor in tensors_of(batch).items() if key not in LATE]
        assert len(small) > 5
        for tensor in small:
            storage = tensor.untyped_storage()
            assert storage.data_ptr() != pixels.data_ptr()
            assert storage.nbytes() < 4096 < pixels.nbytes()
        if device == "cuda":
            batches.close()
            cuda.synchronize()
            del tensor, storage, pixels, batch
            cuda.synchronize()
            cuda.collect()
            assert 0 < cuda.live[0] < 4096 and len(small[0])
            small.clear()
            cuda.synchronize()
            cuda.collect()
            assert cuda.live[0] == 0


class Operations(TorchDispatchMode):
    """Counts the operations of torch, each of which releases the GIL and waits for it."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.name() != "aten::detach":  # a part of a view by another type
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", ["padded_bits", "concat_bits", "concat"])
def test_the_consumer_only_arranges_a_batch_and_threads_cut_it_by_an_operation_per_key(
    ds, cuda, layout
):
    with Loader(ds, 2, device="cuda", mask_layout=layout) as batches:
        found = iter(batches)
        next(found)
        with Operations() as mode:
            next(found)
    of_masks = {"padded_bits": 3, "concat_bits": 0, "concat": 8}
    assert len(mode.names) <= of_masks[layout], mode.names
    chosen = ReadingOptions().chosen(ds)
    spec = BatchSpec(ds, chosen, MaskLayout.of(layout), to_device=True)
    regions, nbytes = spec.regions(8, 20, 100, 0)
    data = torch.arange(nbytes).to(torch.uint8)
    with Operations() as mode:
        views = tensors.batch_views(data, regions)
    assert len(mode.names) < 1.3 * len(regions)
    for key, region in regions.items():
        assert np.array_equal(views[key].numpy(), region.view(data.numpy()), equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_array_begins_where_kernels_expect_it(ds, cuda, layout, size):
    """Triton compiles another kernel for what does not begin at a multiple of 16 bytes."""
    with Loader(ds, size, device="cuda", mask_layout=layout) as batches:
        for batch in batches:
            for key, tensor in tensors_of(batch).items():
                assert tensor.storage_offset() * tensor.itemsize % 64 == 0, key
                assert tensor.is_contiguous(), key


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("changed", ["images", "sizes"])
def test_a_change_of_one_tensor_is_none_of_another(ds, cuda, device, changed):
    """Autograd refuses a tensor that it saved if the tensor, or what it is a view of, changed."""
    with Loader(ds, 4, device=device, mask_layout="concat_bits") as batches:
        batch = next(iter(batches))
    for key, tensor in tensors_of(batch).items():
        if key == changed or not tensor.dtype.is_floating_point:
            continue
        weight = torch.ones_like(tensor, requires_grad=True)
        loss = (weight * tensor).sum()
        batch[changed].add_(1)
        loss.backward()
        assert torch.equal(weight.grad, tensor), key


def test_a_default_device_does_not_move_the_memory_of_the_host(ds, cuda):
    collate = Collate("padded")
    for device in ("cpu", "cuda"):
        with Loader(ds, 4, device=device) as batches:
            with torch.device("meta"):
                found = [tensors_of(batch) for batch in batches]
            cuda.synchronize()
            for batch in found:
                same(batch, collate(ds.__getitems__(batch["indices"].tolist())))


# ------------------------------------------------------------------------------ captures and forks


def test_a_batch_taken_while_its_stream_is_captured_is_refused_by_name(ds, cuda):
    with Loader(ds, 2, device="cuda") as batches:
        found = iter(batches)
        next(found)
        with cuda.capture(), pytest.raises(LoaderError, match="while a CUDA graph is captured"):
            next(found)
        assert batches.state_dict()["samples"] == 2  # that batch is still to come


def test_a_forked_child_frees_no_memory_of_cuda_and_is_told_that_it_cannot_use_it(ds, cuda):
    """torch would record events to free it, and that failure ends the process."""
    batches = Loader(ds, 2, device="cuda", threads=1)
    found = iter(batches)
    held = next(found)
    with forked_child() as child:
        if child == 0:
            with pytest.raises(LoaderError, match=r"forked from one that had used CUDA.*spawn"):
                next(iter(batches))
            batches.close()
            held.clear()
            del found, held, batches
    held = None
    assert sum(len(batch["images"]) for batch in batches) == len(ds)
    batches.close()


def test_a_loader_that_was_not_used_before_the_fork_works_in_the_child(ds, monkeypatch):
    made = SimulatedCuda(devices=1)
    simulate(monkeypatch, made)
    batches = Loader(ds, 2, device="cuda")
    with forked_child() as child:
        if child == 0:
            made.process = os.getpid()
            assert sum(len(batch["images"]) for batch in batches) == len(ds)
            batches.close()
    assert made.contexts == set()
