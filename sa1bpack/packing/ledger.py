"""The ledger of a pack: which shards, sources and rejects it has.

Published shards carry their own record (the attributes of their Zarr group), so a killed run loses
at most its unpublished shards; the manifest adds the records of complete sources. A manifest is
made of the shards and the sources alone: the same input yields the same bytes, however often the
run was interrupted.

A ledger writes nothing; `publishers` write what it says.
"""

from collections.abc import Set
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from sa1bpack.format.accounts import Shortfall, source_shortfall
from sa1bpack.format.index import find_duplicates, open_manifest_and_index
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    make_manifest,
    shard_folders,
)
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.records import (
    EmptyShard,
    PublishedShard,
    ShardKey,
    SourceRead,
    SourceRecord,
    check_record,
    note_path,
    published_shard,
    read_own_manifest,
    read_source_notes,
    source_record,
)
from sa1bpack.packing.requested_options import RequestedOptions
from sa1bpack.paths import exists
from sa1bpack.source.pairs import why_no_pairs
from sa1bpack.source.records.table import READERS, SA1B, notes_on_records

_SOURCES_NAMED = 5  # in one line
_AFTER_SHARDS = 1 << 62  # as a number: sorts the record of a source after those of its shards


class Ledger:
    """The shards and sources of a pack.

    Attributes:
        options: options of the pack.
        shards: (source, number within it) → the published shard.
        empty: (source, number within it) → a shard without samples, of a source that is read.
        sources: name of a finished source → its record in the manifest.
        shortfalls: name of a source that was recorded as finished, but of which pairs are missing →
            what is wrong. It is not among `sources`.
        listed: names of the shards that the manifest listed when it was read.
        noted: names of the sources whose records are in notes of parts, not in the manifest.
        taken_options: a line for the user, if options were left out that the pack has, or that
            were found to be other ones than a user may expect; or "".
    """

    def __init__(self, options: PackOptions):
        """A ledger without entries."""
        self.options = options
        self.shards: dict[ShardKey, PublishedShard] = {}
        self.empty: dict[ShardKey, EmptyShard] = {}
        self.sources: dict[str, dict[str, Any]] = {}
        self.shortfalls: dict[str, Shortfall] = {}
        self.listed: set[str] = set()
        self.noted: list[str] = []
        self.taken_options = ""

    @classmethod
    def load(cls, root: Path, options: RequestedOptions, only: Set[str] | None = None) -> "Ledger":
        """The ledger of what is published in a folder. Writes nothing.

        Args:
            root: folder of the pack.
            options: options that are asked for. If the folder holds a pack, it must have been made
                with them, and others are those of the pack.
            only: names of the sources to enter; None: all.

        Raises:
            OptionsDiffer: the folder was packed with other options.
            OptionError: options of a new pack do not go together.
            FormatError: the pack is damaged.
            VersionError: the pack has a newer version.
        """
        listed: tuple[ShardEntry, ...] = ()
        if not exists(root / MANIFEST_NAME):
            ledger = cls(options.of_new_pack())
            ledger.taken_options = options.found_text(ledger.options)
        else:
            manifest = read_own_manifest(root)
            ledger = cls(options.of_pack(manifest.options, root))
            ledger.taken_options = options.taken_text(ledger.options)
            listed = manifest.shards
            for record in manifest.sources:
                if only is None or record["name"] in only:
                    ledger.sources[record["name"]] = record
        for folder in shard_folders(root):
            if only is None or folder.name.rpartition("-")[0] in only:
                ledger.add_shard(published_shard(folder, root))
        for name, note in read_source_notes(root).items():
            if (only is None or name in only) and note.record is not None and note.holds(root):
                check_record(note.record, SourceRecord, f"{note_path(root, name)}: sources")
                ledger.sources[name] = note.record
                ledger.noted.append(name)
        for entry in listed:
            ledger.listed.add(entry.name)
            if (entry.source, entry.part) not in ledger.shards:
                # Someone removed a shard: its source is incomplete.
                ledger.sources.pop(entry.source, None)
        ledger._set_shortfalls_aside()
        return ledger

    def _set_shortfalls_aside(self) -> None:
        """Take out the records of sources of which pairs are missing: these are not finished."""
        pairs: dict[str, dict[int, int]] = {}
        for (source, number), shard in self.shards.items():
            pairs.setdefault(source, {})[number] = shard.attributes["pairs"]
        for name, record in list(self.sources.items()):
            shortfall = source_shortfall(
                record, pairs.get(name, {}), self.options.pairs_per_shard, by_pairs=True
            )
            if shortfall is not None:
                self.shortfalls[name] = shortfall
                del self.sources[name]

    def add_shard(self, shard: PublishedShard) -> None:
        """Enter a published shard."""
        self.shards[shard.entry.source, shard.entry.part] = shard

    def finish_source(self, read: SourceRead) -> None:
        """Enter the record of a source that was read to its end.

        Raises PackError unless every shard of it is entered.
        """
        empty = {}
        for (name, number), shard in self.empty.items():
            if name == read.name:
                empty[number] = shard
        shards = self.shards_of(read.name)
        self.sources[read.name] = source_record(read, shards, empty, self.options.pairs_per_shard)

    def withdraw(self, source: str) -> list[PublishedShard]:
        """Take out a source with all its shards; returns these."""
        shards = self.shards_of(source)
        for number in shards:
            del self.shards[source, number]
        self.sources.pop(source, None)
        return list(shards.values())

    def shards_of(self, source: str) -> dict[int, PublishedShard]:
        """Number within its source → published shard, of one source."""
        shards = {}
        for (name, number), shard in self.shards.items():
            if name == source:
                shards[number] = shard
        return shards

    def rejects(self) -> list[dict[str, str]]:
        """Every line of rejects.jsonl, by source and, within one, in the order found."""
        records = {}
        for (name, number), shard in self.shards.items():
            records[name, number] = shard.attributes
        for name, record in self.sources.items():
            records[name, _AFTER_SHARDS] = record
        lines = []
        for (name, _), record in sorted(records.items(), key=itemgetter(0)):
            for line in record["rejects"]:
                lines.append({"source": name, **line})
        return lines

    def manifest(self, complete: bool) -> Manifest:
        """The manifest of what is entered, without an index.

        Args:
            complete: every source that was given is packed. The pack is complete if, in addition,
                no other source is packed in part, and no pair is missing.
        """
        counts = {"images": 0, "masks": 0, "annotations": 0, "dropped_images": 0, "rejects": 0}
        left_out = 0
        entries = []
        sources = []
        for (source, _), shard in sorted(self.shards.items(), key=itemgetter(0)):
            entries.append(shard.entry)
            counts["images"] += shard.entry.samples
            counts["masks"] += shard.entry.masks
            counts["annotations"] += shard.entry.annotations
            counts["dropped_images"] += shard.attributes["dropped"]
            left_out += shard.attributes.get("left_out", 0)
            complete = complete and source in self.sources
        for _, record in sorted(self.sources.items()):
            sources.append(record)
            counts["dropped_images"] += record["dropped"]
            left_out += record.get("left_out", 0)
        if left_out:
            counts["left_out_images"] = left_out
        for line in self.rejects():
            reason = f"rejects:{line['reason']}"
            counts["rejects"] += 1
            counts[reason] = counts.get(reason, 0) + 1
        manifest = make_manifest(
            self.options.layout,
            entries,
            says_complete=complete,
            options=self.options.to_json(),
            sources=sources,
            counts=counts,
        )
        if manifest.says_complete and manifest.shortfalls:
            return msgspec.structs.replace(manifest, says_complete=False)
        return manifest

    def findings(self, root: Path) -> list[str]:
        """Lines for the user about what is published: duplicates, and sources without any pair.

        Args:
            root: folder of the pack, in which what is entered was published.
        """
        lines = find_duplicates(*open_manifest_and_index(root))
        names_by_reason: dict[str, list[str]] = {}
        for name, record in sorted(self.sources.items()):
            for note in notes_on_records(record.get("records", {}), record["ignored"]):
                lines.append(f"{name}: {note}")
            if not record["pairs"]:
                codes = {reject["reason"] for reject in record["rejects"]}
                reason = why_no_pairs(record["ignored_names"], codes)
                if self.options.records != SA1B:
                    reads = READERS[str(self.options.records)].reads
                    reason = f"the records of this pack are {self.options.records}, {reads}"
                names_by_reason.setdefault(reason, []).append(name)
        for reason, names in names_by_reason.items():
            named = ", ".join(names[:_SOURCES_NAMED])
            if len(names) > _SOURCES_NAMED:
                named += " and others"
            lines.append(
                f"no pair of an image and a .json file of the same name is in {named}: {reason}"
                if self.options.records == SA1B
                else f"no image with a record is in {named}: {reason}"
            )
        return lines
