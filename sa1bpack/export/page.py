"""A report as one self-contained HTML page: no script, no other file, no network."""

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from sa1bpack.export.holdings import Holdings, text_of
from sa1bpack.export.survey import Survey, charts
from sa1bpack.export.verification import Verification
from sa1bpack.packing.progress import Run
from sa1bpack.wording import counted, printable, size_text


class Picture(NamedTuple):
    """A sample on the page; without a JPEG, the title says why it cannot be read.

    jpeg  in base64
    """

    title: str
    facts: str = ""
    masks: str = ""
    jpeg: str = ""
    width: int = 0
    height: int = 0


def page(
    held: Holdings,
    seen: Survey,
    checked: Verification,
    *,
    runs: list[Run],
    rejects: list[tuple[Any, ...]],
    pictures: list[Picture],
    seed: int,
) -> str:
    """The HTML of a report. All text is escaped: only the templates are markup.

    seen      distributions, from some of the shards
    runs      the recorded packing runs, in order
    rejects   source, reason, member and detail of the first lines of rejects.jsonl
    pictures  samples, as they are stored
    seed      of every random choice
    """
    templates = Environment(
        loader=PackageLoader("sa1bpack.export"),
        autoescape=True,
        undefined=StrictUndefined,
        # What macros and blocks return is markup; all else is text.
        finalize=lambda value: value if hasattr(value, "__html__") else printable(value),
        keep_trailing_newline=True,
    )
    templates.filters |= {"counted": counted, "duration": _duration, "shown": _shown}
    templates.filters |= {"moment": _moment, "size": size_text}
    return templates.get_template("report.html").render(
        held=held,
        manifest=held.manifest,
        seen=seen,
        checked=checked,
        runs=runs,
        reasons=[(reason, f"{count:,}") for reason, count in held.reasons.items()],
        rejects=rejects,
        pictures=pictures,
        seed=seed,
        version=version("sa1bpack"),
        totals=_totals(held, seen),
        features=[f"{name}: {text}" for name, text in held.features.items()],
        verdict=_verdict(checked),
        charts=charts(held.manifest, held.mask_counts, seen),
        identity=_identity(held, seen),
    )


def _totals(held: Holdings, seen: Survey) -> list[tuple[str, ...]]:
    """Name, value and remark of the numbers at the top."""
    manifest, counts = held.manifest, held.mask_counts
    masks, disk, shards = [], [], []
    if counts.size:
        masks = [f"{np.mean(counts):.1f} per image, median {np.median(counts):.0f}"]
    nbytes = sum(entry.bytes for entry in manifest.shards)
    if seen.stored.bytes:
        about = "" if seen.stored.bytes == nbytes else "about "
        on_disk = size_text(nbytes * seen.stored.disk_bytes / seen.stored.bytes)
        disk = [f"{about}{on_disk} on disk"]
    if sizes := sorted(entry.samples for entry in manifest.shards):
        same = sizes[0] == sizes[-1]
        span = counted(sizes[0], "image") if same else f"{sizes[0]:,} to {sizes[-1]:,} images"
        sources = counted(len({entry.source for entry in manifest.shards}), "source")
        shards = [f"of {span}, from {sources}"]
    rejects = manifest.counts.get("rejects")
    return [
        ("Images", f"{manifest.samples:,}"),
        ("Masks", f"{manifest.masks:,}", *masks),
        (
            "Masks left out",
            f"{held.annotations - manifest.masks:,}",
            held.left_out or f"of {held.annotations:,}",
        ),
        ("Size", size_text(nbytes), *disk),
        ("Shards", f"{len(manifest.shards):,}", *shards),
        ("Rejects", "not recorded" if rejects is None else f"{rejects:,}"),
    ]


def _verdict(checked: Verification) -> tuple[str, str, str]:
    """The result of a check: "good", "warn" or "bad", in words, and the remedy."""
    if checked.how == "none":
        return "warn", "Not verified.", ""
    if checked.ok:
        return "good", "Every byte is sound." if checked.how == "full" else "No problem found.", ""
    found = checked.problems
    denied = all(problem.denied for problem in found)
    kind, verdict = ("warn", "Not all could be read") if denied else ("bad", "Damaged")
    damaged = any(not (problem.extra or problem.denied) for problem in found)
    remedy = "sa1bpack repair rebuilds what is damaged, from the tars." if damaged else ""
    return kind, f"{verdict}: {counted(len(found), 'problem')}.", remedy


def _identity(held: Holdings, seen: Survey) -> list[tuple[str, str]]:
    manifest, stored = held.manifest, seen.stored
    made = [
        "; ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        for versions in stored.packed_by
    ]
    unknown = "no key of the JSON, in the shards read"
    if stored.unknown_keys:
        unknown = f"keys of the JSON: {', '.join(stored.unknown_keys)}"
    index = "one in each pack" if len(held.roots) > 1 else manifest.index or "none yet"
    return [
        ("format", f"{manifest.format} {'.'.join(map(str, manifest.version))}"),
        *(("packed by", text) for text in made or ["not recorded"]),
        ("seen in", f"{len(seen.shards):,} of {counted(len(manifest.shards), 'shard')}"),
        ("index", index),
        ("not stored", unknown),
    ]


def _shown(value: Any) -> str:
    """A recorded value as text."""
    words = {None: "none", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else text_of(value)


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
