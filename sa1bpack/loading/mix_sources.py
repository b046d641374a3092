"""The sources of a Mix, checked, and what they weigh."""

from collections.abc import Mapping
from typing import Any

from sa1bpack.errors import OptionError
from sa1bpack.loading.iteration import BaseLoader
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.order.mixture import MOST_SOURCES
from sa1bpack.schedules import Schedule
from sa1bpack.wording import brief


def checked_loaders(loaders: Any) -> dict[str, Loader]:
    """The sources of a mix. Raises OptionError for what cannot be mixed."""
    if not isinstance(loaders, Mapping) or not 1 <= len(loaders) <= MOST_SOURCES:
        raise OptionError(
            f"loaders is {brief(loaders)}: pass a dict of 1 to {MOST_SOURCES} Loaders by their "
            'names, such as {"sa1b": loader_a, "coco": loader_b}'
        )
    names: dict[int, str] = {}
    for name, loader in loaders.items():
        if not isinstance(name, str) or not name:
            raise OptionError(f"a source is called {brief(name)}: choose a str as its name")
        if not isinstance(loader, Loader):
            raise OptionError(f"source {name!r} is {brief(loader)}: {_remedy(loader)}")
        if id(loader) in names:
            raise OptionError(
                f"sources {names[id(loader)]!r} and {name!r} are the same Loader, which has one "
                "place: make a second one"
            )
        names[id(loader)] = name
    return dict(loaders)


def _remedy(loader: Any) -> str:
    if isinstance(loader, BaseLoader):
        return (
            "a Mix shares its threads among Loaders, and worker processes of a DataLoader would "
            "compete with them: make a sa1bpack.Loader, with a pipeline in place of a transform"
        )
    return "a Mix takes Loaders, sa1bpack.Loader(ds, batch_size)"


def check_names(weights: Any, loaders: Mapping[str, Loader]) -> None:
    """Raise OptionError unless there is a weight for each of the sources, and no other."""
    if not isinstance(weights, Mapping):
        raise OptionError(f"weights is {brief(weights)}: pass a dict of names and numbers")
    missing = [name for name in loaders if name not in weights]
    unknown = [name for name in weights if name not in loaders]
    if missing or unknown:
        texts = []
        if missing:
            texts.append(f"lacks {', '.join(map(repr, missing))}")
        if unknown:
            texts.append(f"has {', '.join(map(brief, unknown))}, which is no source")
        raise OptionError(
            f"weights {' and '.join(texts)}: give one number for each of {', '.join(loaders)}; 0 "
            "leaves a source out"
        )


def usual_weight(loader: Loader) -> float:
    """The batches of an epoch of a source, as on one rank: no number of ranks changes it."""
    rules = loader.batches.current.rules
    size = rules.size_per_rank
    if isinstance(size, Schedule):
        size = size(0)
    if rules.global_batch_size is not None:
        size *= rules.world_size
    return len(rules.order) / size
