"""What decides a pack's bytes. Two runs into one folder must agree on all of it."""

from dataclasses import asdict, dataclass

from sa1bpack.errors import OptionError, OptionsDiffer
from sa1bpack.format.layout import Layout
from sa1bpack.masks.select import MaskRule

FITS = ("pad", "squash")
RESAMPLES = ("fast", "exact")
MASK_SAMPLINGS = ("area", "center")
EMPTY = ("keep", "drop")

# 1000 tars of 11,186 images make two shards each; docs/format.md counts the files.
DEFAULT_SAMPLES_PER_SHARD = 6144


@dataclass(frozen=True)
class PackOptions:
    """The options that decide which bytes a pack holds.

    image_size
        S, the side in pixels of the square that images are stored in.
    fit
        "pad": the longer side becomes S, the rest is zero (SAM). "squash": both become S (SAM 2).
    resample
        "fast": DCT-scaled decode, then antialiased bicubic. "exact": bit-equal to a full decode
        followed by Pillow's antialiased bicubic.
    mask_size
        Sm, the side in cells of the mask grid; a multiple of 8.
    mask_sampling
        "area": a cell is 1 where the mask covers at least half of it. "center": where the mask
        holds the source pixel under the cell's centre.
    runs
        Store the exact run-length masks beside the bits.
    max_masks, select, seed
        At most so many masks an image (None: all), chosen by `select` ("largest", "random", "iou"
        or "stability"); `seed` is that of "random".
    min_area, max_area_frac, min_iou, min_stability
        Masks outside of these bounds are dropped before capping; the bounds themselves pass, and
        None is no bound.
        Area is in source pixels, its fraction that of the source image.
    empty
        Images with no mask left are kept with none ("keep") or left out ("drop").
    samples_per_shard
        Images a shard at most.
    """

    image_size: int = 1024
    fit: str = "pad"
    resample: str = "fast"
    mask_size: int = 256
    mask_sampling: str = "area"
    runs: bool = True
    max_masks: int | None = 100
    select: str = "largest"
    seed: int = 0
    min_area: int = 0
    max_area_frac: float | None = None
    min_iou: float | None = None
    min_stability: float | None = None
    empty: str = "keep"
    samples_per_shard: int = DEFAULT_SAMPLES_PER_SHARD

    def __post_init__(self):
        for name, choices in (
            ("fit", FITS),
            ("resample", RESAMPLES),
            ("mask_sampling", MASK_SAMPLINGS),
            ("empty", EMPTY),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise OptionError(f"{name} is {value!r}; choose one of {', '.join(choices)}")
        _check_integer("image_size", self.image_size, 16, 8192)
        _check_integer("mask_size", self.mask_size, 8, 4096)
        if self.mask_size % 8:
            raise OptionError(
                f"mask_size is {self.mask_size}; it must be a multiple of 8, because eight cells "
                "share a byte"
            )
        _check_integer("samples_per_shard", self.samples_per_shard, 1, 1 << 24)
        if not isinstance(self.runs, bool):
            raise OptionError(f"runs is {self.runs!r}; it must be True or False")
        _ = self.rule  # checks the remaining options
        for name in ("max_area_frac", "min_iou", "min_stability"):
            if getattr(self, name) is not None:
                # 1 and 1.0 are one option, and must be one in the manifest.
                object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def layout(self) -> Layout:
        """The arrays that these options lead to."""
        return Layout(
            image_size=self.image_size, mask_size=self.mask_size, fit=self.fit, runs=self.runs
        )

    @property
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
            f"  {key}: the pack has {recorded.get(key)!r}, this run asks for {mine.get(key)!r}"
            for key in sorted(mine.keys() | recorded.keys())
            if mine.get(key) != recorded.get(key)
        ]
        if differing:
            raise OptionsDiffer(
                f"{where} holds a pack made with other options:\n"
                + "\n".join(differing)
                + "\nRepeat the options of the pack, or choose another output folder."
            )


def _check_integer(name: str, value, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise OptionError(f"{name} is {value!r}; it must be an integer from {low} to {high}")
