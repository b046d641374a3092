"""A report as one self-contained HTML page: no script, no other file, no network."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.format import Completeness, Manifest
from sa1bpack.format.duplicates import Duplicates
from sa1bpack.masks.select import left_out_text
from sa1bpack.packing.run_log import Run
from sa1bpack.report.markup import Markup, element, facts, table
from sa1bpack.report.page_charts import charts
from sa1bpack.report.records import REJECTS_PREFIX, text_of
from sa1bpack.report.sides import SideInfo
from sa1bpack.report.style import STYLE
from sa1bpack.report.survey import Survey
from sa1bpack.report.verification import Verification
from sa1bpack.wording import counted, size_text

SHOWN_PROBLEMS = 50
SHOWN_REJECTS = 20
SHOWN_RUNS = 10
SHOWN_SOURCES = 20
SHOWN_PACKS = 20


@dataclass(frozen=True)
class Contents:
    """The contents of a report.

    roots, manifest
        The pack, or several as one.
    mask_counts
        (N,) int64, masks of each sample.
    survey
        Distributions, from some of its shards.
    verification
        What was checked and found.
    runs
        The recorded packing runs, in order.
    rejects
        The first lines of rejects.jsonl.
    pictures
        Figures of samples.
    completeness
        How much of the pack is published.
    duplicates
        Sources and image ids that the pack holds more than once.
    seed
        Seed of every random choice.
    version
        Version of sa1bpack that writes the report.
    sides
        The side arrays in the pack's own folder.
    """

    roots: tuple[Path, ...]
    manifest: Manifest
    mask_counts: np.ndarray
    survey: Survey
    verification: Verification
    runs: list[Run]
    rejects: list[dict[str, Any]]
    pictures: list[Markup]
    completeness: Completeness
    duplicates: Duplicates
    seed: int
    version: str
    sides: tuple[SideInfo, ...] = ()


def page(contents: Contents) -> str:
    """The whole page."""
    roots = contents.roots
    title = f"Pack {roots[0].resolve().name}" if len(roots) == 1 else f"{len(roots):,} packs"
    body = [
        _header(contents, title),
        _totals(contents),
        _section("State", *_state(contents)),
        _section(
            "Distributions", *charts(contents.manifest, contents.mask_counts, contents.survey)
        ),
        _section("Samples", *_samples(contents)),
        _section("Options and versions", *_options(contents)),
        _section("Packing runs", *_runs(contents.runs)),
        _section("Dropped and rejected", *_left_out(contents)),
        _section("Sources", *_sources(contents.manifest)),
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", STYLE),
    )
    document = element("html", head, element("body", element("main", *body)), lang="en")
    return f"<!DOCTYPE html>\n{document}\n"


def _section(title: str, *content: Markup) -> Markup:
    return element("section", element("h2", title), *content)


def _header(contents: Contents, title: str) -> Markup:
    made, roots = contents.verification.finished, contents.roots
    places = ", ".join(str(root.resolve()) for root in roots[:SHOWN_PACKS])
    if len(roots) > SHOWN_PACKS:
        places += f" and {counted(len(roots) - SHOWN_PACKS, 'more pack')}"
    return element(
        "header",
        element("h1", title),
        element(
            "p",
            f"{places}. Report of {_when(made)} by sa1bpack {contents.version}.",
            class_="lead",
        ),
    )


def _totals(contents: Contents) -> Markup:
    manifest, counts = contents.manifest, contents.mask_counts
    nbytes = sum(entry.bytes for entry in manifest.shards)
    typical = (
        f"{np.mean(counts):.1f} per image, median {np.median(counts):.0f}" if counts.size else None
    )
    annotations = sum(entry.annotations for entry in manifest.shards)
    counted_masks = {**manifest.counts, "annotations": annotations}
    left_out = left_out_text(manifest.options, counted_masks, manifest.masks)
    rejects = manifest.counts.get("rejects")
    return element(
        "dl",
        _total("Images", f"{manifest.samples:,}"),
        _total("Masks", f"{manifest.masks:,}", typical),
        _total(
            "Masks left out", f"{annotations - manifest.masks:,}", left_out or f"of {annotations:,}"
        ),
        _total("Size", size_text(nbytes), _disk_text(contents.survey, nbytes)),
        _total("Shards", f"{len(manifest.shards):,}", _shard_text(manifest)),
        _total("Rejects", "not recorded" if rejects is None else f"{rejects:,}"),
        class_="totals",
    )


def _total(name: str, value: str, note: str | None = None) -> Markup:
    small = None if note is None else element("small", note)
    return element("div", element("dt", name), element("dd", value, small))


def _disk_text(survey: Survey, nbytes: int) -> str | None:
    if not survey.file_bytes:
        return None
    about = "" if survey.file_bytes == nbytes else "about "
    stored = nbytes * survey.disk_bytes / survey.file_bytes
    return f"{about}{size_text(stored)} on disk"


def _shard_text(manifest: Manifest) -> str | None:
    sizes = [entry.samples for entry in manifest.shards]
    if not sizes:
        return None
    low, high = min(sizes), max(sizes)
    span = counted(low, "image") if low == high else f"{low:,} to {high:,} images"
    sources = len({entry.source for entry in manifest.shards})
    return f"of {span}, from {counted(sources, 'source')}"


def _state(contents: Contents) -> list[Markup]:
    checked = contents.verification
    cards = []
    if not contents.manifest.complete:
        text = str(contents.completeness)
        cards.append(_card("warn", "Not complete.", f"{text[0].upper()}{text[1:]}."))
    if contents.duplicates:
        shown = _shortened_list(contents.duplicates.lines(), "finding")
        cards.append(_card("warn", "Held more than once.", "", shown))
    if contents.sides:
        shown = _shortened_list(list(map(str, contents.sides)), "side array")
        cards.append(_card("good", counted(len(contents.sides), "side array") + ".", "", shown))
    when = f"{_when(checked.finished)}, in {_duration(checked.seconds)}."
    if checked.how == "none":
        cards.append(_card("warn", "Not verified.", checked.covered))
    elif checked.ok:
        verdict = "Every byte is sound." if checked.how == "full" else "No problem found."
        cards.append(_card("good", verdict, checked.covered, f"Checked on {when}"))
    else:
        shown = _shortened_list(checked.problems, "problem")
        size = counted(len(checked.problems), "problem")
        denied = all(problem.denied for problem in checked.problems)
        kind, verdict = ("warn", "Not all could be read") if denied else ("bad", "Damaged")
        text = (f"{verdict}: {size}.", checked.covered, f"Checked on {when}")
        damaged = any(not (problem.extra or problem.denied) for problem in checked.problems)
        remedy = "sa1bpack repair rebuilds what is damaged, from the tars."
        cards.append(_card(kind, *text, shown, *([remedy] if damaged else [])))
    if contents.survey.unreadable:
        shown = _shortened_list(contents.survey.unreadable, "part")
        size = counted(len(contents.survey.unreadable), "part")
        verdict = f"{size} of the pack could not be read for this report."
        cards.append(_card("bad", verdict, "", shown))
    if checked.notes:
        cards.append(_card("warn", "Notes.", "", _shortened_list(checked.notes, "note")))
    return cards


def _card(kind: str, verdict: str, text: str, *more: str | Markup) -> Markup:
    below = [
        part if isinstance(part, Markup) else element("p", part, class_="faint") for part in more
    ]
    line = element("p", element("strong", verdict), f" {text}" if text else None)
    return element("div", line, *below, class_=f"card state {kind}")


def _shortened_list(lines: Sequence[object], noun: str) -> Markup:
    items = [element("li", str(line)) for line in lines[:SHOWN_PROBLEMS]]
    if len(lines) > SHOWN_PROBLEMS:
        more = counted(len(lines) - SHOWN_PROBLEMS, f"more {noun}")
        items.append(element("li", f"and {more}; sa1bpack verify lists all"))
    return element("ul", *items)


def _samples(contents: Contents) -> list[Markup]:
    if not contents.pictures:
        return [element("p", "The pack has no images yet.", class_="faint")]
    total = contents.manifest.samples
    how = (
        f"All {counted(total, 'image')}"
        if len(contents.pictures) == total
        else f"{len(contents.pictures)} of {counted(total, 'image')}, at random "
        f"(seed {contents.seed})"
    )
    masks = "stored masks" if contents.manifest.layout.bits else "masks drawn from exact runs"
    return [
        element(
            "p",
            f"{how}: stored pixels and {masks}, smaller ones over larger ones, with boxes and the "
            "points that prompted them.",
            class_="faint",
        ),
        element("div", *contents.pictures, class_="pictures"),
    ]


def _options(contents: Contents) -> list[Markup]:
    manifest, survey = contents.manifest, contents.survey
    of = f"{len(survey.shards):,} of {counted(len(manifest.shards), 'shard')}"
    made = [
        ("; ".join(f"{name} {version}" for name, version in sorted(versions.items())))
        for versions in survey.packed_by
    ]
    return [
        element(
            "div",
            element("div", element("h3", "Options"), facts(_texts(manifest.options)),
                    class_="card"),
            element("div", element("h3", "Layout"), facts(_texts(manifest.layout.to_json())),
                    class_="card"),
            element(
                "div",
                element("h3", "Versions and identity"),
                facts(
                    [
                        ("format", f"{manifest.format} {'.'.join(map(str, manifest.version))}"),
                        *(("packed by", text) for text in made or ["not recorded"]),
                        ("seen in", of),
                        ("index", _index_text(contents)),
                        (
                            "not stored",
                            f"keys of the JSON: {', '.join(sorted(survey.unknown_keys))}"
                            if survey.unknown_keys
                            else "no key of the JSON, in the shards read",
                        ),
                    ]
                ),
                class_="card",
            ),
            class_="grid",
        )
    ]  # fmt: skip


def _index_text(contents: Contents) -> str:
    if len(contents.roots) > 1:
        return "one in each pack"
    return contents.manifest.index or "none yet"


def _texts(values: dict[str, Any]) -> list[tuple[str, str]]:
    words = {None: "none", True: "yes", False: "no"}
    return [
        (name, words[value] if value is None or isinstance(value, bool) else text_of(value))
        for name, value in sorted(values.items())
    ]


def _runs(runs: list[Run]) -> list[Markup]:
    if not runs:
        return [
            element(
                "p",
                "No run is recorded. Packing records its runs in the folder, in ",
                element("code", ".runs.jsonl"),
                ", which a copy of the pack may lack.",
                class_="faint",
            )
        ]
    images, seconds = sum(run.images for run in runs), sum(run.seconds for run in runs)
    shown = runs[-SHOWN_RUNS:]
    summary = (
        f"{counted(images, 'image')} in {counted(len(runs), 'run')} and {_duration(seconds)}: "
        f"{images / seconds:,.1f} images/s. A run that was killed is not recorded."
    )
    rows = [
        (
            _when(run.finished), f"{run.outcome}", f"{run.images:,}", _duration(run.seconds),
            f"{run.images / run.seconds:,.1f}", f"{run.source_bytes / run.seconds / 1e6:,.1f}",
            f"{run.workers:,}", run.sa1bpack,
        )
        for run in reversed(shown)
    ]  # fmt: skip
    last = f" The last {SHOWN_RUNS}:" if len(runs) > SHOWN_RUNS else ""
    head = ("finished", "outcome", "images", "time", "images/s", "source MB/s", "workers",
            "sa1bpack")  # fmt: skip
    return [
        element("div", element("p", summary + last), table(head, rows, numbers=6), class_="card")
    ]


def _left_out(contents: Contents) -> list[Markup]:
    counts = contents.manifest.counts
    reasons = [
        (key.removeprefix(REJECTS_PREFIX), f"{count:,}")
        for key, count in sorted(counts.items())
        if key.startswith(REJECTS_PREFIX)
    ]
    dropped = counts.get("dropped_images", 0)
    cards = []
    if dropped:
        cards.append(
            element("p", f"{counted(dropped, 'image')} in which no masks remained (--empty drop).")
        )
    if not reasons:
        return [*cards, element("p", "No member was rejected.", class_="faint")]
    cards.append(
        element(
            "div",
            element("div", table(("reason", "members"), reasons, numbers=1), class_="card"),
            class_="grid",
        )
    )
    head = ("source", "reason", "member", "detail")
    rows = [tuple(line.get(key, "") for key in head) for line in contents.rejects]
    first = f"The first {len(rows):,} of rejects.jsonl:" if rows else "rejects.jsonl is missing."
    cards.append(
        element("div", element("p", first), table(head, rows, texts=head[2:]), class_="card")
    )  # fmt: skip
    return cards


def _sources(manifest: Manifest) -> list[Markup]:
    if not manifest.sources:
        return [element("p", "No source is packed to its end yet.", class_="faint")]
    rows = [
        (
            source.get("name", ""), source.get("kind", ""), f"{source.get('pairs', 0):,}",
            size_text(source.get("nbytes", 0)), source.get("xxh128") or "", _md5_text(source),
        )
        for source in manifest.sources[:SHOWN_SOURCES]
    ]  # fmt: skip
    more = len(manifest.sources) - len(rows)
    note = f"and {counted(more, 'more source')}, see manifest.json" if more > 0 else None
    inner = table(("source", "kind", "pairs", "size", "XXH3-128", "md5"), rows)
    return [element("div", inner, note and element("p", note, class_="faint"), class_="card")]


def _md5_text(source: dict[str, Any]) -> str:
    if not source.get("md5"):
        return "none: a folder" if source.get("kind") == "folder" else "not computed"
    return f"{source['md5']}{' (as in the list)' if source.get('md5_checked') else ''}"


def _when(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"
