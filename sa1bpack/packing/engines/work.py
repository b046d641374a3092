"""What every engine does with one pair: an attempt at the sample, and the writing of its rows."""

from collections import OrderedDict
from pathlib import Path, PurePath

from sa1bpack.errors import AnnotationError, MaskError, SampleError
from sa1bpack.format.layout import Extent, Layout
from sa1bpack.format.shard_writer import ShardRows
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Buffers, Packed, make_sample
from sa1bpack.packing.unit import Accepted, Dropped, Outcome, Rejected

# Shards that a worker keeps open: those of a few sources, each rolling from one to the next.
OPEN_SHARDS = 8


def attempt(
    file_name: str, jpeg, json, options: PackOptions, buffers: Buffers
) -> tuple[Outcome, Packed | None]:
    """Make a sample; what goes wrong with it becomes a Rejected.

    An exception that no code of ours raises on purpose is filed as "unexpected" with its type: one
    image must not end a run of days. Want of memory and an error of the operating system (unlike
    PIL's own OSErrors it has a number) are the machine's trouble, and go through.
    """
    try:
        packed = make_sample(file_name, jpeg, json, options, buffers)
    except (AnnotationError, MaskError) as error:
        record = str(PurePath(file_name).with_suffix(".json"))
        return Rejected(record, error.code, str(error)), None
    except SampleError as error:
        return Rejected(file_name, error.code, str(error)), None
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        return Rejected(file_name, "unexpected", f"{type(error).__name__}: {error}"), None
    if packed is None:
        return Dropped(), None
    return Accepted(packed.extent, packed.unknown_keys), packed


class RowWriter:
    """Writes rows into unpublished shards, keeping the last `shards` of them open."""

    def __init__(self, layout: Layout, shards: int = OPEN_SHARDS):
        self._layout = layout
        self._shards = shards
        self._open: OrderedDict[Path, ShardRows] = OrderedDict()

    def write(self, packed: Packed, folder: Path, at: Extent) -> None:
        """Write one sample's rows at `at`; raises OSError, with the file's name, when it can't."""
        rows = self._open.pop(folder, None)
        if rows is None:
            rows = ShardRows(folder, self._layout)
            while len(self._open) >= self._shards:
                self._open.popitem(last=False)[1].close()
        self._open[folder] = rows
        rows.write(packed.rows, at)

    def close(self) -> None:
        """Close every file."""
        while self._open:
            self._open.popitem()[1].close()
