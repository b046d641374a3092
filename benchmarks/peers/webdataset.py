"""WebDataset: tars with .npy members, read from start to end.

It has no random access. To shuffle, it would keep a buffer of samples in memory, at some cost; here
it reads in the order of the tars, which is to its advantage.
"""

import io
from pathlib import Path

import numpy as np
import webdataset as wds

from peers.samples import Epoch, Samples, Stacker

DISTRIBUTION = "webdataset"
WAYS = {
    "WebDataset, sequential": {
        "decode()": {"view": False},
        "decode(), .npy viewed without a copy": {"view": True},
    }
}

NOTES = {"WebDataset, sequential": "It has no random access: it reads in the order of its tars"}


def prepare(samples: Samples, folder: Path) -> None:
    """Write tars of about 256 MiB."""
    pattern = str(folder / "samples-%03d.tar")
    with wds.ShardWriter(pattern, maxsize=1 << 28, verbose=0) as writer:
        for sample in samples:
            writer.write(
                {
                    "__key__": f"{sample['row']:06d}",
                    "row.npy": np.array(sample["row"]),
                    "image.npy": sample["image"],
                    "masks.npy": sample["masks"],
                }
            )


def open_reader(folder: Path, batch_size: int, view: bool) -> Epoch:
    """Samples decoded and batched by WebDataset's pipeline."""
    stack = Stacker()
    dataset = (
        wds.WebDataset(sorted(map(str, folder.glob("samples-*.tar"))), shardshuffle=False)
        .decode(*([wds.handle_extension("npy", _view)] if view else []))
        .to_tuple("row.npy", "image.npy", "masks.npy")
        .batched(batch_size, collation_fn=lambda items: _collate(stack, items))
    )

    def epoch(order: np.ndarray):
        yield from dataset

    return epoch


def _view(content: bytes) -> np.ndarray:
    """The array of a .npy file of format 1.0, without a copy."""
    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return np.frombuffer(content, dtype, offset=file.tell()).reshape(shape)


def _collate(stack: Stacker, items: list[tuple]):
    rows, images, masks = zip(*items, strict=True)
    return stack(np.array(rows), list(images), list(masks))
