"""The first pictures of a tar or an extracted folder, as a pack of it would have them."""

import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from sa1bpack.dataset.sample import SampleOptions
from sa1bpack.errors import OptionError, ReadError, SourceError
from sa1bpack.format.manifest import MANIFEST_NAME
from sa1bpack.format.selection import is_selection
from sa1bpack.packing.options import PackOptions
from sa1bpack.raw.decoding import Decoder
from sa1bpack.report.subject import Subject, Unreadable
from sa1bpack.source.find import Source, open_source
from sa1bpack.source.pairs import PairReader

_IMAGES = (".jpg", ".jpeg")
_TARS = (".tar", ".tar.gz", ".tgz")


def raw_source(path: Any) -> Source | None:
    """The tar or folder that a path names; None if it is not one, but a pack or a selection.

    Raises SourceError for a file that is called a tar and is none.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        return None
    found = Path(os.path.expanduser(path))  # noqa: PTH111 - keeps "~" of a user without a home
    if found.is_file():
        try:
            return None if is_selection(found) else open_source(found)
        except SourceError:
            if found.name.lower().endswith(_TARS):
                raise
            return None
    if not found.is_dir() or (found / MANIFEST_NAME).exists():
        return None
    names = (name for _, _, names in os.walk(found) for name in names)
    return open_source(found) if any(name.lower().endswith(_IMAGES) for name in names) else None


def refuse_among_several(paths: Iterable[Any]) -> None:
    """Raise OptionError if one of several paths names a tar or folder, as `raw_source`."""
    for path in paths:
        if (source := raw_source(path)) is not None:
            raise OptionError(
                f"{source.path} is a tar or a folder of images, and one of several paths: show it "
                "by itself; several packs can be shown together"
            )


def first_subjects(
    source: Source, samples: int, rule: Mapping[str, Any]
) -> list[Subject | Unreadable]:
    """The first pairs of a tar, decoded as for a pack; it is read only as far as they go.

    rule  thresholds, as in `sa1bpack.open`

    Raises SourceError if the tar cannot be read, OptionError if it has no pairs.
    """
    options = SampleOptions(coordinates="source", **rule)
    decoder = Decoder(PackOptions(max_masks=None), options, None)
    found: list[Subject | Unreadable] = []
    with PairReader(source, spool_dir=Path(tempfile.gettempdir())) as reader:
        for pair in islice(reader, samples):
            try:
                rows = decoder.rows(source, pair.file_name, pair.jpeg, pair.json)
            except ReadError as error:
                number = re.search(r"\d+", pair.name)
                found.append(Unreadable(pair.index, int(number[0]) if number else -1, str(error)))
                continue
            sample = decoder.sample(rows, pair.index)
            found.append(_subject(source, sample, int(rows["annotation_count"][0])))
    if not found:
        raise OptionError(f"{source.path}: has no image with its record to show")
    return found


def _subject(source: Source, sample: dict[str, Any], annotations: int) -> Subject:
    height, width, stored_height, stored_width = sample["size"].tolist()
    return Subject(
        index=sample["index"],
        shard="",
        image_id=sample["image_id"],
        file_name=sample["file_name"],
        rgb=sample["image"][:stored_height, :stored_width],
        source_height=height,
        source_width=width,
        fit="pad",
        bits=sample["masks"],
        from_runs=False,
        bboxes=sample["bboxes"],
        points=sample["point_coords"],
        areas=sample["areas"],
        predicted_ious=sample["predicted_ious"],
        stability_scores=sample["stability_scores"],
        annotation_count=annotations,
    )
