"""What is to be packed: the arguments of a run, checked, and what its pack holds already."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from sa1bpack.arguments import check_can_be_folder, local_path, patterns_of, whole_number
from sa1bpack.environment import available_cpus
from sa1bpack.errors import FormatError, OptionError, OutputRefused, SourceError
from sa1bpack.format.manifest import DIGEST_NAMES, check_shard_name, refuse_in_pack
from sa1bpack.packing.options import PackKeywords, PackOptions, RunKeywords, RunOptions
from sa1bpack.packing.pack_state import PackState
from sa1bpack.source.find import Source, find_sources, look_at, read_links, read_md5sums
from sa1bpack.urls import STORE_SCHEMES, is_url, shown


@dataclass(frozen=True, kw_only=True)
class Request(RunOptions):
    """A run that can start, as far as is known without looking into its folder.

    sources
        What is to be packed, sorted by name.
    out
        Folder of the pack.
    options
        What determines the bytes.
    sums
        Name of a source → the md5 that it must have; empty without a list.

    `workers` is always a number, and `md5` is true if there is a list.
    """

    sources: list[Source]
    out: Path
    options: PackOptions
    sums: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        super().__post_init__()
        if self.workers is None:
            object.__setattr__(self, "workers", available_cpus())
        object.__setattr__(self, "md5", self.md5 or self.md5sums is not None)


def checked_request(
    sources: str | Path | Iterable[str | Path], out: str | Path, given: RunKeywords
) -> Request:
    """The request that these arguments of `pack` describe; writes nothing.

    Raises OptionError, SourceError and PackError as `pack` does.
    """
    of_pack = {name: given[name] for name in PackKeywords.__annotations__.keys() & given}
    options = PackOptions(**of_pack)
    of_run = {name: value for name, value in given.items() if name not in of_pack}
    request = Request(sources=[], out=local_path("out", out), options=options, **of_run)
    out = request.out
    check_can_be_folder(out, "give a new folder, or that of a pack")
    refuse_in_pack("out", out)
    found = _found_sources(sources, request.links)
    for source in found:
        if source.kind == "folder" and out.resolve().is_relative_to(source.path.resolve()):
            raise OptionError(
                f"{out} lies within the source {source.path}, and would be read as part of it; "
                "choose a folder outside"
            )
    return replace(request, sources=found, sums=_expected_sums(found, request.md5sums))


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


def _found_sources(sources: str | Path | Iterable[str | Path], links: Path | None) -> list[Source]:
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


def sources_to_pack(
    state: PackState, request: Request
) -> tuple[list[Source], dict[str, SourceError]]:
    """The sources that the run must read; and name → error of those at URLs that cannot be.

    Those are left out that are complete in the pack, unless an md5 is to be recorded that it lacks:
    they are then read once more, and not decoded. Raises OutputRefused for another source of the
    same name, and what `look_at` raises.
    """
    return look_at([source for source in request.sources if not _is_packed(source, state, request)])


def _is_packed(source: Source, state: PackState, request: Request) -> bool:
    record = state.sources.get(source.name)
    if record is None:
        return False
    if source.kind != "remote" and record["nbytes"] != source.nbytes:
        raise _another_source(source, record, f"has {source.nbytes} bytes")
    if record["md5"] is None:
        return source.kind == "folder" or not request.md5
    expected = request.sums.get(source.name)
    if expected is not None:
        if record["md5"] != expected:
            raise _another_source(source, record, f"should have the md5 {expected}")
        record["md5_checked"] = True
    return True


def _another_source(source: Source, record: dict, found: str) -> OutputRefused:
    digests = [f"the {DIGEST_NAMES[key]} {record[key]}" for key in DIGEST_NAMES if record.get(key)]
    return OutputRefused(
        f"{source.path} {found}, but the pack holds a source {source.name!r} of "
        f"{record['nbytes']} bytes{' with ' if digests else ''}{' and '.join(digests)}; rename one "
        "of them, or use another output folder"
    )
