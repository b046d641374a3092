"""The fields that a loader is asked for, and what of a pack must be read for them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sa1bpack.dataset.fields import NUMBER_FIELDS, number_fields
from sa1bpack.errors import OptionError
from sa1bpack.format.layout import Layout
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.paths import listed
from sa1bpack.wording import brief

# Keys of every batch, whatever was asked for: those that the index of a pack and the order know.
ALWAYS_KEYS = ("image_ids", "indices", "epoch", "batch_idx", "global_step")

_NUMBER_KEYS = frozenset(field.batch for field in NUMBER_FIELDS if field.batch)


def field_names(value: Any) -> tuple[str, ...] | None:
    """The option `fields` as names, each once; None for everything.

    Raises OptionError for anything but names, and for none at all.
    """
    if value is None:
        return None
    names = listed(value)
    for name in names:
        if not isinstance(name, str):
            raise OptionError(f"fields has {brief(name)}: give names of keys of a batch")
    if not names:
        raise OptionError(
            "fields is empty: name keys of a batch, such as a feature; image_ids alone for batches "
            "of nothing else; or leave it out for everything"
        )
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class ChosenFields:
    """What a batch has of its samples, besides ALWAYS_KEYS.

    Attributes:
        images: the images.
        masks: the masks, or their runs.
        sizes: the sizes of the images.
        numbers: keys of the numbers of each mask.
        features: names of the features.
        of_masks: something has a row per mask: masks are chosen and counted.
        of_shards: something is read from the shards themselves: not from features alone.
    """

    images: bool
    masks: bool
    sizes: bool
    numbers: frozenset[str]
    features: frozenset[str]
    of_masks: bool
    of_shards: bool

    @classmethod
    def of(
        cls,
        names: tuple[str, ...] | None,
        layout: Layout,
        features: Sequence[SideSpec],
        *,
        masks_key: str,
        has_rule: bool = False,
        caps_masks: bool = False,
    ) -> "ChosenFields":
        """The fields with these names, of samples of a dataset.

        Args:
            names: keys of a batch; None: all.
            layout: layout of the pack.
            features: features of the dataset.
            masks_key: "masks" or "runs": which of them batches have.
            has_rule: the dataset has a rule for masks.
            caps_masks: batches have at most so many masks of a sample.

        Raises:
            OptionError: a name that is no key of the batches, or a limit of masks for batches that
                have nothing with a row per mask.
        """
        numbers = [field.batch for field in number_fields(layout) if field.batch]
        feature_names = [feature.name for feature in features]
        known = ["images", masks_key, "mask_counts", *numbers, "sizes", *feature_names]
        if names is None:
            names = tuple(known)
        _check_known(names, known)
        stored = {"images", masks_key, *numbers}
        of_masks = not {masks_key, "mask_counts", *numbers}.isdisjoint(names)
        for feature in features:
            if feature.axis == "mask" and feature.name in names:
                of_masks = True
        if caps_masks and not of_masks:
            raise OptionError(
                f"max_masks limits the masks of a sample, but fields={brief(list(names))} has "
                "nothing with a row per mask: leave max_masks out, or add 'mask_counts' to fields"
            )
        asks_for_sizes = not {"sizes", *stored}.isdisjoint(names)
        chooses_masks = of_masks and (has_rule or caps_masks or "mask_counts" in names)
        return cls(
            images="images" in names,
            masks=masks_key in names,
            sizes=asks_for_sizes,
            numbers=frozenset(numbers).intersection(names),
            features=frozenset(feature_names).intersection(names),
            of_masks=of_masks,
            of_shards=asks_for_sizes or chooses_masks,
        )

    def has(self, key: str) -> bool:
        """True if batches have this key, if it is one that samples of a pack lead to."""
        if key in ("mask_counts", "mask_offsets"):
            return self.of_masks
        if key in ("masks", "runs"):
            return self.masks
        if key == "images":
            return self.images
        if key == "sizes":
            return self.sizes
        return key in self.numbers or key not in _NUMBER_KEYS


def _check_known(names: Iterable[str], known: list[str]) -> None:
    """Raise OptionError for a name that batches do not have as a key."""
    for name in names:
        if name in known or name in ALWAYS_KEYS:
            continue
        opened = (
            "a feature must be opened with the pack, sa1bpack.open(pack, features=[...]), and "
            "brings its lengths or offsets and its presence along"
        )
        if name in _NUMBER_KEYS:
            opened = "the pack has no such number of its masks"
        if name in ("masks", "runs"):
            opened = "the mask_format of sa1bpack.open decides which of masks and runs there are"
        raise OptionError(
            f"fields has {brief(name)}, which batches of this dataset do not have: they have "
            f"{', '.join(known)}, and always {', '.join(ALWAYS_KEYS)}; {opened}"
        )
