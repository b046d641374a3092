"""A report as one self-contained HTML page: no script, no other file, no network."""

from collections.abc import Sequence
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

SHOWN_REJECTS = 20
_SHOWN_RUNS = 10
_SHOWN_SOURCES = 20
_SHOWN_PACKS = 20


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


class _Card(NamedTuple):
    """A statement on the state of the pack; kind is "good", "warn" or "bad"."""

    kind: str
    verdict: str
    text: str = ""
    when: str = ""
    lines: Sequence[object] = ()
    noun: str = ""
    remedy: str = ""


def page(
    held: Holdings,
    seen: Survey,
    checked: Verification,
    *,
    runs: list[Run],
    rejects: list[dict[str, Any]],
    pictures: list[Picture],
    seed: int,
) -> str:
    """The HTML of a report. All text is escaped: only the templates are markup.

    seen      distributions, from some of the shards
    runs      the recorded packing runs, in order
    rejects   the first lines of rejects.jsonl
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
    roots, manifest = held.roots, held.manifest
    places = ", ".join(str(root.resolve()) for root in roots[:_SHOWN_PACKS])
    if len(roots) > _SHOWN_PACKS:
        places += f" and {counted(len(roots) - _SHOWN_PACKS, 'more pack')}"
    return templates.get_template("report.html").render(
        title=f"Pack {roots[0].resolve().name}" if len(roots) == 1 else f"{len(roots):,} packs",
        places=places,
        made=_when(checked.finished),
        version=version("sa1bpack"),
        totals=_totals(held, seen),
        cards=_cards(held, seen, checked),
        charts=charts(manifest, held.mask_counts, seen),
        pictures=pictures,
        seed=seed,
        manifest=manifest,
        identity=_identity(held, seen),
        runs=runs,
        shown_runs=[_run_row(run) for run in reversed(runs[-_SHOWN_RUNS:])],
        reasons=[(reason, f"{count:,}") for reason, count in held.reasons.items()],
        rejects=[
            [line.get(key, "") for key in ("source", "reason", "member", "detail")]
            for line in rejects
        ],
        sources=[_source_row(source) for source in manifest.sources[:_SHOWN_SOURCES]],
        more_sources=max(0, len(manifest.sources) - _SHOWN_SOURCES),
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


def _cards(held: Holdings, seen: Survey, checked: Verification) -> list[_Card]:
    cards = []
    if not held.manifest.complete:
        text = str(held.completeness)
        cards.append(_Card("warn", "Not complete.", f"{text[0].upper()}{text[1:]}."))
    if lines := held.duplicates.lines():
        cards.append(_Card("warn", "Held more than once.", lines=lines, noun="finding"))
    if lines := [f"{name}: {text}" for name, text in held.features.items()]:
        size = counted(len(lines), "feature")
        cards.append(_Card("good", f"{size}.", lines=lines, noun="feature"))
    cards.append(_verdict(checked))
    if lines := seen.unreadable:
        text = f"{counted(len(lines), 'part')} of the pack could not be read for this report."
        cards.append(_Card("bad", text, lines=lines, noun="part"))
    if checked.notes:
        cards.append(_Card("warn", "Notes.", lines=checked.notes, noun="note"))
    return cards


def _verdict(checked: Verification) -> _Card:
    when = f"Checked on {_when(checked.finished)}, in {_duration(checked.seconds)}."
    if checked.how == "none":
        return _Card("warn", "Not verified.", checked.covered)
    if checked.ok:
        verdict = "Every byte is sound." if checked.how == "full" else "No problem found."
        return _Card("good", verdict, checked.covered, when)
    found = checked.problems
    denied = all(problem.denied for problem in found)
    kind, verdict = ("warn", "Not all could be read") if denied else ("bad", "Damaged")
    damaged = any(not (problem.extra or problem.denied) for problem in found)
    return _Card(
        kind,
        f"{verdict}: {counted(len(found), 'problem')}.",
        checked.covered,
        when,
        found,
        "problem",
        "sa1bpack repair rebuilds what is damaged, from the tars." if damaged else "",
    )


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


def _run_row(run: Run) -> tuple[str, ...]:
    speed, read = run.images / run.seconds, run.source_bytes / run.seconds / 1e6
    took, images = _duration(run.seconds), f"{run.images:,}"
    figures = images, took, f"{speed:,.1f}", f"{read:,.1f}", f"{run.workers:,}"
    return _when(run.finished), f"{run.outcome}", *figures, run.sa1bpack


def _source_row(source: dict[str, Any]) -> tuple[str, ...]:
    md5 = "none: a folder" if source.get("kind") == "folder" else "not computed"
    if source.get("md5"):
        md5 = f"{source['md5']}{' (as in the list)' if source.get('md5_checked') else ''}"
    return (
        source.get("name", ""),
        source.get("kind", ""),
        f"{source.get('pairs', 0):,}",
        size_text(source.get("nbytes", 0)),
        source.get("xxh128") or "",
        md5,
    )


def _shown(value: Any) -> str:
    """A recorded value as text."""
    words = {None: "none", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else text_of(value)


def _when(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
