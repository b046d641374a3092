"""`report`: everything about a pack, as one HTML page."""

import base64
import io
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from sa1bpack.arguments import MAX_WORD, checks_options, choice, paths_of, whole_number
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.export.drawing import drawn, fitted
from sa1bpack.export.holdings import read_holdings
from sa1bpack.export.output import check_output
from sa1bpack.export.page import Picture, page
from sa1bpack.export.sheets import mask_text, size_text
from sa1bpack.export.show import checked_count, random_indices
from sa1bpack.export.subject import Unreadable, read_or_reason
from sa1bpack.export.survey import Survey, survey
from sa1bpack.export.verification import VERIFY, Verification, verification
from sa1bpack.format.files import replace_file
from sa1bpack.format.manifest import REJECTS_NAME, read_manifest
from sa1bpack.format.problems import Progress
from sa1bpack.packing.progress import read_runs

_log = logging.getLogger("sa1bpack")

DEFAULT_SAMPLES = 12
_TILE = (450, 600)  # largest height and width of a picture, in pixels
_QUALITY = 82  # of its JPEG
_SHOWN_REJECTS = 20


@dataclass(frozen=True)
class ReportResult:
    """Result of `report`: the file, and what was found.

    path
        The file.
    images
        Samples of the pack.
    surveyed
        Number of samples in the distributions of masks.
    verification
        What was checked, and the problems found.
    unreadable
        The errors of shards and samples that could not be read for the page.
    complete
        Whether the pack is complete; what an incomplete one holds so far is logged as a warning.
    """

    path: Path
    images: int
    surveyed: int
    verification: Verification
    unreadable: tuple[str, ...]
    complete: bool

    @property
    def ok(self) -> bool:
        """True if no damage was found in what was checked and read."""
        return self.verification.ok and not self.unreadable


@checks_options(out="output")
def report(
    pack: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    verify: str = "sample",
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    progress: Progress | None = None,
) -> ReportResult:
    """Write a page about a pack: state, counts, distributions, pictures, options, runs, rejects.

    The page is one file that needs no network and runs no script. It takes seconds for a pack of
    any size: distributions of masks are those of at most 20,000 images in 64 shards, and the page
    says which. Damage is reported on the page and in the result, never raised.

    Args:
        pack: folder of a pack, complete or not; several, or a glob pattern, are one dataset. An
            image id that is held more than once counts each time, and the page names it.
        output: the page, `*.html`; an existing file is replaced atomically.
        verify: "sample" checks up to 8 shards as "quick" does. "quick" checks everything except
            pixels, bits and runs; "full" reads every byte, as `sa1bpack.verify` does; "none" checks
            nothing.
        samples: number of random samples to show, 1 to 400.
        seed: seed of every random choice.
        progress: called by the verification as progress(bytes done, total bytes).

    Raises:
        OptionError: a value that is not a valid choice, a path that cannot be used, or packs of
            different layouts.
        FormatError: the folder is not a pack, or its manifest or index is damaged, including the
            records of the packer in the manifest.
        MissingPackage: neither pillow-simd nor Pillow is installed.

    Examples:
        >>> result = sa1bpack.report("packed", "report.html", verify="none", samples=1)
        >>> result.path
        PosixPath('report.html')
    """
    roots = tuple(paths_of("pack", pack))
    path = check_output(output, ".html")
    choice("verify", verify, VERIFY)
    samples = checked_count("samples", samples)
    seed = whole_number("seed", seed, 0, MAX_WORD)
    dataset = None
    if len(roots) > 1 or read_manifest(roots[0]).index is not None:
        dataset = open_pack(roots, duplicates="all")
    held = read_holdings(roots, None if dataset is None else dataset.pack)
    manifest = held.manifest
    if dataset is None and not manifest.complete:  # else sa1bpack.open has logged it
        _log.warning("%s: %s", roots[0].absolute(), held.completeness)
    packs = [(roots[0], manifest)]
    if dataset is not None:
        packs = [(folder.root, folder.manifest) for folder in dataset.pack.folders]
    checked = verification(packs, verify, seed, progress)
    seen = Survey() if dataset is None else survey(dataset, seed)
    runs = (run for root in roots for run in read_runs(root))
    text = page(
        held,
        seen,
        checked,
        runs=sorted(runs, key=attrgetter("finished")),
        rejects=[reject for root in roots for reject in _first_rejects(root)][:_SHOWN_REJECTS],
        pictures=[] if dataset is None else _pictures(dataset, samples, seed, seen.unreadable),
        seed=seed,
    )
    replace_file(path, text.encode())
    return ReportResult(
        path, manifest.samples, seen.images, checked, tuple(seen.unreadable), manifest.complete
    )


def _first_rejects(root: Path) -> list[tuple[Any, ...]]:
    """The first lines of rejects.jsonl; a damaged line is shown as it is."""
    found = []
    with (
        suppress(FileNotFoundError),
        (root / REJECTS_NAME).open(encoding="utf-8", errors="replace") as file,
    ):
        for line in islice(file, _SHOWN_REJECTS):
            try:
                reject = msgspec.json.decode(line, type=dict[str, Any])
            except (ValueError, RecursionError):
                reject = {"detail": f"not a record: {line.strip()}"}
            keys = ("source", "reason", "member", "detail")
            found.append(tuple(reject.get(key, "") for key in keys))
    return found


def _pictures(dataset: Dataset, count: int, seed: int, unreadable: list[str]) -> list[Picture]:
    """Random samples; errors are shown in place of a picture and added to the list."""
    pictures = []
    for index in random_indices(len(dataset), count, seed):
        subject = read_or_reason(dataset, index, max(_TILE))
        if isinstance(subject, Unreadable):
            if subject.reason not in unreadable:
                unreadable.append(subject.reason)
            pictures.append(Picture(f"Row {index:,}: {subject.reason}"))
            continue
        height, width = fitted(*subject.rgb.shape[:2], *_TILE)
        buffer = io.BytesIO()
        drawn(subject, height, width).save(buffer, "JPEG", quality=_QUALITY)
        jpeg = base64.b64encode(buffer.getvalue()).decode()
        sample = subject.sample
        facts = f"id {sample['image_id']}, row {sample['index']:,}, {size_text(subject)}"
        masks = mask_text(subject)
        pictures.append(Picture(sample["file_name"], facts, masks, jpeg, width, height))
    return pictures
