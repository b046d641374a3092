"""Changes to inputs that random bytes rarely produce: still valid JSON, with other content."""

import copy
import json
import random
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 4, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**400,
    0.0, -0.5, 1e308, float("nan"), float("inf"),
    "", "..", "../x", "/etc", "a/b", "a\\b", "\0", "\x1b[2J", "\ud800", "x" * 300, "é", "zarr.json",
    "index-00000000", "sa_000000-000", "yuv420", "native",
    [], {}, [[]], [None], [0, 0], [1, 0], {"": None},
)  # fmt: skip
JSON_TARGETS = ("annotations", "manifest", "shard_metadata", "array_metadata", "rejects")


def mutate_json(data: bytes, rng: random.Random) -> bytes | None:
    """The same JSON with one to three changes.

    None if it is not a JSON object, or is nested too deeply for Python to change it.
    """
    try:
        tree = json.loads(data)
        if not isinstance(tree, dict):
            return None
        for _ in range(rng.randint(1, 3)):
            if places := list(_places(tree)):
                _change(*rng.choice(places), rng)
        text = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
        # Half a surrogate pair, which UTF-8 does not allow, is encoded as if it did.
        return text.encode(errors="surrogatepass")
    except (ValueError, RecursionError):
        return None


def _places(node: Any, depth: int = 0):
    """(container, key or index) of every part, down to the depth of real files."""
    keys = node if isinstance(node, dict) else range(len(node))
    for key in keys:
        yield node, key
        if isinstance(node[key], dict | list) and depth < 12:
            yield from _places(node[key], depth + 1)


def _change(node: Any, key: Any, rng: random.Random) -> None:
    way = rng.randrange(6)
    if way == 0:
        del node[key]
    elif way == 1 and isinstance(node, dict):
        node[rng.choice(("", "x" * 100, "\x1b", key + "_"))] = node.pop(key)
    elif way == 1:
        node.insert(key, copy.deepcopy(node[key]))
    elif way == 2:  # wrapped, to make it deeper
        for _ in range(rng.choice((1, 5, 300))):
            node[key] = [node[key]] if rng.random() < 0.5 else {"x": node[key]}
    elif way == 3 and isinstance(node[key], int | float) and abs(node[key]) < 2**64:
        node[key] += rng.choice((-1, 1, 0.5, 2**32, 10**19))
    else:
        node[key] = copy.deepcopy(rng.choice(VALUES))
