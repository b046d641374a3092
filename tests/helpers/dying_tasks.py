"""Functions for tasks of a cluster, which kill their own process: now and then, or always."""

import os
import signal
from pathlib import Path


def killed_once(marker: str, value: int) -> int:
    """Kill this process, unless one was killed before and left the marker; return the value."""
    path = Path(marker)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def killed(value: int) -> int:
    """Kill this process, except for the value 0, which is returned."""
    if value:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def ids_killed_once(batch, marker: str):
    """A function of a batch: its image ids, after the first process was killed."""
    killed_once(marker, 0)
    return batch["image_ids"]


def ids_but_one(batch, image_id: int):
    """A function of a batch: its image ids, unless one of them is `image_id`."""
    if image_id in batch["image_ids"].tolist():
        raise ZeroDivisionError(f"image {image_id}")
    return batch["image_ids"]


def ids(batch):
    """A function of a batch: its image ids."""
    return batch["image_ids"]
