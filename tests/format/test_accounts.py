"""The accounts of a pack of sources whose pairs end at random: any loss is found, only that."""

import random

from sa1bpack.format.accounts import pack_shortfalls, shard_fault

# What becomes of a pair, and its reason if it is rejected.
FATES = ("sample", "sample", "sample", "bad-mask", "bad-jpeg", "too-large", "dropped")
# Of members that are no pair, by docs/format.md.
UNPAIRED = (
    *("missing-json", "missing-jpeg", "duplicate", "name-too-long", "bad-name", "not-a-file"),
    "too-large",
)
DETAIL_OF_A_PAIR = "JPEG of 9000 x 9000 = 81000000 pixels, over the limit of 67108864"
DETAIL_OF_A_MEMBER = "16777217 bytes, the limit for a json member is 16777216"


class Accounts:
    """What a packer records of random sources, by docs/format.md.

    Attributes:
        shards: (source, number) → attributes of each shard that has samples.
        sources: records of the sources.
    """

    def __init__(self, rng: random.Random):
        self.rows = rng.randint(1, 5)
        self.shards: dict[tuple[str, int], dict] = {}
        self.sources: list[dict] = []
        self.counts = {"dropped_images": 0, "rejects": 0, "rejects:duplicate": 0}
        for source in range(rng.randint(1, 4)):
            self._add(
                f"sa_{source:06d}", [rng.choice(FATES) for _ in range(rng.randint(0, 17))], rng
            )

    def _add(self, name: str, pairs: list[str], rng: random.Random) -> None:
        unpaired = []
        for _ in range(rng.randint(0, 2)):
            unpaired.append({"reason": rng.choice(UNPAIRED), "detail": DETAIL_OF_A_MEMBER})
        record = {"name": name, "pairs": len(pairs), "dropped": 0, "rejects": []}
        for first in range(0, len(pairs), self.rows):
            fates = pairs[first : first + self.rows]
            samples = fates.count("sample")
            dropped = fates.count("dropped")
            rejects = []
            for fate in fates:
                if fate not in ("sample", "dropped"):
                    rejects.append({"reason": fate, "detail": DETAIL_OF_A_PAIR})
            self.counts["dropped_images"] += dropped
            self._count(rejects)
            if not samples:
                record["dropped"] += dropped
                record["rejects"] += rejects
                continue
            number = first // self.rows
            self.shards[name, number] = {
                "part": number, "first_pair": first, "pairs": len(fates), "samples": samples,
                "dropped": dropped, "rejects": rejects,
                "options": {"samples_per_shard": self.rows},
            }  # fmt: skip
        self._count(unpaired)
        record["rejects"] += unpaired
        self.sources.append(record)

    def _count(self, rejects: list[dict]) -> None:
        for reject in rejects:
            for key in ("rejects", f"rejects:{reject['reason']}"):
                self.counts[key] = self.counts.get(key, 0) + 1

    def shortfalls(self, complete: bool = True) -> list[str]:
        """Sources that do not add up."""
        shards = [(*key, shard["samples"]) for key, shard in self.shards.items()]
        counts = self.counts if complete else None
        options = {"samples_per_shard": self.rows}
        return [each.source for each in pack_shortfalls(options, self.sources, shards, counts)]


def test_accounts_add_up_until_anything_is_lost():
    for seed in range(300):
        check_accounts(Accounts(random.Random(seed)))


def check_accounts(accounts: Accounts) -> None:
    """Whatever is lost of these accounts is found."""
    assert accounts.shortfalls() == accounts.shortfalls(complete=False) == []
    assert not any(map(shard_fault, accounts.shards.values()))
    for key in list(accounts.shards):
        shard = accounts.shards.pop(key)
        assert accounts.shortfalls() == accounts.shortfalls(complete=False) == [key[0]]
        accounts.shards[key] = shard
        shard["samples"] -= 1  # one image less in a shard
        assert shard_fault(shard) and accounts.shortfalls() == [""]
        shard["samples"] += 1
    for record in accounts.sources:
        record["dropped"] += 1
        assert accounts.shortfalls() == [record["name"]]
        record["dropped"] -= 1
    assert accounts.shortfalls() == []


def test_a_large_image_is_a_pair_and_a_large_member_is_not():
    """Both have the reason `too-large`: the detail tells them apart."""
    for detail, pairs in ((DETAIL_OF_A_PAIR, 3), (DETAIL_OF_A_MEMBER, 2)):
        options = {"samples_per_shard": 2}
        shards = [("sa_0", 0, 2)]
        rejects = [{"reason": "too-large", "detail": detail}]
        record = {"name": "sa_0", "pairs": pairs, "dropped": 0, "rejects": rejects}
        counts = {"dropped_images": 0, "rejects": 1, "rejects:too-large": 1}
        assert pack_shortfalls(options, [record], shards, counts) == ()
        (shortfall,) = pack_shortfalls(options, [record | {"pairs": pairs + 1}], shards, None)
        assert shortfall.source == "sa_0"
