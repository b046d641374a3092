"""Loaders over several packs: the batches of one pack with all their shards, and its states."""

from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.loading.loader import Loader


def test_a_state_resumes_over_other_packs_of_the_same_shards(several):
    with Loader(open_pack(several.roots), 3, shuffle=True, seed=1) as loader:
        for number, _ in enumerate(loader):
            if number == 1:
                state = loader.state_dict()
                break
    rest = []
    for path in (several.roots, several.joined, several.roots[::-1]):
        with Loader(open_pack(path), 3, shuffle=True, seed=1) as loader:
            loader.load_state_dict(state)
            rest.append([batch["image_ids"].tolist() for batch in loader])
    assert rest[0] == rest[1] == rest[2] and len(rest[0]) == 4
