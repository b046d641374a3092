"""A training step is compiled once for batches of one shape."""

import pytest
import torch
from torch._dynamo.utils import counters

from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.loading.dataloader import make_dataloader
from sa1bpack.loading.loader import Loader

pytestmark = [
    # What torch imports to compile, and advice of torch about Python 3.13.0.
    pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning"),
]
EPOCHS, BATCH, MASKS = 2, 3, 4


@pytest.fixture
def compiled_step():
    """A training step that takes a batch; the backend needs no C++ compiler."""
    torch.compiler.reset()
    counters.clear()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, MASKS)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @torch.compile(backend="aot_eager", dynamic=False)
    def loss_of(batch):
        means = batch["images"].float().mean((1, 2)) / 255  # (B, 3)
        covered = batch["masks"].float().mean((2, 3))  # (B, M)
        valid = torch.arange(covered.shape[1]) < batch["mask_counts"][:, None]
        losses = (model(means)[:, : covered.shape[1]] - covered).square() * valid
        return losses.sum() / valid.sum().clamp(min=1)

    def step(batch):
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    yield step
    torch.compiler.reset()


def compilations_by_batch(step, loader) -> list[int]:
    """How many graphs there were after each batch."""
    graphs = []
    for _ in range(EPOCHS):
        for batch in loader:
            assert step(batch).isfinite()
            graphs.append(counters["stats"]["unique_graphs"])
    return graphs


@pytest.mark.parametrize("make", [Loader, make_dataloader])
def test_batches_with_pad_to_max_are_compiled_at_the_first_and_never_again(
    packed, make, compiled_step
):
    """`epoch`, `batch_idx` and the counts change from batch to batch, and the buffers do."""
    loader = make(open_pack(packed.root), BATCH, max_masks=MASKS, pad_to_max=True, drop_last=True)
    graphs = compilations_by_batch(compiled_step, loader)
    assert len(graphs) == EPOCHS * (len(packed.samples) // BATCH)
    assert set(graphs) == {graphs[0]} and graphs[0] > 0
