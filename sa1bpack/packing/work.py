"""What there is to pack: the sources that a request names, and which of them a pack lacks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sa1bpack.errors import FormatError, OptionError, OutputRefused, SourceError
from sa1bpack.format.manifest import check_shard_name
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.records import is_copied_in_part
from sa1bpack.packing.requested_options import PackRequest
from sa1bpack.paths import exists, real_path
from sa1bpack.progress import report
from sa1bpack.source.find import Source, find_sources, look_at, read_links, read_md5sums
from sa1bpack.wording import brief


@dataclass(frozen=True)
class Work:
    """The work of a run.

    Attributes:
        named: number of sources that the request names.
        sources: those that must be read, in the order of their names.
        new: those of them that are not complete in the pack; the others lack an md5.
        unreadable: name of each source at a URL that cannot be read → the error.
    """

    named: int
    sources: list[Source]
    new: list[Source]
    unreadable: dict[str, SourceError]

    @property
    def packed_before(self) -> int:
        """Number of the sources that are complete in the pack."""
        return self.named - len(self.new) - len(self.unreadable)


def list_sources(request: PackRequest) -> list[Source]:
    """The sources that a request names, sorted by name; URLs are not asked.

    Raises:
        OptionError: there is none, or the output lies within one.
        SourceError: a pattern matches nothing, a file is no source or cannot be read, two have one
            name, or a list lacks one.
        MissingPackage: the packages for an object store are not installed.
    """
    links = []
    annotations = request.run_options.annotations
    if annotations is not None and not exists(annotations):
        raise SourceError(f"{annotations}: no such file or folder of annotations; check the path")
    if request.run_options.links is not None:
        links = read_links(request.run_options.links)
    sources = find_sources(request.patterns, links=links, leave_out=request.output, on_wait=report)
    if not sources:
        raise OptionError("no source is given; give at least one tar or folder, or a list of links")
    output = real_path(request.output)
    for source in sources:
        try:
            check_shard_name(f"{source.name}-000", str(source.path))
        except FormatError as error:
            raise SourceError(f"{error}; shards are named after their source: rename it") from None
        if isinstance(source.path, Path) and output.is_relative_to(real_path(source.path)):
            raise OptionError(
                f"{request.output} lies within the source {source.path}; choose one outside"
            )
    if request.run_options.md5sums is None:
        return sources
    return _with_md5sums(sources, request.run_options.md5sums)


def _with_md5sums(sources: Sequence[Source], path: Path) -> list[Source]:
    """The sources with the sums of a list in md5sum's format, which has one for every tar."""
    md5sums = read_md5sums(path)
    listed = []
    for source in sources:
        if source.kind != "folder":
            if source.path.name not in md5sums:
                raise SourceError(f"{path} lacks {source.path.name}; complete it, or pack without")
            source = replace(source, expected_md5=md5sums[source.path.name])
        listed.append(source)
    return listed


def find_work(ledger: Ledger, sources: Sequence[Source], records_md5: bool) -> Work:
    """The work that is left of these sources.

    Those that are complete in the pack are left out, unless an md5 is to be recorded that it lacks:
    they are read once more, and not decoded.

    Args:
        ledger: the ledger of the pack. An md5 that a list confirms is marked there.
        sources: the sources that the request names.
        records_md5: the md5 of tars is recorded.

    Raises:
        OutputRefused: a source is another one than that of its name in the pack.
        OptionError, MissingPackage: an object store cannot be opened.
    """
    to_read = []
    for source in sources:
        record = ledger.sources.get(source.name)
        if record is None:
            to_read.append(source)
            continue
        _check_same_source(source, record)
        if record["md5"] is None:
            if records_md5 and is_copied_in_part(record):
                raise OutputRefused(
                    f"{source.path}: the pack has a copy of some samples of this source, and an "
                    "md5 is recorded where the whole source is packed: leave out --md5 and "
                    "--md5sums, or the source"
                )
            if records_md5 and source.kind != "folder":
                to_read.append(source)
        elif source.expected_md5 is not None:
            ledger.sources[source.name] = record | {"md5_checked": True}
    readable, unreadable = look_at(to_read, on_wait=report)
    new = [source for source in readable if source.name not in ledger.sources]
    return Work(len(sources), readable, new, unreadable)


def _check_same_source(source: Source, record: dict[str, Any]) -> None:
    """Raise OutputRefused if a source is another than the one of its name in the pack."""
    if source.kind != "remote" and record["nbytes"] != source.nbytes:
        difference = f"has {source.nbytes} bytes"
    elif record["md5"] is not None and source.expected_md5 not in (None, record["md5"]):
        difference = f"should have the md5 {source.expected_md5}"
    else:
        return
    digest = ""
    if record["md5"] is not None:
        digest = f" and the md5 {record['md5']}"
    raise OutputRefused(
        f"{source.path} {difference}, but the pack holds a source {brief(source.name)} of "
        f"{record['nbytes']} bytes{digest}; rename one of them if they have other images "
        "(the same ones are packed already), or use another output folder"
    )
