"""The options of a pack and of a run, and what is to be packed, checked.

Those of a pack determine its bytes: all runs into one folder must agree on them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from sa1bpack.environment import available_cpus
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format.layout import FITS, PIXELS, Layout, absent_numbers
from sa1bpack.format.side.kept import KeptKey
from sa1bpack.keywords import checks_options
from sa1bpack.mask_numbers import ABSENT_NUMBERS, OPTIONAL_NUMBERS, chosen_numbers
from sa1bpack.masks.select import MAX_MASK_SIZE, SAMPLINGS, MaskRule, check_numbers
from sa1bpack.options import Options, declarations, option
from sa1bpack.packing.keep import ALL_KEYS, checked_keys, stored_keys
from sa1bpack.source.records.table import READERS, SA1B
from sa1bpack.source.records.webdataset import DEFAULT_KEYS, roles_of
from sa1bpack.wording import brief

if TYPE_CHECKING:
    pass

MASKS = ("bits+runs", "bits", "runs")
RESAMPLES = ("fast", "exact")
EMPTY = ("keep", "drop")
# The two layouts that people choose between.
PRESETS: dict[str, dict[str, Any]] = {
    "plain": {"fit": "pad", "pixels": "rgb", "masks": "bits+runs"},
    "compact": {"fit": "native", "pixels": "yuv420", "masks": "runs"},
}

# Name of an option in a manifest, where that differs → its name here; and the other way round.
_OPTION_OF = {"select": "mask_select"}
RECORDED_AS = {name: recorded for recorded, name in _OPTION_OF.items()}

# A tar of 11,186 images makes two shards, or one with the fit "native", whose images are smaller
# and have one more array. docs/format.md counts the files.
SAMPLES_PER_SHARD = 6144
SOURCE_SIZE = 8192  # pixels of a side: larger than the photographs of any data set
NATIVE_SAMPLES_PER_SHARD = 12288


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """The options of a run that do not decide the bytes of a pack."""

    workers: int | None = option(
        None,
        "worker processes; 1 does all the work in the process itself",
        low=1,
        none="all processors",
        metavar="N",
    )
    links: Path | None = option(
        None,
        "pack the tars of this list as well: file name, tab and URL in each line, as the download "
        "page of SA-1B lists them; no query of a URL, which may be its signature, is written or "
        "shown",
        none="",
        metavar="FILE",
    )
    downloads: int | None = option(
        None,
        "tars read at once if any is at a URL",
        low=1,
        none="4, at most one per worker, at least one per 6 workers",
        metavar="N",
    )
    md5sums: Path | None = option(
        None,
        "check each tar against this list, in the format of md5sum; a tar that it lacks is an "
        "error",
        none="",
        metavar="FILE",
    )
    md5: bool = option(
        False,
        "record the md5 of each tar beside its XXH3-128, which costs nothing in comparison, "
        "without a list to compare it with",
    )
    annotations: Path | None = option(
        None,
        "where the records of the images are: the JSON file of coco, or the folder of amg",
        none="found beside the images",
        metavar="PATH",
    )
    max_rejects: int | None = option(
        None,
        "end the run when more than N members are rejected",
        low=0,
        none="no limit",
        metavar="N",
    )
    ignore_space: bool = option(
        False, "pack although the disk has no room for the pack, as far as that can be estimated"
    )

    @property
    def worker_count(self) -> int:
        """Number of worker processes."""
        return self.workers or available_cpus()

    @property
    def records_md5(self) -> bool:
        """True if the md5 of tars is computed and recorded."""
        return self.md5 or self.md5sums is not None


@checks_options
@dataclass(frozen=True, kw_only=True)
class PackOptions(MaskRule):
    """The options that determine which bytes a pack holds.

    Masks outside the bounds are dropped before capping; the bounds themselves pass. Whole numbers
    may be of any integer type, and are stored as int.

    An object has a value for every option. So `pack(..., **dataclasses.asdict(options))` asks for
    all of them, and an existing pack must have the same; options that a call leaves out are those
    of the pack.

    Examples:
        >>> sa1bpack.PackOptions(image_size=512, pixels="yuv420").mask_size
        256
        >>> sa1bpack.PackOptions(image_size=0)
        Traceback (most recent call last):
            ...
        sa1bpack.errors.OptionError: image_size is 0: choose a whole number from 16 to 8192
    """

    preset: str = option(
        "plain",
        "plain: --fit pad --pixels rgb --masks bits+runs, three times the bytes of the tars, read "
        "fastest; compact: --fit native --pixels yuv420 --masks runs, 1.1 times",
        choices=tuple(PRESETS),
    )
    image_size: int = option(
        1024,
        "side S of the stored square in pixels; source: 8192, so that with the fit scale_down, "
        "which is the default then, images are stored in the size that they have",
        low=16,
        high=SOURCE_SIZE,
        words={"source": SOURCE_SIZE},
        accepts=int | Literal["source"],
        metavar="S",
    )
    fit: str | None = option(
        None,
        "pad: longer side scaled to S, the rest zero (SAM); squash: both sides scaled to S (SAM "
        "2); native: as pad, but the padding is not stored; scale_down: as native, but images "
        "with a smaller longer side keep their size",
        choices=FITS,
        none="of the preset",
    )
    pixels: str | None = option(
        None,
        "rgb: 3 bytes per pixel; yuv420: 1.5, with colour at half the size, converted to RGB when "
        "read",
        choices=PIXELS,
        none="of the preset",
    )
    resample: str = option(
        "fast",
        "fast: DCT-scaled decode, then antialiased bicubic; exact: full decode, then bicubic, "
        "bit-equal to Pillow",
        choices=RESAMPLES,
    )
    masks: str | None = option(
        None,
        "stored masks: bits of a grid, the exact full-size runs, or both; from runs, masks of any "
        "size can be drawn when read, and the annotations be exported",
        choices=MASKS,
        none="of the preset",
    )
    mask_size: int = option(
        256,
        "side of the mask grid in cells; without bits, that of masks drawn by default",
        low=8,
        high=MAX_MASK_SIZE,
        multiple=8,
        why="eight cells share a byte",
        metavar="SM",
    )
    mask_sampling: str = option(
        "area",
        "area: a cell is set if at least half of it is covered; center: if its centre is",
        choices=SAMPLINGS,
    )
    empty: str = option("keep", "what to do with images of which no mask is left", choices=EMPTY)
    samples_per_shard: int | None = option(
        None,
        "at most N images per shard",
        low=1,
        high=1 << 24,
        none=f"{SAMPLES_PER_SHARD}, or {NATIVE_SAMPLES_PER_SHARD} where images have no padding",
        metavar="N",
    )

    keep: Sequence[str] | None = option(
        None,
        "keep the values of this key of the records, such as annotations.category_id or "
        "image.prompt, as a feature, which export writes back; KEY, KEY:TYPE, KEY=NAME or "
        "KEY:TYPE=NAME; give it again for each key, or all for every key that the first records "
        "have",
        metavar="KEY",
        accepts=str | Iterable[str] | Mapping[str, str | None] | None,
    )
    records: str | None = option(
        None,
        "what the records of the images are: sa1b, a JSON of SA-1B's form beside each image; coco, "
        "one JSON in COCO's form for all of them; amg, the output of SAM's automatic mask "
        "generators; none, images alone; webdataset, members that --keys names",
        choices=tuple(READERS),
        none="what the first source has",
    )
    keys: str | None = option(
        None,
        "of webdataset: the endings of images and of records, such as image=jpg;png,record=json; "
        "without a record, images alone",
        none=DEFAULT_KEYS,
        metavar="KEYS",
    )
    absent: Sequence[str] | None = option(
        None,
        "numbers of masks for which the records have no values, which the pack then lacks: some of "
        f"{', '.join(ABSENT_NUMBERS)}; give it again for each",
        metavar="NUMBER",
        accepts=str | Iterable[str] | None,
    )

    def __post_init__(self) -> None:
        if self.image_size == "source" and self.fit is None:  # type: ignore[comparison-overlap]
            object.__setattr__(self, "fit", "scale_down")
        super().__post_init__()
        object.__setattr__(self, "records", self.records or SA1B)
        if self.keys is not None:
            roles_of(self.keys)  # raises for another text
            if self.records != "webdataset":
                raise OptionError(
                    f"keys is {brief(self.keys)}, but the records are {self.records}: choose "
                    "records='webdataset', or leave keys out"
                )
        object.__setattr__(self, "absent", checked_absent(self.absent))
        stored = stored_keys(self.records or SA1B, self.absent or (), self.optional_numbers)
        object.__setattr__(self, "keep", checked_keys(self.keep, stored))
        for name, value in PRESETS[self.preset].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        object.__setattr__(self, "preset", "plain")  # which changes nothing any more
        if self.samples_per_shard is None:
            object.__setattr__(self, "samples_per_shard", default_shard_size(self.fit))
        check_numbers(self, self.layout.mask_numbers)  # and what goes with what

    @cached_property
    def layout(self) -> Layout:
        """The arrays that follow from these options."""
        kinds = str(self.masks).split("+")
        return Layout(
            image_size=self.image_size,
            mask_size=self.mask_size,
            fit=cast(Any, self.fit),  # one of FITS, as a preset has set it
            pixels=cast(Any, self.pixels),
            bits="bits" in kinds,
            runs="runs" in kinds,
            numbers=self.optional_numbers,
            absent=tuple(self.absent or ()),
        )

    @property
    def optional_numbers(self) -> tuple[str, ...]:
        """The optional numbers of masks that are stored: each has an option of its name."""
        return chosen_numbers(vars(self))

    @cached_property
    def kept_keys(self) -> tuple[KeptKey, ...]:
        """The keys of the records that are kept."""
        return tuple(map(KeptKey.of_text, self.keep or ()))

    @property
    def pairs_per_shard(self) -> int:
        """`samples_per_shard`, which is a number once the options are checked."""
        return self.samples_per_shard or SAMPLES_PER_SHARD

    def to_json(self) -> dict[str, Any]:
        """The options as the manifest records them."""
        chosen = asdict(self)
        del chosen["preset"]
        chosen["select"] = chosen.pop("mask_select")
        if chosen["records"] == SA1B:
            chosen["records"] = None
        for name in ("keep", "absent", "records", "keys"):
            if chosen[name] is None:  # as in packs of releases that did not know it
                del chosen[name]
            elif not isinstance(chosen[name], str):
                chosen[name] = list(chosen[name])
        for name in set(OPTIONAL_NUMBERS) - set(self.optional_numbers):
            chosen.pop(name, None)  # as in packs of releases that did not know it
        return chosen

    @classmethod
    def from_json(cls, recorded: dict[str, Any]) -> "PackOptions":
        """The options that a manifest records. Raises OptionError if one cannot be used."""
        return cls(**{_OPTION_OF.get(name, name): value for name, value in recorded.items()})


def checked_absent(value: Any) -> tuple[str, ...] | None:
    """The names of an option `absent`, in the order of the table; None for none of them.

    Raises OptionError for another value, or for names that cannot be absent.
    """
    if value is None:
        return None
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Iterable):
        raise OptionError(f"absent is {brief(value)}: choose from {', '.join(ABSENT_NUMBERS)}")
    return absent_numbers(list(value)) or None


def default_shard_size(fit: str | None) -> int:
    if fit in ("native", "scale_down"):
        return NATIVE_SAMPLES_PER_SHARD
    return SAMPLES_PER_SHARD


def options_text(options: PackOptions) -> str:
    """The flags of `sa1bpack pack` that ask for these options, without those of defaults."""
    preset = "plain"
    for name, values in PRESETS.items():
        if all(getattr(options, option) == value for option, value in values.items()):
            preset = name
    defaults = PackOptions(preset=preset)
    words = []
    if preset != "plain":
        words.append(f"--preset {preset}")
    for name in declarations(PackOptions):
        value = getattr(options, name)
        default = getattr(defaults, name)
        if name == "keep" and value is not None:
            words += [f"--keep {quote(text)}" for text in value or (ALL_KEYS,)]
            continue
        if name == "absent":
            words += [f"--absent {number}" for number in value or ()]
            continue
        if name == "samples_per_shard":
            default = default_shard_size(options.fit)
        if value != default:
            flag = f"--{name.replace('_', '-')}"
            words.append(flag if value is True else f"{flag} {value}")
    return " ".join(words)


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(name, value in the first, in the second), in words, of recorded options that differ."""
    differing = []
    for name in sorted(first.keys() | second.keys()):
        if _or_default(name, first) != _or_default(name, second):
            shown_name = brief(_OPTION_OF.get(name, name))[1:-1]
            differing.append((shown_name, _worded(name, first), _worded(name, second)))
    return differing


def _or_default(name: str, options: dict[str, Any]) -> Any:
    """The recorded value; where none is recorded, that of a pack made without the option."""
    declared = PackOptions.__dataclass_fields__.get(_OPTION_OF.get(name, name))
    return options.get(name, declared.default if declared else None)


def _worded(name: str, options: dict[str, Any]) -> str:
    if options.get(name) is not None:
        return brief(options[name])
    name = _OPTION_OF.get(name, name)
    if name not in declarations(PackOptions):
        return "none"
    default = PackOptions.__dataclass_fields__[name].default  # a manifest may lack a newer option
    return declarations(PackOptions)[name].none if default is None else brief(default)


def recorded_options(recorded: dict[str, Any], root: Path | str) -> PackOptions:
    """The options that a manifest records. Raises FormatError if they cannot be used."""
    try:
        return PackOptions.from_json(msgspec.convert(recorded, dict[str, Any]))
    except (OptionError, msgspec.ValidationError) as error:
        raise FormatError(
            f"{root}: unusable options: {error}. Repair it with the sa1bpack that packed it"
        ) from None


def recorded_text(recorded: dict[str, Any], root: Path) -> str | None:
    """`options_text` of the options that a manifest records; None if it has not exactly ours."""
    try:
        options = recorded_options(recorded, root)
    except FormatError:
        return None
    return options_text(options) if options.to_json() == recorded else None
