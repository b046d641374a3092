"""What a new pack is to be like where a call leaves it open: found in its first sources."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

from sa1bpack import interrupts
from sa1bpack.errors import SourceError
from sa1bpack.mask_numbers import ABSENT_NUMBERS, chosen_numbers
from sa1bpack.packing.keep import IMAGE_NAME_KEY, KeepRequest, check_not_stored, stored_keys
from sa1bpack.packing.keep_probe import KeyProbe
from sa1bpack.packing.requested_options import PackRequest, RequestedOptions
from sa1bpack.packing.work import list_sources
from sa1bpack.paths import temporary_folder
from sa1bpack.progress import report
from sa1bpack.source.find import Source, look_at
from sa1bpack.source.records.find_annotations import find_annotation_file
from sa1bpack.source.records.find_reader import find_reader
from sa1bpack.source.records.images import PairOptions
from sa1bpack.source.records.table import READERS, SA1B, open_pairs

# Records that tell keys and types. If a key that is asked for is in none of them, it is looked for
# in more records of more sources, which takes seconds for each tar.
PROBED = 64
MOST_PROBED = 1000
MOST_SOURCES = 8


def requested_options(request: PackRequest) -> RequestedOptions:
    """The options of a pack that a request asks for, with what its sources tell of them.

    They are read only for a pack that does not exist yet, and once.
    """
    return replace(request.pack_options, find_open=SourceProbe(request))


class SourceProbe:
    """The options of a new pack that a request leaves to its sources, found once."""

    def __init__(self, request: PackRequest):
        self._request = request
        self._options: dict[str, Any] | None = None

    @cached_property
    def _sources(self) -> list[Source]:
        """The sources of the request."""
        return list_sources(self._request)

    def __call__(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """The reader of records, the numbers that they lack, and the keys that are kept.

        Args:
            named: the options that the request names.

        Raises:
            OptionError: a key is in none of the first records, or names are taken.
            Whatever `list_sources` and `_reader` raise.
        """
        if self._options is None:
            self._options = self._find(named)
        return self._options

    def _find(self, named: Mapping[str, Any]) -> dict[str, Any]:
        keep: KeepRequest | None = named.get("keep")
        records = named.get("records")
        if records is None:
            records = "webdataset" if named.get("keys") is not None else self._reader()
        absent = named.get("absent") or ()
        if records == SA1B and (keep is None or keep.is_settled):
            return {}
        if keep is not None:
            not_stored = absent if records == SA1B else ABSENT_NUMBERS
            stored = stored_keys(records, not_stored, chosen_numbers(named))
            check_not_stored([key.key for key in keep.keys], stored)
        probe = KeyProbe(keep or KeepRequest(), records, absent, chosen_numbers(named))
        for record in self._records(records, named.get("keys")):
            interrupts.check()
            if probe.records >= PROBED and not probe.lacks:
                break
            probe.add(record)
        keys = [*probe.keys()]
        if keep is None:
            keys = [*probe.default_keys()]
        if READERS[records].named and not any(key.key == IMAGE_NAME_KEY.key for key in keys):
            keys.append(IMAGE_NAME_KEY)
        found: dict[str, Any] = {"keep": [key.text for key in keys]}
        if records != SA1B:
            found["records"] = records
            found["absent"] = named.get("absent", probe.absent)
        return found

    def _reader(self) -> str:
        """The reader of the first source that can be read.

        Raises SourceError for a folder if it is not clear which file has its annotations: a pack
        for another reader would be made, into which it could not be packed later.
        """
        annotations = self._request.run_options.annotations
        for source in self._sources:
            with suppress(SourceError):
                return find_reader(source, annotations)
        for source in self._sources:
            if source.kind == "folder":
                find_annotation_file(source)
        return SA1B

    def _records(self, records: str, keys: str | None) -> Iterator[bytes]:
        """The first records of the first sources; those that cannot be read are passed over."""
        options = PairOptions(
            spool_dir=temporary_folder(),
            annotations=self._request.run_options.annotations,
            keys=keys,
        )
        for named in self._sources[:MOST_SOURCES]:
            readable, _ = look_at([named], on_wait=report)
            for source in readable:
                with suppress(SourceError), open_pairs(source, records, options) as reader:
                    for pair in islice(reader, MOST_PROBED):
                        yield pair.json
