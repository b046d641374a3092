"""What a run is asked for: arguments of `pack` and `estimate`, checked before anything is begun."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sa1bpack.environment import available_cpus
from sa1bpack.errors import FormatError, OptionError, SourceError
from sa1bpack.format.manifest import check_shard_name
from sa1bpack.packing.options import PackOptions, checked_options
from sa1bpack.source.find import Source, find_sources
from sa1bpack.source.md5sums import read_md5sums


@dataclass(frozen=True)
class Request:
    """A run that can be begun, as far as that is known without its folder.

    sources
        What is to be packed, by name.
    out
        Folder of the pack.
    options
        What decides the bytes.
    workers
        Worker processes.
    sums
        Name of a source → the md5 that it must have; empty without a list.
    max_rejects
        More rejected members than this end the run; None is no limit.
    """

    sources: list[Source]
    out: Path
    options: PackOptions
    workers: int
    sums: dict[str, str]
    max_rejects: int | None


def checked_request(
    sources: str | Path | Iterable[str | Path],
    out: str | Path,
    options: dict,
    workers: int | None,
    md5sums: str | Path | None,
    max_rejects: int | None,
) -> Request:
    """The request that these arguments of `pack` make; writes nothing.

    Raises OptionError and SourceError as `pack` does.
    """
    choice = checked_options(options)
    workers = checked_workers(workers)
    if max_rejects is not None and (not isinstance(max_rejects, int) or max_rejects < 0):
        raise OptionError(f"max_rejects is {max_rejects!r}; a whole number of at least 0 is needed")
    _check_folder(Path(out))
    found = _sources_to_pack(sources)
    _check_outside(Path(out), found)
    return Request(found, Path(out), choice, workers, _expected_sums(found, md5sums), max_rejects)


def checked_workers(workers: int | None) -> int:
    """The number of workers asked for. Raises OptionError for fewer than one."""
    if workers is None:
        return available_cpus()
    if not isinstance(workers, int) or workers < 1:
        raise OptionError(f"workers is {workers!r}; a whole number of at least 1 is needed")
    return workers


def existing_parent(path: Path) -> Path:
    """The path, made absolute, or the nearest one above it that is there."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def _check_folder(out: Path) -> None:
    """Raise OptionError when a file is in the place of the folder, or of one above it."""
    existing = existing_parent(out)
    if not existing.is_dir():
        raise OptionError(f"{out}: {existing} is a file; name a folder, new or of a pack")


def _check_outside(out: Path, sources: list[Source]) -> None:
    """Raise OptionError when the pack would lie within a folder that it is made from."""
    for source in sources:
        if source.kind == "folder" and out.resolve().is_relative_to(source.path.resolve()):
            raise OptionError(
                f"{out} lies within the source {source.path}, and would be read as part of it; "
                "choose a folder outside"
            )


def _sources_to_pack(sources: str | Path | Iterable[str | Path]) -> list[Source]:
    """Find the sources; raises OptionError for none, SourceError for what cannot be a source."""
    found = find_sources([sources] if isinstance(sources, str | Path) else sources)
    if not found:
        raise OptionError("no source is given; name at least one tar or folder")
    for source in found:
        try:
            check_shard_name(f"{source.name}-000", str(source.path))
        except FormatError as error:
            raise SourceError(f"{error}; shards are named after their source: rename it") from None
    return found


def _expected_sums(sources: list[Source], md5sums: str | Path | None) -> dict[str, str]:
    """Name of each source → its md5 in the list."""
    if md5sums is None:
        return {}
    sums = read_md5sums(Path(md5sums))
    tars = [source for source in sources if source.kind != "folder"]
    missing = [source.path.name for source in tars if source.path.name not in sums]
    if missing:
        raise SourceError(
            f"{md5sums} has no sum for {', '.join(missing[:5])}"
            f"{' and others' if len(missing) > 5 else ''}; complete the list, or pack without it"
        )
    return {source.name: sums[source.path.name] for source in tars}
