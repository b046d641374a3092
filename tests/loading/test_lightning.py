"""Lightning drives the Loader unchanged, and resumes it in mid-epoch."""

import pytest
from lightning_runs import Interrupted, Recorder, quiet_trainer
from small_tars import SMALL, members, write_tar

import sa1bpack

pytestmark = [
    # Lightning's own: its use of torch, and advice.
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]  # fmt: skip
IMAGES, BATCH, EPOCHS = 24, 8, 3


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lightning")
    tar = write_tar(folder / "sa_000000.tar", members(range(IMAGES)))
    sa1bpack.pack(tar, folder / "packed", workers=1, **SMALL)
    return folder / "packed"


def fit(pack, module, resume=None) -> list:
    trainer = quiet_trainer(max_epochs=EPOCHS)
    with sa1bpack.Loader(sa1bpack.open(pack), BATCH, shuffle=True, max_masks=2) as loader:
        trainer.fit(module, loader, ckpt_path=resume, weights_only=resume and False)
    return module.seen


def test_a_lightning_run_resumes_after_the_batch_at_which_its_checkpoint_was_saved(pack, tmp_path):
    complete = fit(pack, Recorder())
    assert [epoch for epoch, _ in complete] == sorted([*range(EPOCHS)] * (IMAGES // BATCH))
    for epoch in range(EPOCHS):
        seen = [image for of, images in complete for image in images if of == epoch]
        assert sorted(seen) == [*range(IMAGES)]

    first = Recorder(tmp_path / "middle.ckpt", stop=4)  # after the first batch of epoch 1
    with pytest.raises(Interrupted):
        fit(pack, first)
    rest = fit(pack, Recorder(), tmp_path / "middle.ckpt")
    assert first.seen + rest == complete
