"""A process that reads packs, for checks that nothing in a pack can crash it.

Started as a program, it takes one line of JSON per request, [folder, verified, ids], and answers
with one line: digests of everything that `sa1bpack.open` reads there, with `verify_checksums` or
without, or the error
instead.

    samples  row → digest of ds[row]
    by_id    image id → digest
    loader   row → digest of the sample in a Loader's batches
    columns  name → digest
"""

import hashlib
import json
import logging
import subprocess
import sys
from pathlib import Path

from commands import without_note

import sa1bpack
from sa1bpack.errors import Sa1bpackError

_COLUMNS = ("image_id", "mask_count", "size", "annotation_count", "file_name", "checksum")
_MASK_COLUMNS = ("bbox", "area", "predicted_iou", "stability_score", "annotation_id")
_OF_MASKS = ("masks", "bboxes", "areas", "predicted_ious", "stability_scores", "point_coords")


class ReadingChild:
    """The process. A context manager."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def read(self, root: Path, verified: bool, ids: list[int]) -> dict:
        """Everything read from a pack. AssertionError with stderr if the process dies."""
        try:
            self._process.stdin.write(json.dumps([str(root), verified, ids]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code, words = self._process.wait(), self._process.stderr.read()
            raise AssertionError(f"reading {root} ended the process with {code}: {words}")
        return json.loads(answer)

    def __enter__(self) -> "ReadingChild":
        return self

    def __exit__(self, *exc) -> None:
        self._process.stdin.close()
        code, words = self._process.wait(60), self._process.stderr.read()
        self._process.stdout.close()
        self._process.stderr.close()
        assert exc[0] is not None or (code, without_note(words)) == (0, ""), words


def digest(*values) -> str:
    """Digest of arrays, numbers and text."""
    found = hashlib.sha1()
    for value in values:
        data = value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()
        found.update(f"{len(data)} {getattr(value, 'shape', '')}".encode() + data)
    return found.hexdigest()


def sample_digest(sample: dict) -> str:
    """Digest of a sample of a Dataset, without its row."""
    return digest(*(sample[key] for key in sorted(sample) if key != "row"))


def batch_digests(batch: dict) -> dict[int, str]:
    """Row → digest of every sample of a batch with concatenated masks."""
    tensors = {key: value for key, value in batch.items() if hasattr(value, "numpy")}
    arrays = {key: value.numpy() for key, value in tensors.items()}
    edges = arrays["mask_offsets"]
    found = {}
    for k, row in enumerate(arrays["indices"].tolist()):
        heads = [arrays[key][k] for key in ("images", "image_ids", "sizes", "mask_counts")]
        masks = [arrays[key][edges[k] : edges[k + 1]] for key in _OF_MASKS]
        found[row] = digest(*heads, *masks)
    return found


def _answer(root: str, verified: bool, ids: list[int]) -> dict:
    def attempt(read, key, *also):
        try:
            return read(key)
        except (Sa1bpackError, OSError, *also) as error:
            return f"{type(error).__name__}: {error}"

    ds = attempt(lambda root: sa1bpack.open(root, verify_checksums=verified), root)
    if isinstance(ds, str):
        return {"error": ds}
    # An index that is not checked may fail to find an id.
    also = () if verified else (KeyError,)
    columns = {name: attempt(lambda name: digest(ds.column(name)), name) for name in _COLUMNS}
    for name in _MASK_COLUMNS:
        columns[name] = attempt(lambda name: digest(ds.mask_column(name)), name)
    samples = {row: attempt(lambda row: sample_digest(ds[row]), row) for row in range(len(ds))}
    by_id = {one: attempt(lambda one: sample_digest(ds.by_id(one)), one, *also) for one in ids}
    loader = attempt(_through_loader, ds)
    return {"samples": samples, "by_id": by_id, "columns": columns, "loader": loader}


def _through_loader(ds) -> dict:
    found = {}
    options = {"mask_layout": "concat_bits", "max_masks": 2, "on_error": "drop", "max_dropped": 1}
    with sa1bpack.Loader(ds, 4, threads=2, **options) as loader:
        for batch in loader:
            found |= batch_digests(batch)
        for error in loader.dropped:
            found[error.row] = f"ReadError: {error}"
    return found


def main() -> None:
    """Answer until the input ends."""
    logging.getLogger("sa1bpack").setLevel(logging.ERROR)
    for line in sys.stdin:
        print(json.dumps(_answer(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
