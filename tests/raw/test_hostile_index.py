"""An index of a tar is made again, or is an error of sa1bpack, whatever its bytes are."""

import json
import random

import numpy as np
import pytest
import xxhash
from small_tars import members, write_tar

from sa1bpack import IterableTarDataset, TarDataset
from sa1bpack.errors import OptionError, Sa1bpackError

# The arrays of the file after its first line, see raw/tar_index.py and raw/seek_points.py.
PAIR = np.dtype(
    [(f"{half}_{what}", "<i8") for half in ("jpeg", "json") for what in ("at", "bytes")]
    + [("file_name", "S64")]
)
POINT = np.dtype(
    [("file", "<i8"), ("stream", "<i8"), ("bits", "<i8"), ("window", "<i8"), ("digest", "<u8")]
)
NUMBERS = [-1, 1, 7, 8, 255, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63)]
NAMES = [b"", b"\xff\xfe.jpg", b"../../x.jpg", b"/x.jpg", b"a\nb.jpg", b"\x1b[2J.jpg", b"x" * 64]


def parts_of(data: bytes) -> tuple[dict, np.ndarray, np.ndarray, bytes]:
    """The first line of an index, its pairs, its points, and the rest."""
    line, _, _ = data.partition(b"\n")
    head = json.loads(line)
    first = -(-(len(line) + 1) // 64) * 64
    pairs = np.frombuffer(data, PAIR, head["pairs"], first).copy()
    points = np.frombuffer(data, POINT, head["points"], first + pairs.nbytes).copy()
    return head, pairs, points, data[first + pairs.nbytes + points.nbytes :]


def joined(head: dict, pairs: np.ndarray, points: np.ndarray, rest: bytes) -> bytes:
    """The bytes of an index, whose digest is right."""
    body = pairs.tobytes() + points.tobytes()
    head = {**head, "digest": xxhash.xxh3_128_hexdigest(body)}
    line = json.dumps(head).encode() + b"\n"
    return line.ljust(-(-len(line) // 64) * 64, b"\0") + body + rest


@pytest.fixture(scope="module", params=[True, False], ids=["gzip", "plain"])
def tar(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tar")
    return write_tar(folder / "sa_000000.tar", members(range(4)), compress=request.param)


def read_all(tar, folder) -> list[tuple[str, bytes]]:
    ds = TarDataset(tar, index_folder=folder)
    return [(ds[n]["file_name"], ds[n]["image"].tobytes()) for n in range(len(ds))]


def test_any_number_or_name_in_an_index_is_refused_and_the_index_made_again(tar, tmp_path):
    expected = read_all(tar, tmp_path)
    [path] = tmp_path.glob("*.index")
    sound = path.read_bytes()
    rng = random.Random(0)
    changes = [("pairs", name) for name in PAIR.names] + [("points", name) for name in POINT.names]
    for array, name in changes:
        for value in NAMES if name == "file_name" else NUMBERS:
            head, pairs, points, rest = parts_of(sound)
            changed = pairs if array == "pairs" else points
            if not len(changed):
                continue
            changed[name][rng.randrange(len(changed))] = np.array(value).astype(changed.dtype[name])
            path.write_bytes(joined(head, pairs, points, rest))
            try:
                read = read_all(tar, tmp_path)
            except Sa1bpackError as error:
                assert len(str(error)) < 600 and str(error).isprintable(), (array, name, value)
                continue
            # A plausible number reads other bytes; those that are no image are an error.
            assert read == expected or name not in ("file_name", "window", "bits")
    path.write_bytes(sound)


def test_what_is_no_index_is_replaced(tar, tmp_path):
    expected = read_all(tar, tmp_path)
    [path] = tmp_path.glob("*.index")
    sound = path.read_bytes()
    for data in (b"", b"\n" * 99, b"[" * 100_000, b'{"format": 1}\n', sound[:99], b"\xff" * 999):
        path.write_bytes(data)
        assert read_all(tar, tmp_path) == expected
    path.unlink()
    path.symlink_to("/dev/zero")  # and not read for ever
    assert read_all(tar, tmp_path) == expected


STATE = {"version": 1, "epoch": 0, "consumer": 0, "consumers": 1, "done": []}
STRANGE = [None, 5, -1, 2.5, True, "x" * 9000, b"\xff", [], [[]], {}, {"a": [1]}, 1 << 70, object()]


def test_a_state_of_any_type_is_taken_or_a_short_named_error(tar):
    ds = IterableTarDataset(tar)
    states = [*STRANGE, {**STATE, "more": 1}, {1: 2}]
    states += [{**STATE, key: value} for key in STATE for value in STRANGE]
    states += [{**STATE, "done": [value]} for value in STRANGE]
    taken = 0
    for state in states:
        try:
            ds.load_state_dict(state)
            taken += 1
        except OptionError as error:
            assert "state" in str(error) and len(str(error)) < 500, state
    assert taken == 3  # an epoch, a number of consumers, and no tar that is done
