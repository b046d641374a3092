"""Three packs whose sources and image ids interleave, and one pack of all their shards."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from reading_packs import publish_shards, write_pack

from sa1bpack.format.manifest import read_manifest

# Pack → its first image id, and its shards with the masks of their samples. The second shard of all
# is empty; sources alternate between packs, and one source has a part in each of two packs.
PACKS = {
    "c": (5002, {"sa_000001-000": (3, 1), "sa_000004-000": (2, 2, 0, 6)}),
    "a": (5000, {"sa_000000-000": (2, 0, 5, 1), "sa_000000-001": (), "sa_000003-001": (4,)}),
    "b": (9001, {"sa_000002-000": (9, 3), "sa_000003-000": (0, 7, 1)}),
}


def joined_pack(root: Path, packs: list[Path]) -> Path:
    """A pack with copies of all shards of these, in the order of sources and parts."""
    entries = []
    for pack in packs:
        shutil.copytree(pack / "shards", root / "shards", dirs_exist_ok=True)
        entries += read_manifest(pack).shards
    entries.sort(key=lambda entry: (entry.source, entry.part))
    layout = read_manifest(packs[0]).layout
    publish_shards(root, entries, layout)
    return root


@pytest.fixture(scope="session")
def several(tmp_path_factory) -> SimpleNamespace:
    """Packs that no test may change: their `roots`, and `joined`, one pack of the same shards."""
    folder = tmp_path_factory.mktemp("several")
    for name, (first_id, shards) in PACKS.items():
        write_pack(folder / name, shards, first_id=first_id)
    roots = [folder / name for name in PACKS]
    joined = joined_pack(folder / "joined", roots)
    return SimpleNamespace(folder=folder, roots=roots, joined=joined)
