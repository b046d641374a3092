"""Ways to take a value out of a dict, each a function of the dict and the key.

Samples and batches are dicts that notice when somebody takes an array: no way may pass them by.
"""

import copy
from collections.abc import Callable
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

from torch.utils._pytree import tree_leaves, tree_map


def by_update(values: dict[str, Any], key: str) -> Any:
    merged: dict[str, Any] = {}
    merged.update(values)
    return merged[key]


def by_match(values: dict[str, Any], key: str) -> Any:
    pattern = SimpleNamespace(key=key)
    match values:
        case {pattern.key: value}:
            return value
    raise KeyError(key)


WAYS: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "index": lambda values, key: values[key],
    "get": lambda values, key: values.get(key),
    "items": lambda values, key: dict(values.items())[key],
    "values": lambda values, key: list(values.values())[list(values).index(key)],
    "generator": lambda values, key: {name: values[name] for name in values}[key],
    "dict": lambda values, key: dict(values)[key],
    "stars": lambda values, key: {**values}[key],
    "keywords": lambda values, key: dict(**values)[key],
    "or": lambda values, key: (values | {"more": 1})[key],
    "reversed or": lambda values, key: ({"more": 1} | values)[key],
    "update": by_update,
    "pop": lambda values, key: values.pop(key),
    "popitem": lambda values, key: dict(values.popitem() for _ in range(len(values)))[key],
    "setdefault": lambda values, key: values.setdefault(key, None),
    "copy": lambda values, key: values.copy()[key],
    "copy.copy": lambda values, key: copy.copy(values)[key],
    "copy.deepcopy": lambda values, key: copy.deepcopy(values)[key],
    "itemgetter": lambda values, key: itemgetter(key)(values),
    "match": by_match,
    "leaves": lambda values, key: tree_leaves(values)[list(values).index(key)],
    "map": lambda values, key: tree_map(lambda value: value, values)[key],
}
