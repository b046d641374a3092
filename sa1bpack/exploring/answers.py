"""What the page learns about a dataset: records for JSON, and pictures as JPEG.

Whole numbers of 64 bits are texts: the numbers of a browser have 53 bits. Whatever is shown of a
sample was compared with its checksums.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack import __version__
from sa1bpack.dataset.condition_values import NUMBERS, reduced_numbers
from sa1bpack.dataset.conditions import REDUCTIONS
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.display import Sample
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.exploring.features import feature_record, map_picture
from sa1bpack.exploring.filters import Filter
from sa1bpack.exploring.outlines import outlines_of_bits, outlines_of_runs
from sa1bpack.exploring.shard_parts import ShardParts
from sa1bpack.exploring.survey import Survey, survey_of
from sa1bpack.exploring.views import Views
from sa1bpack.export.drawing import drawn, file_of, fitted, plain
from sa1bpack.export.subject import Subject, Unreadable, mask_colours, read_subject
from sa1bpack.format.problems import reason_of
from sa1bpack.masks.arrays import check_image_runs
from sa1bpack.masks.raster import covered_pixels
from sa1bpack.masks.select import ranked
from sa1bpack.threads import start_thread
from sa1bpack.wording import brief

THUMBNAIL_SIDES = (200, 400)  # of the longer side, in pixels
MOST_ROWS = 1000  # of one answer
_QUALITY = {"thumbnail": 80, "image": 92}
_PATIENCE = 0.3  # seconds that an answer waits for a view that still grows
_SURVEY_PATIENCE = 120  # seconds that an answer waits for the survey, which reads some shards


class NotReady(Exception):
    """What was asked for is not there yet; the text says what is still being done."""


class Answers:
    """The answers about one dataset; may be asked by several threads at the same time.

    Attributes:
        dataset: what is looked at.
        notes: what is shown once, such as features that cannot be opened.
    """

    def __init__(self, dataset: Dataset, notes: Sequence[str] = ()):
        """Raises OptionError for samples that cannot be shown; FormatError for a damaged index."""
        self.dataset = dataset
        self.notes = [*notes]
        layout = dataset.layout
        self._pictured = dataset.with_options(
            features=(),
            mask_format="bits" if layout.bits else "runs",
            mask_size=None,
            mask_sampling=None,
            pixels="rgb",
            verify_checksums=True,
            transform=None,
        )
        self._detailed = dataset.with_options(
            mask_format="runs" if layout.runs else "bits",
            mask_size=None,
            mask_sampling=None,
            pixels="rgb",
            coordinates="source",
            verify_checksums=True,
            transform=None,
        )
        scanned = dataset.with_options(transform=None, verify_checksums=False)
        self._scanned = scanned
        self._parts = ShardParts(scanned)
        self.views = Views(scanned, self._parts)
        self._survey = Survey()
        self._survey_error: Exception | None = None
        self._surveyed = threading.Event()
        self._surveying = start_thread(self._make_survey, "survey of a pack")

    def close(self) -> None:
        """End the threads of views, and wait for the survey."""
        self.views.close()
        self._surveying.join()

    def _make_survey(self) -> None:
        """Read the shards of the histograms; in a thread of its own."""
        try:
            self._survey = survey_of(self._scanned, self._parts)
        except Exception as error:  # for those who ask for the survey
            self._survey_error = error
        finally:
            self._surveyed.set()
        if self.dataset.layout.runs:  # loads what compares runs, so that nobody waits for it
            check_image_runs(np.empty(0, np.int32), np.zeros(1, np.int64), 1)

    @property
    def survey(self) -> Survey:
        """The survey, once it is made. Raises NotReady if that takes too long, or what ended it."""
        if not self._surveyed.wait(_SURVEY_PATIENCE):
            raise NotReady("shards are still being read for the histograms: ask again")
        if self._survey_error is not None:
            raise self._survey_error
        return self._survey

    # ------------------------------------------------------------------------------------- the pack

    def about(self) -> dict[str, Any]:
        """What is looked at: names, counts, what conditions may name, and features."""
        dataset = self.dataset
        names = [folder.name for folder in dataset.pack.folders]
        return {
            "title": _title(names),
            "packs": names[:50],
            "packs_more": max(0, len(names) - 50),
            "samples": len(dataset),
            "of": dataset.manifest.samples,
            "masks": None if dataset.options.rule else int(dataset.mask_offsets[-1]),
            "rule": dataset.mask_filter.text if dataset.mask_filter else None,
            "is_complete": dataset.manifest.complete,
            "is_cached": bool(dataset.pack.shard_sources),
            "exact": dataset.layout.runs,
            "mask_size": dataset.layout.mask_size,
            "numbers": NUMBERS,
            "mask_numbers": reduced_numbers(dataset.layout),
            "reductions": list(REDUCTIONS),
            "features": [f"{spec.name}: {spec.to_text()}" for spec in dataset.spec.features],
            "thumbnail_sides": THUMBNAIL_SIDES,
            "notes": self.notes,
            "version": __version__,
        }

    def axes(self) -> dict[str, Any]:
        """The axes of the histograms, with what all surveyed shards have, and which those are."""
        survey = self.survey
        axes = []
        everything = survey.histograms(Filter())["counts"] if survey.axes else {}
        for name, axis in survey.axes.items():
            axes.append(
                {
                    "name": name,
                    "title": axis.title,
                    "edges": axis.edges,
                    "whole": axis.whole,
                    "counts": everything[name],
                }
            )
        return {
            "axes": axes,
            "images": survey.images,
            "coverage": survey.coverage,
            "unreadable": survey.unreadable,
        }

    def histograms(self, chosen: Filter) -> dict[str, Any]:
        """The histograms that a filter leaves, see `Survey.histograms`."""
        survey = self.survey
        if not survey.axes:
            raise FormatError("no shard could be read for the histograms")
        return survey.histograms(chosen)

    # -------------------------------------------------------------------------------------- samples

    def rows(self, chosen: Filter, start: int, stop: int, page: str = "") -> dict[str, Any]:
        """The samples of a view from `start` to `stop`, and how far the view has grown.

        `page` is the name of the page that asks, see `Views.get`.

        A sample is [position in the dataset, image id, number of masks]; with a rule for masks,
        their number is None.
        """
        view = self.views.get(chosen, page)
        view.want(stop)
        view.wait(stop, _PATIENCE)
        view.check()
        is_done = view.is_done
        positions = view.positions(start, min(stop, start + MOST_ROWS))
        return {
            "count": view.count,
            "is_done": is_done,
            "scanned": view.scanned,
            "parts": view.parts,
            "notes": view.notes,
            "start": start,
            "rows": self._briefly(positions),
        }

    def _briefly(self, positions: np.ndarray) -> list[list[Any]]:
        """[position, image id, number of masks] of some samples."""
        ids = self.dataset.pack.image_ids(self.dataset.rows_at(positions))
        counts: list[int | None] = [None] * len(ids)
        if self.dataset.options.rule is None:
            offsets = self.dataset.mask_offsets
            counts = (offsets[positions + 1] - offsets[positions]).tolist()
        columns = zip(positions.tolist(), map(str, ids.tolist()), counts, strict=True)
        return [list(row) for row in columns]

    def sample(self, index: int) -> dict[str, Any]:
        """Everything about a sample but its pixels. Raises FormatError if it cannot be read."""
        sample = self._detailed_sample(index)
        metadata = self._detailed.metadata(index)
        height, width = sample["size"][:2].tolist()
        outlines, unit = self._outlines(sample, height, width)
        order = ranked(sample["areas"])
        colours = mask_colours(sample, len(order))
        facts = {
            "image id": str(metadata.image_id),
            "file name": metadata.file_name,
            "source": metadata.source,
            "size": f"{width} × {height}",
            "stored as": f"{metadata.stored_width} × {metadata.stored_height}",
            "masks": _count_text(len(order), metadata.annotations),
            "row": f"{metadata.row:,}",
            "shard": f"{metadata.shard}, row {metadata.shard_row:,}",
            "pack": str(metadata.pack),
        }
        return {
            "index": index,
            "id": str(metadata.image_id),
            "height": height,
            "width": width,
            "facts": facts,
            "outlines": outlines,
            "unit": unit,  # width and height, in source pixels, of what outlines count
            "exact": self.dataset.layout.runs,
            "order": order,
            "colours": [f"#{colour.tobytes().hex()}" for colour in colours],
            "numbers": self._numbers(sample),
            "features": [feature_record(spec, sample) for spec in self._detailed.spec.features],
        }

    def _detailed_sample(self, index: int) -> Sample:
        """A sample with all that is shown of it. Raises FormatError if it cannot be read."""
        try:
            sample: Sample = self._detailed[index]
        except OSError as error:
            raise FormatError(reason_of(error)) from error
        return sample

    def _outlines(
        self, sample: Mapping[str, Any], height: int, width: int
    ) -> tuple[list[str], list[float]]:
        """The outlines of a sample's masks, and the unit of their coordinates in source pixels."""
        layout = self.dataset.layout
        if layout.runs:
            outlines = outlines_of_runs(sample["run_ends"], sample["run_offset"], height, width)
            return outlines, [1.0, 1.0]
        down, across = covered_pixels(height, width, layout.fit, layout.image_size)
        unit = [across / layout.mask_size, down / layout.mask_size]
        return outlines_of_bits(sample["masks"]), unit

    def _numbers(self, sample: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The numbers of a sample's masks, one record for each kind, in source pixels."""
        numbers = []
        for number in self.dataset.layout.mask_numbers:
            values = sample[number.key].tolist()
            if number.columns == 1 and number.dtype == "<i8" and number.type_bit is None:
                values = [str(value) for value in values]  # ids
            numbers.append(
                {
                    "name": number.array,
                    "title": number.array.replace("_", " "),
                    "heading": number.heading,
                    "meaning": number.meaning,
                    "values": values,
                }
            )
        return numbers

    # ------------------------------------------------------------------------------------- pictures

    def image(self, index: int) -> bytes:
        """A sample's stored pixels without padding, as a JPEG. Raises FormatError."""
        subject = self._without_masks(index)
        height, width = subject.rgb.shape[:2]
        return file_of(plain(subject, height, width), "JPEG", _QUALITY["image"])

    def thumbnail(self, index: int, side: int, with_masks: bool) -> bytes:
        """A small picture of a sample, its longer side at most `side` pixels, as a JPEG.

        Raises FormatError.
        """
        if with_masks:
            subject = read_subject(self._pictured, index)
            if isinstance(subject, Unreadable):
                raise FormatError(subject.reason)
            picture = drawn(subject, *fitted(subject.rgb.shape, side, side))
        else:
            subject = self._without_masks(index)
            picture = plain(subject, *fitted(subject.rgb.shape, side, side))
        return file_of(picture, "JPEG", _QUALITY["thumbnail"])

    def feature_map(self, index: int, name: str) -> bytes:
        """The picture of a spatial feature of a sample, as a PNG.

        Raises FormatError if it cannot be read, OptionError if there is no such feature.
        """
        for spec in self._detailed.spec.features:
            if spec.name == name and spec.spatial and spec.axis == "sample":
                sample = self._detailed_sample(index)
                side = self.dataset.layout.image_size
                picture = map_picture(spec, sample[name], sample["size"], side)
                return file_of(picture, "PNG", 0)
        raise OptionError(f"name is {brief(name)}: there is no such feature with a map")

    def _without_masks(self, index: int) -> Subject:
        """The sample to draw without its masks. Raises FormatError if it cannot be read."""
        try:
            return Subject(self._pictured[index], annotation_count=0)
        except OSError as error:
            raise FormatError(reason_of(error)) from error

    # ----------------------------------------------------------------------------------- selections

    def save(self, path: Path, positions: Sequence[int] | Filter) -> dict[str, Any]:
        """Save the samples at some positions, or those that meet a filter, as a selection.

        Raises OptionError for positions that there are not, or none, and if the search ended before
        all shards were looked through; NotReady while samples that meet the filter are still being
        found; and as `Dataset.save_selection` does.
        """
        if isinstance(positions, Filter):
            view = self.views.get(positions)
            view.want(len(self.dataset))
            view.wait(len(self.dataset), _PATIENCE)
            view.check()
            if not view.is_done:
                raise NotReady(
                    f"{view.scanned:,} of {view.parts:,} shards are looked through so far: save "
                    "when all are"
                )
            if view.scanned < view.parts:
                raise OptionError(
                    f"the search ended after {view.scanned:,} of {view.parts:,} shards, so the "
                    f"selection would lack images: {view.notes[-1]}"
                )
            chosen = view.all_positions()
        else:
            chosen = np.unique(np.array(positions, np.int64))
        if not len(chosen):
            raise OptionError("no image is chosen: a selection needs at least one")
        if chosen[0] < 0 or chosen[-1] >= len(self.dataset):
            raise OptionError(f"positions must be from 0 to {len(self.dataset) - 1}")
        selected = self.dataset[chosen]
        selected.save_selection(path)
        return {"path": str(path), "samples": len(selected)}


def _title(names: Sequence[str]) -> str:
    """A short name for the packs."""
    first = names[0].rstrip("/").rpartition("/")[2]
    return first if len(names) == 1 else f"{first} and {len(names) - 1:,} more"


def _count_text(masks: int, annotations: int) -> str:
    """The number of masks, and of how many if some were left out."""
    return f"{masks:,}" if masks == annotations else f"{masks:,} of {annotations:,}"
