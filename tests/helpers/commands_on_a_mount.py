"""Every command that locks, called on a mount without locks; run by tests/packing/test_no_locks.py.

Arguments: the folder of the mount, a folder elsewhere, a tar and another one, and errnos. Prints a
line of JSON for each call: {"errno", "call", "outcome", "said"}, where "outcome" is "done" or the
class and the text of an error, and "said" are the warnings.
"""

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from small_tars import SMALL

import sa1bpack
from sa1bpack.errors import Sa1bpackError
from sa1bpack.format import file_locks

# Calls that go on without locks, and that do not: what the errno decides is the same for all.
FEW = ("pack", "pack a part", "cache")


class _Said(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def grey(batch):
    """A feature."""
    return batch["images"].float().mean((1, 2, 3))


def calls(mount: Path, elsewhere: Path, first: Path, second: Path) -> dict[str, Callable]:
    """Name → call, of all commands, in an order in which each finds what it needs."""
    pack, other, merged = mount / "pack", mount / "other", mount / "merged"
    whole = {"workers": 1, **SMALL}

    def damaged() -> None:
        chunk = next(pack.glob("shards/*/mask_bits/c.*"))
        chunk.write_bytes(bytes(len(chunk.read_bytes())))

    def repair() -> None:
        damaged()
        assert sa1bpack.repair(pack, [first, second], workers=1).ok

    def derive() -> None:
        result = sa1bpack.derive(sa1bpack.open(pack), "grey", grey)
        assert not result.missing

    def attach() -> None:
        ds = sa1bpack.open(pack)
        ids = ds.column("image_id")
        result = sa1bpack.attach(ds, "rows", np.zeros((len(ids), 2), np.float32), ids)
        assert not result.missing

    def through_a_cache(folder: Path) -> Callable:
        return lambda: sa1bpack.open(pack.as_uri(), cache_dir=folder, cache_size="1 GB")[0]

    return {
        "estimate": lambda: sa1bpack.estimate(first, pack, **whole),
        "pack": lambda: sa1bpack.pack(first, pack, **whole),
        "pack more": lambda: sa1bpack.pack([first, second], pack, **whole),
        "pack in workers": lambda: sa1bpack.pack(first, other, **(whole | {"workers": 2})),
        "pack a part": lambda: sa1bpack.pack_part(first, mount / "part", (1, 2), **whole),
        "finalize": lambda: sa1bpack.finalize(pack),
        "repair --dry-run": lambda: sa1bpack.repair(pack, dry_run=True),
        "repair": repair,
        "repair a part": lambda: sa1bpack.repair(pack, [first, second], part=(1, 2), workers=1),
        "merge": lambda: sa1bpack.merge([pack], merged),
        "verify": lambda: sa1bpack.verify(pack),
        "derive": derive,
        "attach": attach,
        "read": lambda: [*sa1bpack.Loader(sa1bpack.open(pack), batch_size=2, device="cpu")],
        "read tars": lambda: sa1bpack.TarDataset(first, index_folder=mount / "indices")[0],
        "export_sa1b": lambda: sa1bpack.export_sa1b(pack, mount / "json"),
        "export_coco": lambda: sa1bpack.export_coco(pack, mount / "coco.json"),
        "cache": through_a_cache(mount / "cache"),
        "cache elsewhere": through_a_cache(elsewhere / "cache"),
        "verify all": lambda: sa1bpack.verify(merged),
    }


def main(mount: Path, elsewhere: Path, first: Path, second: Path, codes: list[str]) -> None:
    """Make all calls for the first errno, and FEW for each of the others."""
    handler = _Said()
    logging.getLogger("sa1bpack").addHandler(handler)
    for code in codes:
        os.environ["FLOCK_ERRNO"] = code
        for name, call in calls(mount, elsewhere, first, second).items():
            if code != codes[0] and name not in FEW:
                continue
            file_locks.told.clear()  # as in a process of its own
            handler.lines.clear()
            outcome = "done"
            try:
                call()
            except (Sa1bpackError, OSError) as error:
                outcome = f"{type(error).__name__}: {error}"
            said = list(handler.lines)
            print(json.dumps({"errno": code, "call": name, "outcome": outcome, "said": said}))
        for folder in (mount, elsewhere):
            shutil.rmtree(folder)
            folder.mkdir()


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:5]]
    main(*paths, codes=sys.argv[5:])
