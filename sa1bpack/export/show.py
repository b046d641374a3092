"""`show`: samples of a pack as a picture, with masks, boxes and points."""

import base64
import html
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from sa1bpack.arguments import MAX_WORD, number, whole_number
from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import OptionError, ReadError, SourceError, UnknownName
from sa1bpack.export.batch_samples import Predictions, image_count, row_of_id, subject_of
from sa1bpack.export.drawing import Picture, file_of
from sa1bpack.export.large import large_picture
from sa1bpack.export.look import Look
from sa1bpack.export.sheet import contact_sheet
from sa1bpack.export.subject import (
    Subject,
    Unreadable,
    exact_shapes,
    read_subject,
    subject_of_sample,
)
from sa1bpack.format.manifest import MANIFEST_NAME
from sa1bpack.format.selection import is_selection
from sa1bpack.indices import torch_subset
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.options import group_of
from sa1bpack.packing.options import PackOptions
from sa1bpack.paths import exists, is_file, is_folder, listed, paths_below, temporary_folder
from sa1bpack.raw.dataset import TarDataset
from sa1bpack.raw.decoding import PairDecoder, RawOptions, no_pairs
from sa1bpack.source.find import Source, open_source
from sa1bpack.source.pairs import PairReader
from sa1bpack.source.tar import is_image
from sa1bpack.wording import brief, counted

if TYPE_CHECKING:
    from sa1bpack.option_keywords import LookKeywords

DEFAULT_SAMPLES = 12
_TARS = (".tar", ".tar.gz", ".tgz")
_MOST_SAMPLES = 400  # a sheet of more than a hundred rows is of no use

# Of a notebook's picture, which the notebook keeps: its width in screen pixels, at most, and the
# quality of its JPEG.
_INLINE_SAMPLES = 3
INLINE_WIDTH = 960
_QUALITY = 70

_log = logging.getLogger("sa1bpack")


@dataclass(frozen=True)
class Shown:
    """A picture, and the samples that could not be drawn in it.

    Attributes:
        name: folder of the pack, or a name for several.
        picture: RGB, at most 1600 pixels wide.
        unreadable: the samples that were replaced by an empty tile.
    """

    name: str
    picture: Picture
    unreadable: tuple[Unreadable, ...]


@checks_options
@takes_options(Look)
def show(
    pack: str | Path | Iterable[str | Path] | Dataset | Mapping[str, Any],
    *,
    samples: int | None = None,
    image_ids: int | Sequence[int] | None = None,
    rows: int | Sequence[int] | None = None,
    seed: int = 0,
    large: bool = False,
    predictions: Any = None,
    threshold: float | None = None,
    **options: Unpack["LookKeywords"],
) -> Picture:
    """Draw samples of a pack or of a batch, to see whether masks, boxes and points match.

    Of a batch of Loader, make_dataloader, Collate, Pipeline or Prompts it shows what the model
    gets: the images as they are on the canvas, without the padding, normalised ones in their
    colours, and the masks that are valid, with their boxes and the points that are inside. If the
    batch has prompts, it shows them in place of boxes and points: points in the mask are green with
    a plus, others red with a minus; a mask that is a prompt has white stripes. Masks that are not
    valid have grey ones. The batch may be on any device. A batch without `spec` is taken to have
    boxes and points in stored coordinates, and so is a sample, `ds[i]`.

    Of a pack it shows the stored pixels without padding and the masks by their exact runs (by the
    stored bits if the pack has no runs), smaller masks over larger ones. Boxes and points are those
    of the annotation, scaled like the image. Only the samples shown are read, and compared with
    their checksums. A sample that is damaged or cannot be read is replaced by a tile that says why,
    and a warning is logged.

    Args:
        pack: what `sa1bpack.open` takes: the folder of a pack, several, or a saved selection. Or a
            dataset, which may be a subset, torch's Subset included; its transform is not called,
            and masks that its thresholds leave out are not drawn. Or a tar or extracted folder, of
            which the first samples are shown, as a pack would have them. Or a batch, or a sample.
        samples: number of random samples. Default: 12, or 1 with `large`. Of a batch or a tar,
            the first ones.
        image_ids: samples with these ids, in this order, or with one id; for packs and batches.
        rows: samples at these indices of the dataset, or at these places in the batch, in this
            order; or at one.
        seed: seed of the random choice. The same seed chooses the same samples. For packs only.
        large: one large sample, with the image alone beside it, and a table of its masks, which are
            numbered.
        predictions: masks that a model predicted for a batch, to be drawn beside the true ones:
            (B, M, h, w), or (T, h, w) for concatenated masks; or a pair of (T, h, w) and offsets
            (B + 1,), where those of each sample begin. Any h x w covers the canvas, but the grid of
            the batch's masks what these cover. With as many as the batch has masks, each has the
            colour of its mask, and the IoU is written.
        threshold: what is above it in predictions of floats is in the mask: 0 for logits, 0.5 for
            probabilities. None: 0, unless no value is below 0 or above 1: those may be either, and
            are refused.

    Returns:
        An RGB image, at most 1600 pixels wide. `image.save("sheet.png")` writes it.

    Raises:
        OptionError: more than one way of choosing, more than one sample for `large`, a pack without
            samples, an id or a row that does not exist, or more than 400 samples; a batch with
            other arrays; a feature that does not exist or is not spatial; predictions of another
            shape.
        FormatError: the folder is not a pack, its index is damaged, or with `large` the sample is.
        MissingPackage: neither pillow-simd nor Pillow is installed.
        OSError: with `large`, a file of the sample cannot be opened.

    Examples:
        >>> picture = sa1bpack.show("packed", image_ids=[5], large=True)
        >>> picture.mode
        'RGB'
    """
    shown = draw_samples(
        pack,
        samples,
        image_ids,
        rows,
        seed=seed,
        large=large,
        predictions=predictions,
        threshold=threshold,
        look=group_of(Look, options),
    )
    for sample in shown.unreadable:
        _log.warning("%s cannot be shown: %s", shown.name, sample)
    return shown.picture


def draw_samples(
    pack: str | Path | Iterable[str | Path] | Dataset | Mapping[str, Any],
    samples: int | None = None,
    image_ids: int | Sequence[int] | None = None,
    rows: int | Sequence[int] | None = None,
    *,
    seed: int = 0,
    large: bool = False,
    predictions: Any = None,
    threshold: float | None = None,
    rule: Mapping[str, Any] | None = None,
    where_masks: str | None = None,
    layouts: str = "equal",
    look: Look | None = None,
) -> Shown:
    """As `show`, but unreadable samples are returned, not logged.

    Args:
        pack, samples, image_ids, rows, seed, large, predictions, threshold: as in `show`.
        rule: thresholds of masks, as `sa1bpack.open` takes them; not with a dataset.
        where_masks: condition of masks, as `Dataset.where_masks` takes it, of the samples that are
            drawn; not of a tar.
        layouts: of several packs, as `sa1bpack.open` takes it.
        look: what is drawn.
    """
    ids = None if image_ids is None else listed(image_ids)
    row_list = None if rows is None else listed(rows)
    if sum(value is not None for value in (samples, ids, row_list)) > 1:
        raise OptionError("choose by one of samples, image_ids and rows, not by several")
    if samples is not None:
        samples = checked_count("samples", samples)
    choice = _Choice(
        samples=samples,
        image_ids=ids,
        rows=row_list,
        seed=whole_number("seed", seed, 0, MAX_WORD),
        large=large,
        predictions=_checked_predictions(pack, predictions, threshold),
        where_masks=where_masks,
        look=look or Look(),
    )
    source = None if isinstance(pack, Mapping) else raw_source(pack)
    if isinstance(pack, Mapping):
        name, note, subjects = _of_mapping(pack, choice)
    elif source is not None:
        if where_masks is not None:
            raise OptionError("where_masks is for packs, but this is a tar or a folder of images")
        name, note, subjects = _of_source(source, choice, rule or {})
    else:
        name, note, subjects = _of_dataset(_dataset_of(pack, rule or {}, layouts), choice)
    unreadable = tuple(subject for subject in subjects if isinstance(subject, Unreadable))
    if not large:
        return Shown(name, contact_sheet(subjects, name, note, choice.look), unreadable)
    [subject] = subjects
    if isinstance(subject, Unreadable):
        raise subject.error
    return Shown(
        name, large_picture(subject, ", ".join(filter(None, [name, note])), choice.look), ()
    )


def _checked_predictions(
    pack: Any, predictions: Any, threshold: float | None
) -> Predictions | None:
    """The predictions of a batch. Raises OptionError for those of anything else."""
    if threshold is not None:
        threshold = number("threshold", threshold, -inf, inf)
    if predictions is None:
        return None
    if not isinstance(pack, Mapping) or "images" not in pack:
        raise OptionError("predictions are of a batch: pass the batch that the model was given")
    masks = predictions
    offsets = None
    if isinstance(predictions, tuple | list) and len(predictions) == 2:
        masks, offsets = predictions
    if not hasattr(masks, "shape"):
        raise OptionError(
            f"predictions is {brief(predictions)}: give a tensor (B, M, h, w), or a pair of a "
            "tensor (T, h, w) and offsets (B + 1,)"
        )
    if threshold is None:
        _check_not_probabilities(masks)
        threshold = 0.0
    return Predictions(masks, offsets, threshold)


def _check_not_probabilities(masks: Any) -> None:
    """Raise OptionError for values that may be probabilities: with 0, all of them are masks."""
    if not prod(masks.shape):
        return
    low = float(masks.min())
    high = float(masks.max())
    if low >= 0 and high <= 1 and bool(((masks > 0) & (masks < 1)).any()):
        raise OptionError(
            f"threshold is None, but predictions are from {low:.3g} to {high:.3g}, as "
            "probabilities are: choose threshold=0.5 for probabilities, or threshold=0 for logits"
        )


@dataclass(frozen=True)
class _Choice:
    """The samples to show, at most one of `samples`, `image_ids` and `rows` is not None; and how.

    Attributes:
        samples, image_ids, rows, seed, large: as in `show`.
        predictions: for a batch.
        where_masks: condition of the masks that are drawn; None: all.
        look: what is drawn.
    """

    samples: int | None
    image_ids: list[int] | None
    rows: list[int] | None
    seed: int
    large: bool
    predictions: Predictions | None
    where_masks: str | None
    look: Look

    @property
    def count(self) -> int:
        """The number of samples where none is named."""
        if self.samples is not None:
            return self.samples
        if self.large:
            return 1
        return DEFAULT_SAMPLES

    def rows_of(self, size: int) -> list[int]:
        """`rows`, all below `size`, or the first ones. Raises OptionError."""
        if self.rows is None:
            return list(range(min(size, self.count)))
        return [whole_number("rows", row, 0, size - 1) for row in self.rows]

    def require_one(self, count: int) -> None:
        """Raise OptionError unless a large picture would show one sample."""
        if self.large and count != 1:
            raise OptionError(f"a large picture shows 1 image, not {count}; choose one of them")


_Drawn = tuple[str, str, Sequence[Subject | Unreadable]]  # name, note and samples of a picture


def _of_mapping(value: Mapping[str, Any], choice: _Choice) -> _Drawn:
    """What is shown of a batch, or of one sample."""
    if "image" in value and "images" not in value:
        if (choice.samples, choice.image_ids, choice.rows) != (None, None, None):
            raise OptionError("samples, image_ids and rows choose from several: this is a sample")
        subject = subject_of_sample(value, choice.look.feature)
        return "sample", "", [subject]
    return _of_batch(value, choice)


def _of_batch(batch: Mapping[str, Any], choice: _Choice) -> _Drawn:
    """What is shown of a batch: its first samples, or some of them."""
    count = image_count(batch)
    if choice.image_ids is None:
        rows = choice.rows_of(count)
    else:
        rows = [row_of_id(batch, image_id) for image_id in choice.image_ids]
    checked_count("the number of samples asked for", len(rows))
    choice.require_one(len(rows))
    subjects = [subject_of(batch, row, choice.look.feature, choice.predictions) for row in rows]
    numbers = [f"{key} {batch[key]}" for key in ("epoch", "batch_idx") if key in batch]
    name = ", ".join(["batch", *numbers])
    note = f"{len(subjects)} of {counted(count, 'sample')}"
    if any(subject.prompts is not None for subject in subjects):
        note += "; prompts: + in the mask, - outside, striped masks"
    if any(subject.ignored is not None for subject in subjects):
        note += "; grey stripes: not valid"
    return name, note, subjects


def _of_source(source: Source, choice: _Choice, rule: Mapping[str, Any]) -> _Drawn:
    """What is shown of a tar or folder: its first samples."""
    name = str(source.path)
    if choice.image_ids is not None or choice.rows is not None or choice.seed:
        raise OptionError(
            f"image_ids, rows and seed are for packs: of {name} the first samples are shown"
        )
    if choice.look.feature is not None:
        raise OptionError(
            f"feature is {choice.look.feature!r}: packs have features, {name} is none"
        )
    choice.require_one(choice.count)
    subjects = first_subjects(source, choice.count, rule)
    if len(subjects) == 1:
        return name, "first image", subjects
    return name, f"first {counted(len(subjects), 'image')}", subjects


def _of_dataset(dataset: Dataset, choice: _Choice) -> _Drawn:
    """What is shown of a dataset: random samples, or those that are named."""
    size = len(dataset)
    note = ""
    if choice.image_ids is not None:
        try:
            indices = [dataset.index_of(image_id) for image_id in choice.image_ids]
        except UnknownName as error:
            raise OptionError(str(error)) from None
    elif choice.rows is None and choice.count < size:
        indices = random_indices(size, choice.count, choice.seed)
        note = f" at random (seed {choice.seed})"
    else:
        indices = choice.rows_of(size)
    checked_count("the number of samples asked for", len(indices))
    choice.require_one(len(indices))
    feature = choice.look.feature
    if feature is not None:
        dataset, feature = _with_feature(dataset, feature)
    if choice.where_masks is not None:
        dataset = dataset[np.array(indices, np.int64)].where_masks(choice.where_masks)
        indices = [*range(len(indices))]
    subjects = [read_subject(dataset, index, feature) for index in indices]
    return dataset.pack.name, f"{len(indices):,} of {counted(size, 'image')}{note}", subjects


def _with_feature(dataset: Dataset, name: str) -> tuple[Dataset, str]:
    """The dataset with a feature, by its name or the path of its folder; and its name.

    Raises as `Dataset.with_options` does.
    """
    names = [feature.name for feature in dataset.spec.features]
    if name in names:
        return dataset, name
    dataset = dataset.with_options(features=(*dataset.options.features, name))
    return dataset, dataset.spec.features[-1].name


def _dataset_of(pack: Any, rule: Mapping[str, Any], layouts: str) -> Dataset:
    """The dataset to show. Raises OptionError for one without images, and as `open` does."""
    if isinstance(pack, TarDataset):
        raise OptionError(
            f"pack is {brief(pack)}, of which no pictures are made: pass the path of a tar"
        )
    opened = isinstance(pack, Dataset) or torch_subset(pack)[1]
    dataset = as_dataset(pack) if opened else open_pack(pack, layouts=layouts, **rule)
    if not len(dataset):
        raise OptionError(f"{dataset.pack.name}: the dataset has no images to show")
    return dataset


def random_indices(size: int, count: int, seed: int) -> list[int]:
    """`count` distinct indices below `size`, ascending; all of them if there are fewer."""
    rng = np.random.default_rng(seed)
    return sorted(rng.choice(size, min(count, size), replace=False).tolist())


def checked_count(name: str, count: int) -> int:
    """The number, if it is a whole number from 1 to 400. Raises OptionError otherwise."""
    return whole_number(name, count, 1, _MOST_SAMPLES)


# ----------------------------------------------------------------------------------- of a tar


def raw_source(path: Any) -> Source | None:
    """The tar or folder that a path names; None if it is not one, but a pack or a selection.

    Raises SourceError for a file whose name is that of a tar and whose bytes are not.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        return None
    source = Path(os.path.expanduser(path))  # noqa: PTH111 - keeps "~" of a user without a home
    if is_file(source):
        try:
            return None if is_selection(source) else open_source(source)
        except SourceError:
            if source.name.lower().endswith(_TARS):
                raise
            return None
    if not is_folder(source) or exists(source / MANIFEST_NAME):
        return None
    if any(is_image(path.name) for path in paths_below(source)):
        return open_source(source)
    return None


def first_subjects(
    source: Source, samples: int, rule: Mapping[str, Any]
) -> list[Subject | Unreadable]:
    """The first pairs of a tar, decoded as for a pack; it is read only as far as they go.

    Args:
        source: the tar or folder.
        samples: number of pairs.
        rule: thresholds, as in `sa1bpack.open`.

    Raises:
        SourceError: the tar cannot be read.
        OptionError: the tar has no pairs.
    """
    options = PackOptions(max_masks=None)
    decoder = PairDecoder(options, "raise", RawOptions(coordinates="source", **rule))
    with_runs = PairDecoder(options, "raise", RawOptions(mask_format="runs", **rule))
    subjects: list[Subject | Unreadable] = []
    with PairReader(source, spool_dir=temporary_folder()) as reader:
        for pair in islice(reader, samples):
            try:
                rows = decoder.rows(source, pair.file_name, pair.jpeg, pair.json)
            except ReadError as error:
                digits = re.search(r"\d+", pair.name)
                image_id = int(digits[0]) if digits else -1
                subjects.append(Unreadable(pair.index, image_id, error))
                continue
            assert rows is not None  # images without masks are kept
            sample = decoder.sample(rows, pair.index)
            exact = exact_shapes(with_runs.sample(rows, pair.index))
            subjects.append(Subject(sample, int(rows["annotation_count"][0]), exact=exact))
    if not subjects:
        raise OptionError(str(no_pairs(source, reader.rejects)))
    return subjects


# -------------------------------------------------------------------------------- in a notebook


def html_of(value: Any) -> str | None:
    """The first three samples of a dataset or a batch as HTML.

    None for a pack in an object store, from which displaying an object must not fetch anything.

    Raises what drawing them raises.
    """
    if not isinstance(value, Dataset):
        picture = show(value, samples=_INLINE_SAMPLES)
    elif value.pack.sources:
        return None
    else:
        picture = draw_samples(value, rows=range(min(_INLINE_SAMPLES, len(value)))).picture
    picture.thumbnail((INLINE_WIDTH, INLINE_WIDTH))
    data = base64.b64encode(file_of(picture, "JPEG", _QUALITY)).decode()
    return (
        f'<img src="data:image/jpeg;base64,{data}" alt="samples under their masks">'
        f"<pre>{html.escape(repr(value))}</pre>"
    )
