"""Mistaken calls that type checkers must find, for `make lint`: nothing runs them.

mypy reports each `type: ignore` here that hides no error.
"""

from typing import Any

import torch

import sa1bpack


def rows(batch: dict[str, Any]) -> torch.Tensor:
    return torch.zeros(len(batch["image_ids"]))


def misspelt(ds: sa1bpack.Dataset) -> None:
    sa1bpack.pack("sa_000000.tar", "packed", fitt="pad")  # type: ignore[call-arg]
    sa1bpack.pack_part("*.tar", "packed", (1, 2), pixel="rgb")  # type: ignore[call-arg]
    sa1bpack.estimate("*.tar", "packed", sizes=512)  # type: ignore[call-arg]
    sa1bpack.open("packed", min_ious=0.9)  # type: ignore[call-arg]
    ds.with_options(mask="runs")  # type: ignore[call-arg]
    sa1bpack.Loader(ds, 8, max_mask=64)  # type: ignore[call-arg]
    sa1bpack.make_dataloader(ds, 8, workers=2)  # type: ignore[call-arg]
    sa1bpack.derive(ds, "rows", rows, thread=2)  # type: ignore[call-overload]


def of_another_type(ds: sa1bpack.Dataset) -> None:
    sa1bpack.pack("sa_000000.tar", "packed", image_size="1024")  # type: ignore[arg-type]
    sa1bpack.Loader(ds, 8, max_masks="all")  # type: ignore[arg-type]
    sa1bpack.Loader(ds, batch_size=8.5)  # type: ignore[arg-type]
    sa1bpack.OrderedBatches(sa1bpack.ShuffleOrder(ds), 8, last="drop")  # type: ignore[call-arg]
