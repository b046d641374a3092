"""The options that determine a pack's bytes. All runs into one folder must agree on them."""

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from sa1bpack.arguments import choice, whole_number
from sa1bpack.errors import FormatError, OptionError, OptionsDiffer
from sa1bpack.format.layout import Layout
from sa1bpack.masks.select import MAX_AREA, MAX_MASKS, MAX_SEED, ORDERS, MaskRule
from sa1bpack.wording import brief

FITS = ("pad", "squash", "native")
PIXELS = ("rgb", "yuv420")
MASKS = ("bits+runs", "bits", "runs")
RESAMPLES = ("fast", "exact")
MASK_SAMPLINGS = ("area", "center")
EMPTY = ("keep", "drop")
IMAGE_SIZES = (16, 8192)
MASK_SIZES = (8, 4096)

# A tar of 11,186 images makes two shards, or one with the fit "native", whose images are smaller
# and have one more array. docs/format.md counts the files.
SAMPLES_PER_SHARD = 6144
NATIVE_SAMPLES_PER_SHARD = 12288


class PackKeywords(TypedDict, total=False):
    """The fields of `PackOptions`, as keyword arguments."""

    image_size: int
    fit: str
    pixels: str
    resample: str
    masks: str
    mask_size: int
    mask_sampling: str
    max_masks: int | None
    select: str
    seed: int
    min_area: int
    max_area_frac: float | None
    min_iou: float | None
    min_stability: float | None
    empty: str
    samples_per_shard: int | None


@dataclass(frozen=True)
class PackOptions:
    """The options that determine which bytes a pack holds.

    image_size
        S, the side in pixels of the square that images are stored in.
    fit
        "pad": the longer side becomes S, the rest is zero (SAM). "squash": both become S (SAM 2).
        "native": as pad, but the padding is not stored.
    pixels
        "rgb": 3 bytes per pixel. "yuv420": planes Y, Cb, Cr with chroma at half the size, 1.5 bytes
        per pixel; converted to RGB when read.
    resample
        "fast": DCT-scaled decode, then antialiased bicubic. "exact": bit-equal to a full decode
        followed by Pillow's antialiased bicubic.
    masks
        "bits+runs", "bits" or "runs": bits of a mask grid, the exact run-length masks, or both.
        From runs a reader draws masks of any size, and the original annotations can be exported.
    mask_size
        Sm, the side in cells of the mask grid; a multiple of 8. Without bits it is the default size
        that a reader draws.
    mask_sampling
        "area": a cell is 1 if the mask covers at least half of it. "center": if the mask contains
        the source pixel under the cell's centre.
    max_masks, select, seed
        At most this many masks per image, 1 or more (None: all, of which some images of SA-1B have
        more than 400; a loader's `max_masks` caps batches), chosen by `select` ("largest",
        "random", "iou" or "stability"); `seed` is that of "random".
    min_area, max_area_frac, min_iou, min_stability
        Masks outside these bounds are dropped before capping; the bounds themselves pass.
        None: no bound. Area is in source pixels, its fraction that of the source image.
    empty
        Images without remaining masks are kept ("keep") or dropped ("drop").
    samples_per_shard
        At most this many images per shard; None: 6144, or 12288 with the fit "native".

    Whole numbers may be of any integer type, and are stored as int.

    Examples:
        >>> sa1bpack.PackOptions(image_size=512, pixels="yuv420").mask_size
        256
        >>> sa1bpack.PackOptions(image_size=0)
        Traceback (most recent call last):
            ...
        sa1bpack.errors.OptionError: image_size is 0: choose a whole number from 16 to 8192
    """

    image_size: int = 1024
    fit: str = "pad"
    pixels: str = "rgb"
    resample: str = "fast"
    masks: str = "bits+runs"
    mask_size: int = 256
    mask_sampling: str = "area"
    max_masks: int | None = None
    select: str = "largest"
    seed: int = 0
    min_area: int = 0
    max_area_frac: float | None = None
    min_iou: float | None = None
    min_stability: float | None = None
    empty: str = "keep"
    samples_per_shard: int | None = None

    def __post_init__(self):
        for name, choices in (
            ("fit", FITS),
            ("pixels", PIXELS),
            ("resample", RESAMPLES),
            ("masks", MASKS),
            ("mask_sampling", MASK_SAMPLINGS),
            ("empty", EMPTY),
            ("select", ORDERS),
        ):
            choice(name, getattr(self, name), choices)
        self._store_int("image_size", *IMAGE_SIZES)
        self._store_int("mask_size", *MASK_SIZES)
        if self.mask_size % 8:
            raise OptionError(
                f"mask_size is {self.mask_size}: choose a multiple of 8, because eight cells share "
                "a byte"
            )
        if self.max_masks is not None:
            self._store_int("max_masks", 1, MAX_MASKS)
        self._store_int("seed", 0, MAX_SEED)
        self._store_int("min_area", 0, MAX_AREA)
        if self.samples_per_shard is None:
            native = self.fit == "native"
            count = NATIVE_SAMPLES_PER_SHARD if native else SAMPLES_PER_SHARD
            object.__setattr__(self, "samples_per_shard", count)
        self._store_int("samples_per_shard", 1, 1 << 24)
        _ = self.rule, self.layout  # check the remaining options, and what goes with what
        for name in ("max_area_frac", "min_iou", "min_stability"):
            if getattr(self, name) is not None:
                # 1 and 1.0 are the same option, and must be so in the manifest.
                object.__setattr__(self, name, float(getattr(self, name)))

    def _store_int(self, name: str, low: int, high: int) -> None:
        """Check a whole number, and store it as int, whatever its type."""
        object.__setattr__(self, name, whole_number(name, getattr(self, name), low, high))

    @cached_property
    def layout(self) -> Layout:
        """The arrays that follow from these options."""
        kinds = self.masks.split("+")
        return Layout(
            image_size=self.image_size,
            mask_size=self.mask_size,
            fit=self.fit,
            pixels=self.pixels,
            bits="bits" in kinds,
            runs="runs" in kinds,
        )

    @cached_property
    def rule(self) -> MaskRule:
        """Which masks of an image are kept."""
        return MaskRule(
            max_masks=self.max_masks,
            select=self.select,
            seed=self.seed,
            min_area=self.min_area,
            max_area_frac=self.max_area_frac,
            min_iou=self.min_iou,
            min_stability=self.min_stability,
        )

    def to_json(self) -> dict:
        """As the manifest records them."""
        return asdict(self)

    def check_same(self, recorded: dict, where: str) -> None:
        """Raise OptionsDiffer, naming every difference from what a pack recorded."""
        mine = self.to_json()
        differing = [
            f"  {key if key in mine else brief(key)}: the pack has {worded(key, recorded)}, "
            f"this run asks for {worded(key, mine)}"
            for key in sorted(mine.keys() | recorded.keys())
            if mine.get(key) != recorded.get(key)
        ]
        if differing:
            raise OptionsDiffer(
                f"{where} holds a pack made with other options:\n"
                + "\n".join(differing[:20])
                + "\nRepeat the options of the pack, or choose another output folder."
            )


def checked_options(options: dict) -> PackOptions:
    """PackOptions with these fields; raises OptionError also for unknown ones."""
    known = {field.name for field in fields(PackOptions)}
    if unknown := sorted(options.keys() - known):
        raise OptionError(
            f"unknown option: {', '.join(unknown)}; valid options: {', '.join(sorted(known))}"
        )
    return PackOptions(**options)


def worded(name: str, options: dict) -> str:
    """The value of an option, for a message."""
    if options.get(name) is None:
        return "all" if name == "max_masks" else "none"
    return brief(options[name])


def recorded_options(recorded: dict, root: Path) -> PackOptions:
    """The options that a manifest records. Raises FormatError if they cannot be used."""
    try:
        return checked_options(msgspec.convert(recorded, dict[str, Any]))
    except (OptionError, msgspec.ValidationError) as error:
        raise FormatError(
            f"{root}: the recorded options cannot be used: {error}. Repair it with the version "
            "of sa1bpack that packed it"
        ) from None
