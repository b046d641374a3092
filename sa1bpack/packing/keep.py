"""The option `keep`: the keys of records that a call asks for, and the names of their features."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from sa1bpack.errors import OptionError
from sa1bpack.format.side.kept import (
    KEPT_TYPES,
    KeptKey,
    feature_name,
    parts_of,
    split_key,
    without_type,
)
from sa1bpack.mask_numbers import MASK_NUMBERS, annotation_keys, stored_numbers
from sa1bpack.source.records.masks_json import IMAGE_NAME
from sa1bpack.source.records.table import READERS, SA1B
from sa1bpack.wording import brief

ALL_KEYS = "all"

# Keys of samples and batches, which no feature can have: those of numbers of masks, and others. A
# test compares them with those that `dataset.fields` lists.
TAKEN_NAMES = frozenset(number.key for number in MASK_NUMBERS).union(
    [
        "batch_idx",
        "boxes",
        "boxes_xyxy",
        "crop_mask",
        "dropped",
        "epoch",
        "erase_box",
        "file_name",
        "global_step",
        "image",
        "image_id",
        "image_ids",
        "images",
        "indices",
        "input_sizes",
        "input_to_source",
        "mask_counts",
        "mask_offsets",
        "mask_positions",
        "masks",
        "mix_box",
        "mix_lambda",
        "mix_partner",
        "pixel_mean",
        "pixel_std",
        "point_inside",
        "prompt_boxes",
        "prompt_kinds",
        "prompt_labels",
        "prompt_masks",
        "prompt_points",
        "repeated",
        "repetitions",
        "row",
        "run_ends",
        "run_offset",
        "runs",
        "sample_class",
        "size",
        "sizes",
        "source_to_input",
        "source_window",
        "valid",
    ]
)
# Columns that every dataset has, as which no feature is called.
COLUMN_NAMES = frozenset(
    [
        "annotation_count",
        "area",
        "bbox",
        "checksum",
        "height",
        "mask_count",
        "mask_offset",
        "number_types",
        "width",
    ]
)
# What a feature adds to its name for its other keys in samples and batches.
_SUFFIXES = ("", "_present", "_offsets", "_lengths")
# Keys that a pack stores, by their object.
Stored = Mapping[str, tuple[str, ...]]
STORED_KEYS: Stored = {
    "": ("image", "annotations"),
    "image": ("image_id", "width", "height", "file_name"),
    "annotations": annotation_keys(stored_numbers()),
}
# Those that no reader of records keeps.
_STORED_ALWAYS: Stored = {
    "": ("image", "annotations", "positions"),
    "image": ("id", "image_id", "width", "height"),
    "annotations": ("segmentation", "image_id"),
}


def stored_keys(records: str, absent: Collection[str], optional: Collection[str]) -> Stored:
    """The keys that a pack stores, by their object.

    Args:
        records: the reader of its records.
        absent: the numbers of masks that it lacks.
        optional: the optional numbers that it has.
    """
    stored = stored_numbers(optional, absent)
    if records == SA1B:
        return {**STORED_KEYS, "annotations": annotation_keys(stored)}
    of_masks = [*_STORED_ALWAYS["annotations"]]
    computed: tuple[str, ...] = ()
    if READERS[records].computed_area:
        computed = ("area", "bbox")
    for number in stored:
        if number.array not in computed:
            of_masks.append(number.json)
    return {**_STORED_ALWAYS, "annotations": tuple(of_masks)}


# The path of an image, which readers make where images have no ids of their own.
IMAGE_NAME_KEY = KeptKey(".".join(IMAGE_NAME), "text", IMAGE_NAME[1])

# Names that tell keys of several objects apart, if they would be equal: "image_prompt".
_PREFIXES = {"": "record_", "image": "image_", "annotations": "annotation_"}


@dataclass(frozen=True)
class KeyRequest:
    """A key that a call asks for; type and name are None where it leaves them out."""

    key: str
    type: str | None = None
    name: str | None = None

    def is_met_by(self, kept_key: KeptKey) -> bool:
        """True if a pack keeps the key as it is asked for."""
        return (
            self.key == kept_key.key
            and self.type in (None, kept_key.type)
            and self.name in (None, kept_key.name)
        )

    def __str__(self) -> str:
        text = self.key
        if self.type is not None:
            text += f":{self.type}"
        if self.name is not None:
            text += f"={self.name}"
        return text


@dataclass(frozen=True)
class KeepRequest:
    """The keys that a call asks for.

    Attributes:
        keys: those that it names.
        all: all others are asked for as well.
    """

    keys: tuple[KeyRequest, ...] = ()
    all: bool = False

    @classmethod
    def of(cls, value: Any) -> "KeepRequest":
        """That of the value of the option: texts, one or several, or a dict of key and text.

        Raises OptionError for other values, or a key that is given twice.
        """
        entries: Sequence[KeyRequest]
        if isinstance(value, KeepRequest):
            return value
        if isinstance(value, str):
            value = [value]
        if isinstance(value, Mapping):
            entries = [_request_of(key, chosen) for key, chosen in value.items()]
        elif isinstance(value, Iterable):
            texts = list(value)
            for text in texts:
                if not isinstance(text, str):
                    raise OptionError(
                        f"keep has {brief(text)}: choose keys, such as 'image.prompt'"
                    )
            entries = [KeyRequest(*parts_of(text)) for text in texts]
        else:
            raise OptionError(
                f"keep is {brief(value)}: choose keys, such as ['annotations.category_id'], a dict "
                "of key and type, or 'all'"
            )
        every = KeyRequest(ALL_KEYS)
        named = tuple(entry for entry in entries if entry != every)
        for entry in named:
            _check_can_be_kept(entry.key)
        _refuse_repeated([entry.key for entry in named], "keep has {} twice: leave one out")
        return cls(named, every in entries)

    def is_met_by(self, kept_keys: Sequence[KeptKey] | None) -> bool:
        """True if a pack that keeps these keys, in any order, is one that is asked for.

        None stands for a pack that was made without the option.
        """
        if kept_keys is None:
            return not (self.keys or self.all)
        met = [request for request in self.keys if any(map(request.is_met_by, kept_keys))]
        return len(met) == len(self.keys) and (self.all or len(kept_keys) == len(self.keys))

    @property
    def is_settled(self) -> bool:
        """True if types are known without a look at records."""
        return not self.all and all(request.type is not None for request in self.keys)

    @property
    def texts(self) -> list[str]:
        """The keys as a list of texts."""
        return [ALL_KEYS] * self.all + [str(request) for request in self.keys]


def _request_of(key: Any, chosen: Any) -> KeyRequest:
    """The request of an item of a dict: key → TYPE, =NAME, TYPE=NAME or None."""
    match = None
    if isinstance(key, str) and key and isinstance(chosen, str | None):
        match = re.fullmatch(rf"({'|'.join(KEPT_TYPES)})?(?:=(\w+))?", chosen or "")
    if match is None:
        raise OptionError(
            f"keep has {brief(key)}: {brief(chosen)}; choose as its value 'TYPE', '=NAME', "
            f"'TYPE=NAME' or None, TYPE one of {', '.join(KEPT_TYPES)}"
        )
    return KeyRequest(key, match[1], match[2])


def _check_can_be_kept(key: str) -> None:
    """Raise OptionError for a key that cannot be kept."""
    if is_of_segmentation(key):
        raise OptionError(
            f"keep has {brief(key)}: keys of `segmentation` cannot be kept; move it into the "
            "annotation"
        )
    if not is_plain(key):
        raise OptionError(f"keep has {brief(key)}: keys of 1 to 200 printable characters are")


def check_not_stored(keys: Iterable[str], stored: Stored) -> None:
    """Raise OptionError for a key whose values are stored anyway, by their objects."""
    for key in keys:
        parent, last = split_key(key)
        if last in stored[parent]:
            raise OptionError(f"keep has {brief(key)}, which every pack stores: leave it out")


def is_plain(key: str) -> bool:
    """True for a key that messages, and options, can have as it is."""
    return key.isprintable() and 0 < len(key) <= 200


def is_of_segmentation(key: str) -> bool:
    """True for a key of the object `segmentation` of an annotation, or one that looks like it."""
    return key.startswith("annotations.segmentation.")


def _refuse_repeated(names: Sequence[str], message: str) -> None:
    """Raise OptionError, the message with the first name that occurs twice, if one does."""
    for position, name in enumerate(names):
        if name in names[:position]:
            raise OptionError(message.format(brief(name)))


def checked_keys(value: Any, stored: Stored = STORED_KEYS) -> tuple[str, ...] | None:
    """The texts of the keys of a pack, from those of an option. Raises OptionError.

    `stored` are the keys that the pack stores anyway, by their objects.

    Names that samples or batches have by now are not refused: a pack may be older.
    """
    if value is None:
        return None
    request = KeepRequest.of(value)
    if request.all:
        raise OptionError("keep is 'all': `sa1bpack.pack` finds out which keys; name them here")
    keys = []
    for entry in request.keys:
        if entry.type is None:
            raise without_type(entry.key)
        keys.append(KeptKey(entry.key, entry.type, entry.name or feature_name(entry.key)))
    check_not_stored([key.key for key in keys], stored)
    check_names(keys, frozenset())
    return tuple(key.text for key in keys)


def check_names(keys: Sequence[KeptKey], taken: Set[str] = TAKEN_NAMES | COLUMN_NAMES) -> None:
    """Raise OptionError if features of keys would have a name that another has or that is taken."""
    owners: dict[str, str] = {}
    for key in keys:
        remedy = f"choose another name: {brief(f'{key.key}={long_name(key.key)}')}"
        for name in names_of(key.name):
            if name in taken:
                raise OptionError(
                    f"keep has {key.key}, whose feature would have the key {brief(name)}, which "
                    f"samples, batches or columns have: {remedy}"
                )
            if name in owners:
                raise OptionError(
                    f"keep has {owners[name]} and {key.key}, whose features would both have the "
                    f"key {brief(name)}: {remedy}"
                )
            owners[name] = key.key


def names_of(name: str) -> list[str]:
    """The keys of a feature in samples and batches."""
    return [name + suffix for suffix in _SUFFIXES]


def long_name(key: str) -> str:
    """The name of a feature that says in which object its key is."""
    parent, _ = split_key(key)
    return (_PREFIXES[parent] + feature_name(key))[:64]
