"""Where packs are that users name: folders, patterns of them, and URLs."""

from pathlib import Path
from typing import Any, NamedTuple

from sa1bpack.errors import EmptyPack
from sa1bpack.paths import listed, paths_of, refuse_dataset
from sa1bpack.urls import ShardSource, is_pack_url, pack_url, scheme_of


class Fetching(NamedTuple):
    """How packs at URLs are read.

    Attributes:
        cache: folder of the cache; None: a folder of the user.
        limit: bytes that the cache may take; None: as before, or by the free disk.
        fetch: "rows" or "shards".
    """

    cache: Path | None = None
    limit: int | None = None
    fetch: str = "rows"


def origins_of(
    name: str, value: Any, fetching: Fetching | None = None
) -> tuple[list[Path | ShardSource], list[EmptyPack]]:
    """Where packs are: folders, and sources of what is named by URL.

    Also the errors of packs at URLs that have no image.

    Args:
        name: name of the argument, for messages.
        value: a path, a pattern, a URL, or a list of them.
        fetching: how packs at URLs are read; None: by rows, of which none are kept.
    """
    origins: list[Path | ShardSource] = []
    empty: list[EmptyPack] = []
    for place in places_of(name, value):
        if isinstance(place, Path):
            origins.append(place)
            continue
        try:
            origins.append(scheme_of(place).open_pack(place, *(fetching or Fetching())))
        except EmptyPack as error:
            empty.append(error)
    return origins, empty


def places_of(name: str, value: Any) -> list[Path | str]:
    """Where packs are: the folders that paths and patterns stand for, and URLs, in order.

    Raises OptionError as `paths_of`, and for a URL that cannot be used.
    """
    refuse_dataset(name, value)
    names = listed(value)
    if not any(map(is_pack_url, names)):
        return [*paths_of(name, names)]
    places: list[Path | str] = []
    for path in names:
        if is_pack_url(path):
            places.append(pack_url(name, path))
        else:
            places += paths_of(name, path)
    return places
