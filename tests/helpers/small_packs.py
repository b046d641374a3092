"""Packs of small tars, made in a moment and within this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from small_tars import SMALL

import sa1bpack


def pack_small(sources: Path | Sequence[Path], root: Path, **options: Any) -> sa1bpack.PackResult:
    """What `sa1bpack.pack` returns for small pictures and shards of four, with other options."""
    return sa1bpack.pack(sources, root, workers=1, **SMALL | options)
