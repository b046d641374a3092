"""Numbers in sentences."""


def counted(number: int, noun: str) -> str:
    """`counted(1, "shard")` is "1 shard", `counted(2000, "shard")` is "2,000 shards"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
