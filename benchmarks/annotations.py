"""The speed of decoding one JSON record, with several libraries and with parse_annotations.

    python benchmarks/annotations.py TAR [--repeat N]

Times are CPU milliseconds per 90 kB of records (about 100 masks), medians over the repeats. Only
the last row checks the values and creates arrays.
"""

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from sa1bpack.mask_numbers import stored_numbers
from sa1bpack.source.annotations import parse_annotations, schema_of
from sa1bpack.source.find import open_source
from sa1bpack.source.pairs import PairReader

RECORD_BYTES = 90_000


def rows() -> Iterator[tuple[str, Callable[[bytes], object]]]:
    """(label, decoder)."""
    yield "json", json.loads
    try:
        yield "orjson", importlib.import_module("orjson").loads
    except ImportError:
        print("skipped, not installed: orjson")
    yield "msgspec, untyped", msgspec.json.Decoder().decode
    yield "msgspec, typed", schema_of(stored_numbers()).decode_strict
    yield "parse_annotations", parse_annotations


def measure(decode: Callable[[bytes], object], records: list[bytes], repeat: int) -> float:
    """Median CPU milliseconds per RECORD_BYTES."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        for record in records:
            decode(record)
        times.append(time.process_time() - start)
    return statistics.median(times) * 1e3 / sum(map(len, records)) * RECORD_BYTES


def main() -> None:
    """Read the records, run every row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tar", type=Path)
    parser.add_argument("--repeat", type=int, default=51, help="runs per row (51)")
    options = parser.parse_args()
    with PairReader(open_source(options.tar), spool_dir=options.tar.parent) as reader:
        records = [pair.json for pair in reader]
    average = sum(map(len, records)) / len(records) / 1e3
    print(f"{len(records)} records, {average:.0f} kB on average")
    for label, decode in rows():
        print(f"{label:20}{measure(decode, records, options.repeat):8.3f} ms")


if __name__ == "__main__":
    main()
