"""Which of the sources given a pack holds already, and whether they are the same files."""

from sa1bpack import interrupts
from sa1bpack.errors import OutputRefused, SourceError
from sa1bpack.format.manifest import DIGEST_NAMES
from sa1bpack.packing.pack_state import PackState
from sa1bpack.packing.progress import report
from sa1bpack.progress import byte_bar
from sa1bpack.source.find import Source, look_at
from sa1bpack.source.inflate import RawFile
from sa1bpack.wording import counted


def sources_to_pack(
    state: PackState, sources: list[Source], sums: dict[str, str]
) -> tuple[list[Source], dict[str, SourceError]]:
    """Those not complete in the pack; and name → error of those at URLs that cannot be read.

    A source at a URL that is complete in the pack is not asked for. Raises OutputRefused for
    another source of the same name, and what `look_at` raises.
    """
    return look_at([source for source in sources if not _is_packed(source, state, sums)])


def _is_packed(source: Source, state: PackState, sums: dict[str, str]) -> bool:
    record = state.sources.get(source.name)
    if record is None:
        return False
    if source.kind != "remote" and record["nbytes"] != source.nbytes:
        raise _another_source(source, record, f"has {source.nbytes} bytes")
    expected = sums.get(source.name)
    if expected is not None and record["md5"] is not None:
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


def add_missing_md5(
    state: PackState, sources: list[Source], sums: dict[str, str], show_progress: bool | None
) -> None:
    """Compute the md5 of every tar that the pack holds without one, and enter it in its record.

    An earlier run packed them without. Each is read once, to its end; nothing is decoded. Raises
    OutputRefused if a tar is not the one that was packed, or not the one in the list, and
    SourceError if it cannot be read.
    """
    todo = [
        source
        for source in sources
        if source.name in state.sources
        and source.kind != "folder"
        and state.sources[source.name]["md5"] is None
    ]
    if not todo:
        return
    report(f"computing the md5 of {counted(len(todo), 'tar')}, which the pack does not record yet")
    done, total = 0, sum(state.sources[source.name]["nbytes"] for source in todo)
    with byte_bar(show_progress) as advance:
        for source in todo:
            record, raw = state.sources[source.name], RawFile(source.path, md5=True, on_wait=report)
            try:
                while chunk := raw.read_chunk():
                    interrupts.check()
                    done += len(chunk)
                    advance(done, total)
                found, md5 = raw.xxh128(), raw.md5()
            finally:
                raw.close()
            if found != record["xxh128"]:
                raise _another_source(source, record, f"has the {DIGEST_NAMES['xxh128']} {found}")
            expected = sums.get(source.name)
            if expected not in (None, md5):
                fault = f"has the md5 {md5}, and should have {expected}"
                raise _another_source(source, record, fault)
            record["md5"], record["md5_checked"] = md5, expected is not None
