"""Loaders over several packs: the batches of one pack with all their shards, and its states."""

from batches import clone

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


def test_a_state_of_a_source_resumes_when_its_pack_is_one_of_several(several):
    with Loader(
        open_pack(several.roots[1]).from_sources("sa_000000"), 2, shuffle=True, seed=1
    ) as loader:
        first = clone(next(iter(loader)))
        state = loader.state_dict()
    with Loader(
        open_pack(several.roots).from_sources("sa_000000"), 2, shuffle=True, seed=1
    ) as loader:
        loader.load_state_dict(state)
        rest = [batch["image_ids"].tolist() for batch in loader]
    assert len(rest) == 1
    assert sorted([*first["image_ids"].tolist(), *rest[0]]) == [4991, 4994, 4997, 5000]
