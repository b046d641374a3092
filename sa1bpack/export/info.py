"""`info`: what a pack holds, from its manifest and its index, without reading pixels."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.arguments import checks_options, paths_of
from sa1bpack.export.holdings import Holdings, Stored, name_of, read_holdings, text_of
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import SHARDS_NAME, Manifest, identity_text
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.side.spec import SIDES_NAME
from sa1bpack.wording import counted, size_text

# Bins of the histogram, at most: a bin is a tenth of the largest mask count, rounded up.
_BINS = 10
_BAR = 40
_WIDTH = 90  # columns
_PACKS = 20  # of several, those that are listed


@dataclass(frozen=True, kw_only=True)
class PackInfo(Holdings, Stored):
    """Summary of a pack, or of several as one.

    roots
        Its folder, or those of several packs that are summarized as one.
    manifest
        Its manifest; of several packs, one that lists the shards of all.
    bytes
        Size of its chunk files, including holes; `disk_bytes` is their size on disk.
    files, folders
        Number of each, without working files of a packer: what a limit on inodes counts.
    mask_counts
        (N,) int64, number of masks of each sample.
    packed_by
        The versions that packed it, one entry per combination.
    unknown_keys
        Keys of the JSON records that a pack does not store.
    completeness
        How much of the pack is published.
    duplicates
        Sources and image ids that the pack holds more than once.
    features
        The features in PACK/side, name → text; their files are not counted above.
    packs
        Of several packs, what each holds; empty for one.
    """

    packs: tuple["PackInfo", ...] = ()

    def histogram(self) -> tuple[np.ndarray, np.ndarray]:
        """Images by number of masks: counts int64 (b,), edges int64 (b + 1,), upper excluded."""
        top = int(self.mask_counts.max(initial=0)) + 1
        step = max(1, -(-top // _BINS))
        edges = np.arange(0, top + step, step)
        return np.histogram(self.mask_counts, edges)[0], edges

    def __str__(self) -> str:
        return self.as_text()

    def as_text(self) -> str:
        """A summary in lines of at most 90 columns, unless the path of the folder is longer."""
        manifest, counts = self.manifest, self.manifest.counts
        lines = [
            name_of(self.roots),
            *self._packs(),
            f"  format     {manifest.format} {'.'.join(map(str, manifest.version))}, "
            + ("complete" if manifest.complete else f"NOT COMPLETE: {self.completeness.remedy}"),
            f"  images     {manifest.samples:,} in {counted(len(manifest.shards), 'shard')} "
            f"from {counted(len(manifest.sources) + len(self.completeness.partial), 'source')}",
            f"  identity   {identity_text(manifest.sources)}",
            *self._state(),
            f"  pixels     {_pixel_text(manifest.layout)}",
            f"  masks      {manifest.masks:,}; " + (self.left_out or "none left out"),
            f"  mask data  {_mask_text(manifest.layout)}",
            f"  size       {size_text(self.bytes)}, {size_text(self.disk_bytes)} on disk"
            + ("" if manifest.layout.flat else " (padding is stored as holes)"),
            f"  files      {self.files:,} in {counted(self.folders, 'folder')}",
            f"  dropped    {counted(counts.get('dropped_images', 0), 'image')} without masks, "
            f"{counted(counts.get('rejects', 0), 'rejected member')}",
        ]
        lines += [f"             {count:,} {reason}" for reason, count in self.reasons.items()]
        if self.unknown_keys:
            lines += _wrapped("not stored", f"keys of the JSON: {', '.join(self.unknown_keys)}")
        for made in self.packed_by:
            lines.append(
                "  made by    " + ", ".join(f"{key} {value}" for key, value in made.items())
            )
        lines.append("options")
        lines += [f"  {key:<18} {text_of(value)}" for key, value in manifest.options.items()]
        lines.append("masks per image")
        lines += self._bars()
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what `as_text` says, in numbers; "pack" is None for several."""
        manifest, (images, edges) = self.manifest, self.histogram()
        return {
            "pack": None if self.packs else str(self.roots[0]),
            "complete": manifest.complete,
            "counts": {
                "sources": len(manifest.sources),
                "shards": len(manifest.shards),
                "samples": manifest.samples,
                "masks": manifest.masks,
                **manifest.counts,
                "files": self.files,
                "folders": self.folders,
                "bytes": self.bytes,
                "disk_bytes": self.disk_bytes,
            },
            "masks_per_image": {"edges": edges.tolist(), "images": images.tolist()},
            "options": manifest.options,
            "identity": identity_text(manifest.sources),
            "packed_by": self.packed_by,
            "unknown_keys": self.unknown_keys,
            "features": self.features,
            "notes": ([] if manifest.complete else [str(self.completeness)])
            + self.duplicates.lines(),
            "packs": [each.as_dict() for each in self.packs],
        }

    def _packs(self) -> list[str]:
        """A line for each of several packs."""
        lines = []
        for each in self.packs[:_PACKS]:
            state = "" if each.manifest.complete else ", NOT COMPLETE"
            lines.append(
                f"  pack       {each.roots[0]}: {counted(each.manifest.samples, 'image')}, "
                f"{size_text(each.bytes)}{state}"
            )
        more = len(self.packs) - _PACKS
        return lines + ([f"             and {counted(more, 'more pack')}"] if more > 0 else [])

    def _state(self) -> list[str]:
        """Lines on what is missing, held more than once, or kept beside the pack."""
        state = [] if self.manifest.complete and self.manifest.samples else [self.completeness]
        return [
            line
            for label, text in (
                *(("state", str(each)) for each in state),
                *(("duplicates", line) for line in self.duplicates.lines()),
                *(("feature", f"{name}: {text}") for name, text in self.features.items()),
            )
            for line in _wrapped(label, text)
        ]

    def _bars(self) -> list[str]:
        counts, edges = self.histogram()
        most = max(1, int(counts.max(initial=0)))
        lines = []
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
            label = f"{low}" if high - low == 1 else f"{low}-{high - 1}"
            bar = "#" * round(_BAR * int(count) / most)
            lines.append(f"  {label:>9}  {bar:<{_BAR}} {count:,}")
        return lines


def _wrapped(label: str, text: str) -> list[str]:
    """A text in lines of at most 90 columns, beside its label."""
    return textwrap.wrap(text, _WIDTH, initial_indent=f"  {label:<10} ", subsequent_indent=" " * 13)


def _pixel_text(layout: Layout) -> str:
    """The form of stored images, as a short text."""
    side = layout.image_size
    form = {
        "pad": f"padded to {side} x {side}",
        "squash": f"squashed to {side} x {side}",
        "native": f"longer side {side}, without padding",
    }
    return f"{layout.pixels}, {form[layout.fit]}"


def _mask_text(layout: Layout) -> str:
    """The form of stored masks, as a short text."""
    grid = f"{layout.mask_size} x {layout.mask_size}"
    forms = [f"{grid} bits"] if layout.bits else []
    forms += ["exact runs at full size"] if layout.runs else []
    return " and ".join(forms)


@checks_options
def info(root: str | Path | Iterable[str | Path]) -> PackInfo:
    """Summarize a pack, or several as one.

    root  folder of a pack, several, or a glob pattern

    Raises FormatError (or VersionError) if one is not a pack or is damaged, OptionError for a URL,
    a pattern that matches nothing, and packs of different layouts, naming what differs.

    Examples:
        >>> facts = sa1bpack.info("packed")
        >>> int(facts.mask_counts.sum()), facts.files
        (203, 52)
        >>> print(facts.as_text().splitlines()[2])
          images     3 in 1 shard from 1 source
    """
    packs = [_info([each]) for each in paths_of("root", root)]
    return packs[0] if len(packs) == 1 else _info([each.roots[0] for each in packs], packs)


def _info(roots: Sequence[Path], packs: Sequence[PackInfo] = ()) -> PackInfo:
    """The summary of a pack; of several, with those of each, whose figures add up."""
    held = read_holdings(roots)
    if packs:
        stored = sum(packs, Stored())
    else:
        folder = roots[0] / SHARDS_NAME
        shards = (open_shard(folder / entry.name) for entry in held.manifest.shards)
        stored = sum(map(Stored.of, shards), _own(roots[0], held.manifest))
    return PackInfo(**vars(held), **vars(stored), packs=tuple(packs))


def _own(root: Path, manifest: Manifest) -> Stored:
    """Files and folders of a pack outside its shards, without working files of a packer."""
    paths = [
        path
        for path in (*root.iterdir(), *(root / SHARDS_NAME).glob("*"))
        if not path.name.startswith(".") and path != root / SIDES_NAME
    ]
    paths += [] if manifest.index is None else (root / manifest.index).rglob("*")
    files = sum(path.is_file() for path in paths)
    return Stored(files=files, folders=1 + len(paths) - files)
