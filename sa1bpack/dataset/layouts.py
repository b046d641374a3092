"""Packs of several layouts as one: what differs, what all of them have, and how to pack alike."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sa1bpack.errors import OptionError
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import Manifest
from sa1bpack.mask_numbers import ABSENT_NUMBERS
from sa1bpack.wording import brief

# Keys of a layout that decide what an image is: packs that differ in one have no common samples.
_OF_IMAGES = ("image_size", "fit", "pixels")


def pack_sampling(manifest: Manifest) -> str:
    """The sampling of a pack's own masks; see docs/format.md."""
    sampling: str = manifest.options.get("mask_sampling", "area")
    return sampling


def shared_layout(manifests: Sequence[Manifest]) -> Layout:
    """What all of several packs store, of images of one kind.

    Bits are shared if all packs have bits of one grid and one sampling; else masks come from runs,
    on the grid of the first pack unless another one is asked for.

    Raises OptionError if they have no form of masks in common.
    """
    layouts = [manifest.layout for manifest in manifests]
    grids = {(pack.layout.mask_size, pack_sampling(pack)) for pack in manifests}
    lacking = {name for layout in layouts for name in layout.absent}
    shared_numbers = set.intersection(*(set(layout.numbers) for layout in layouts))
    return replace(
        layouts[0],
        bits=all(layout.bits for layout in layouts) and len(grids) == 1,
        runs=all(layout.runs for layout in layouts),
        numbers=tuple(name for name in layouts[0].numbers if name in shared_numbers),
        absent=tuple(name for name in ABSENT_NUMBERS if name in lacking),
    )


def check_layouts(packs: Mapping[Path, Manifest], layouts: str = "equal") -> None:
    """Raise OptionError, naming what differs and the remedy, for packs that are not one dataset.

    Mask sampling counts as well: it decides what the bits of a mask mean. Other options of packing
    may differ, such as the limit of masks.

    Args:
        packs: folder of each pack → its manifest.
        layouts: "equal": they must have one layout. "shared": images of one kind, and one form of
            masks.
    """
    first, *others = packs
    stored = {root: _stored(manifest) for root, manifest in packs.items()}
    for root in others:
        differing = [key for key in stored[first] if stored[first][key] != stored[root][key]]
        if not differing:
            continue
        can_share = not set(differing).intersection(_OF_IMAGES) and _has_masks(packs)
        if layouts == "shared" and can_share:
            continue
        named = "; ".join(
            f"{key} is {_worded(stored[first][key])} in {first}, {_worded(stored[root][key])} in "
            f"{root}"
            for key in differing
        )
        remedies = []
        if can_share:
            remedies.append(
                "open them with layouts='shared' (--layouts shared), as what both of them have"
            )
        if flags := _flags(packs[first], differing):
            remedies.append(f"pack alike, `sa1bpack pack SOURCES -o NEW {flags}`")
        if not can_share:
            remedies.append("read each by a Loader of its own, in one loop: sa1bpack.Mix")
        remedy = " or ".join(remedies)
        raise OptionError(
            f"packs of different layouts cannot be opened together: {named}; {remedy}"
        )


def _stored(manifest: Manifest) -> dict[str, Any]:
    """What decides the samples of a pack, by the names of a layout."""
    layout = manifest.layout
    stored = {name: getattr(layout, name) for name in Layout.__dataclass_fields__}
    return stored | {"mask_sampling": pack_sampling(manifest)}


def _has_masks(packs: Mapping[Path, Manifest]) -> bool:
    """True if packs with images of one kind have a form of masks in common."""
    try:
        shared_layout(list(packs.values()))
    except OptionError:
        return False
    return True


def _worded(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(value)})" if value else "nothing"
    return brief(value)


def _flags(manifest: Manifest, differing: Sequence[str]) -> str:
    """The flags of `sa1bpack pack` that make a pack like this one, in what differs; "": none do."""
    layout = manifest.layout
    flags = []
    for key in differing:
        if key in ("bits", "runs"):
            forms = [form for form in ("bits", "runs") if getattr(layout, form)]
            flags.append(f"--masks {'+'.join(forms)}")
        elif key == "absent":
            flags += [f"--absent {name}" for name in layout.absent]
        elif key == "mask_sampling":
            flags.append(f"--mask-sampling {pack_sampling(manifest)}")
        elif key != "numbers":  # which no option of pack decides
            flags.append(f"--{key.replace('_', '-')} {getattr(layout, key)}")
    return " ".join(dict.fromkeys(flags))
