"""The arguments of `pack` and `estimate`, checked before anything is begun."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sa1bpack.arguments import check_can_be_folder, flag, local_path, patterns_of, whole_number
from sa1bpack.environment import available_cpus
from sa1bpack.errors import FormatError, OptionError, SourceError
from sa1bpack.format.manifest import check_shard_name, refuse_in_pack
from sa1bpack.packing.options import PackOptions
from sa1bpack.source.find import Source, find_sources
from sa1bpack.source.lists import read_links, read_md5sums
from sa1bpack.urls import STORE_SCHEMES, is_url, shown


@dataclass(frozen=True)
class Request:
    """A run that can start, as far as is known without looking into its folder.

    sources
        What is to be packed, sorted by name.
    out
        Folder of the pack.
    options
        What determines the bytes.
    workers
        Worker processes.
    sums
        Name of a source → the md5 that it must have; empty without a list.
    md5
        Whether the md5 of tars is computed: if there is a list, or if it was asked for.
    max_rejects
        The run ends when more members than this are rejected; None: no limit.
    downloads
        Tars that are read at once if any is at a URL; None: by the number of workers.
    ignore_space
        Continue although the disk has no room.
    """

    sources: list[Source]
    out: Path
    options: PackOptions
    workers: int
    sums: dict[str, str] = field(default_factory=dict)
    md5: bool = False
    max_rejects: int | None = None
    downloads: int | None = None
    ignore_space: bool = False


def checked_request(
    sources: str | Path | Iterable[str | Path],
    out: str | Path,
    options: dict,
    workers: int | None,
    md5sums: str | Path | None,
    md5: bool,
    max_rejects: int | None,
    links: str | Path | None = None,
    downloads: int | None = None,
    ignore_space: bool = False,
) -> Request:
    """The request that these arguments of `pack` describe; writes nothing.

    Raises OptionError, SourceError and PackError as `pack` does.
    """
    pack_options = PackOptions(**options)
    workers = checked_workers(workers)
    if max_rejects is not None:
        max_rejects = whole_number("max_rejects", max_rejects, 0)
    out = local_path("out", out)
    if md5sums is not None:
        md5sums = local_path("md5sums", md5sums)
    if downloads is not None:
        downloads = whole_number("downloads", downloads, 1)
    check_folder(out)
    found = _sources_to_pack(sources, None if links is None else local_path("links", links))
    _check_outside(out, found)
    sums = _expected_sums(found, md5sums)
    md5 = bool(md5) or md5sums is not None
    return Request(
        found,
        out,
        pack_options,
        workers,
        sums,
        md5,
        max_rejects,
        downloads,
        flag("ignore_space", ignore_space),
    )


def upload_to(out: str | Path, staging: str | Path | None) -> tuple[str | None, str | Path]:
    """The URL that a pack is uploaded to, if `out` is one, and the local folder that it is made in.

    Raises OptionError for a URL without a staging folder, and for the reverse.
    """
    if is_url(out) and out.partition("://")[0].lower() in STORE_SCHEMES:
        if staging is None:
            raise OptionError(
                f"out is {shown(out)!r}: a pack is made on a local disk, shard by shard, and then "
                "uploaded; name a folder as `staging`"
            )
        return out, staging
    if staging is not None:
        raise OptionError(f"staging is {str(staging)!r}, but out is no URL of an object store")
    return None, out


def checked_workers(workers: int | None) -> int:
    """The number of workers asked for, by default that of the available processors.

    Raises OptionError for anything but a whole number of at least 1.
    """
    return available_cpus() if workers is None else whole_number("workers", workers, 1)


def existing_parent(path: Path) -> Path:
    """The path, made absolute, or the nearest one above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def check_folder(out: Path) -> None:
    """Raise OptionError if the folder, or one above it, is a file, or if it lies in a pack."""
    check_can_be_folder(out, "give a new folder, or that of a pack")
    refuse_in_pack("out", out)


def _check_outside(out: Path, sources: list[Source]) -> None:
    """Raise OptionError if the pack would lie within a folder that it is made from."""
    for source in sources:
        if source.kind == "folder" and out.resolve().is_relative_to(source.path.resolve()):
            raise OptionError(
                f"{out} lies within the source {source.path}, and would be read as part of it; "
                "choose a folder outside"
            )


def _sources_to_pack(
    sources: str | Path | Iterable[str | Path], links: Path | None
) -> list[Source]:
    """Find the sources; raises OptionError for none, SourceError for what cannot be a source."""
    listed = [] if links is None else read_links(links)
    found = find_sources(patterns_of("sources", sources), links=listed)
    if not found:
        raise OptionError("no source is given; give at least one tar or folder, or a list of links")
    for source in found:
        try:
            check_shard_name(f"{source.name}-000", str(source.path))
        except FormatError as error:
            raise SourceError(f"{error}; shards are named after their source: rename it") from None
    return found


def _expected_sums(sources: list[Source], md5sums: Path | None) -> dict[str, str]:
    """Name of each source → its md5 in the list."""
    if md5sums is None:
        return {}
    sums = read_md5sums(md5sums)
    tars = [source for source in sources if source.kind != "folder"]
    missing = [source.path.name for source in tars if source.path.name not in sums]
    if missing:
        raise SourceError(
            f"{md5sums} has no sum for {', '.join(missing[:5])}"
            f"{' and others' if len(missing) > 5 else ''}; complete the list, or pack without it"
        )
    return {source.name: sums[source.path.name] for source in tars}
