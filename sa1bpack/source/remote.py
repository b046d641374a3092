"""What tars at URLs are: size, version and kind, asked for with one short request each."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from sa1bpack.errors import SourceError
from sa1bpack.source.find import Source, kind_of
from sa1bpack.source.tar import BLOCK
from sa1bpack.urls import Stream, scheme_of

AT_ONCE = 16
ATTEMPTS = 4  # of each: a thousand sources must not wait two minutes each if the network is down


def look_at(sources: Sequence[Source]) -> tuple[list[Source], dict[str, SourceError]]:
    """The sources, with size and kind of those at URLs, in their order; and name → error of those
    that cannot be read, which are left out.

    Raises OptionError and MissingPackage if an object store cannot be opened.
    """
    files = {source.name: _head_of(source) for source in sources if source.kind == "remote"}
    failed: dict[str, SourceError] = {}
    found: list[Source] = []
    with ThreadPoolExecutor(AT_ONCE, "sa1bpack-look") as pool:
        try:
            asked = {name: pool.submit(_ask, file) for name, file in files.items()}
            for source in sources:
                try:
                    found.append(
                        _looked_at(source, files, asked[source.name].result())
                        if source.name in asked
                        else source
                    )
                except SourceError as error:
                    failed[source.name] = error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for file in files.values():
                file.cancel()
            raise
    return found, failed


def _looked_at(source: Source, files: dict[str, Stream], head: bytes) -> Source:
    address = files[source.name].address
    return replace(source, path=address, kind=kind_of(head, address), nbytes=address.nbytes)


def _head_of(source: Source) -> Stream:
    scheme = scheme_of(source.path.url)
    return scheme.open_stream(source.path, stop=BLOCK, attempts=ATTEMPTS)


def _ask(file: Stream) -> bytes:
    """The first bytes of a file."""
    head = b""
    try:
        while len(head) < BLOCK and (data := file.read(BLOCK - len(head))):
            head += data
    finally:
        file.close()
    return head
