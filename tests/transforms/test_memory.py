"""Memory of results is used again, but never while anybody holds it."""

import torch

from sa1bpack.transforms.memory import KEPT, LEAST, Memory


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_memory_is_used_again_when_the_last_view_is_gone():
    memory = Memory()
    first = memory.empty((LEAST // 4, 1), torch.float32)
    view, array, at = first[3:5], first.numpy(), address(first)
    second = memory.empty((LEAST // 4, 1), torch.float32)
    assert first.dtype == torch.float32 and first.shape == (LEAST // 4, 1)
    assert address(second) != at
    del first, view
    assert address(memory.empty((LEAST // 4,), torch.float32)) != at  # numpy still holds it
    del array
    assert address(memory.empty((LEAST,), torch.bool)) == at


def test_tensors_that_live_at_once_never_share_memory():
    memory, random = Memory(), torch.Generator().manual_seed(0)
    held: list[torch.Tensor] = []
    for step in range(25):
        count = int(torch.randint(LEAST, 3 * LEAST, (), generator=random))
        held.append(memory.empty((count,), torch.uint8).fill_(step))
        if len(held) > 4:
            held.pop(int(torch.randint(0, 5, (), generator=random)))
        assert all(tensor[0] == tensor[-1] for tensor in held)
        assert len({int(tensor[0]) for tensor in held}) == len(held)


def test_no_more_is_kept_than_two_results_of_the_same_size():
    memory = Memory()
    many = [memory.empty((LEAST,), torch.uint8) for _ in range(5)]
    places = {address(tensor) for tensor in many}
    del many
    kept = [memory.empty((LEAST,), torch.uint8) for _ in range(KEPT)]
    assert {address(tensor) for tensor in kept} <= places
    large = memory.empty((3 * LEAST,), torch.uint8)
    del large, kept[:]
    assert memory.empty((LEAST,), torch.uint8).untyped_storage().nbytes() == LEAST


def test_small_and_empty_tensors_are_torchs_own():
    memory = Memory()
    assert memory.empty((0, 5), torch.bool).shape == (0, 5)
    assert memory.empty((7,), torch.float32).untyped_storage().nbytes() == 28
