"""Tars and folders of SA-1B → pairs of (JPEG bytes, JSON bytes) → typed annotations."""

from sa1bpack.source.annotations import Annotations, parse_annotations
from sa1bpack.source.find import Source, find_sources, open_source
from sa1bpack.source.pairs import Limits, Pair, PairReader, Reject

__all__ = [
    "Annotations",
    "Limits",
    "Pair",
    "PairReader",
    "Reject",
    "Source",
    "find_sources",
    "open_source",
    "parse_annotations",
]
