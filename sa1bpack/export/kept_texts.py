"""What a pack keeps of other keys of the records, as JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sa1bpack.export.fetched_shard import FetchedShard
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.shard_reader import Shard
from sa1bpack.format.side.kept import CATEGORY_KEY, PARENTS, KeptKey, kept_keys
from sa1bpack.format.side.rows import FeatureRows, marked_missing
from sa1bpack.format.side.shard import FeatureShard
from sa1bpack.format.side.shards import ShardIdentity

# The category of masks without one.
NO_CATEGORY = 0
# Keys of an object, each with the JSON text of its value.
Pairs = list[tuple[str, str]]


class KeptTexts:
    """The values that a pack keeps of the records of one of its shards.

    Attributes:
        keys: the kept keys, in the order of the options of the pack.
    """

    def __init__(self, shard: Shard):
        """Open the features in PACK/side. Raises FormatError if one is damaged or missing."""
        self._shard = shard
        options = shard.attributes.get("options")
        self.keys: tuple[KeptKey, ...] = ()
        if isinstance(options, dict):  # as the packer writes it
            self.keys = kept_keys(options, shard.folder)
        self._features: list[FeatureShard] = []
        if not self.keys:
            return
        if isinstance(shard, FetchedShard):
            self._features = [shard.kept_rows(key) for key in self.keys]
            return
        root = shard.folder.parent.parent
        digest = file_digest(shard.folder / CHECKSUMS_NAME)
        identity = ShardIdentity(shard.entry.name, digest, shard.entry.lengths)
        for key in self.keys:
            self._features.append(FeatureShard.open(key.folder(root), key.spec, identity))

    def of_image(self, row: int) -> dict[str, Pairs]:
        """The keys of the record itself, "", and of its object "image"."""
        pairs: dict[str, Pairs] = {"": [], PARENTS[0]: []}
        for key, feature in zip(self.keys, self._features, strict=True):
            if key.axis == "sample":
                (text,) = _texts(key, feature.read(row, row, row + 1), feature)
                if text is not None:
                    pairs[key.parent].append((key.last, text))
        return pairs

    def of_masks(self, row: int) -> list[Pairs]:
        """The keys of each mask of an image."""
        first, stop = self._shard["mask_offset"][row : row + 2].tolist()
        pairs: list[Pairs] = [[] for _ in range(stop - first)]
        for key, feature in zip(self.keys, self._features, strict=True):
            if key.axis == "mask":
                texts = _texts(key, feature.read(row, first, stop), feature)
                for mask, text in enumerate(texts):
                    if text is not None:
                        pairs[mask].append((key.last, text))
        return pairs

    @property
    def has_categories(self) -> bool:
        """True if the pack keeps the categories of masks, as int64."""
        return any(key.key == CATEGORY_KEY and key.type == "int64" for key in self.keys)

    def categories(self) -> np.ndarray | None:
        """int64 (m,): the category of each mask; None if the pack keeps none, or not as int64.

        Raises FormatError if a row is damaged.
        """
        for key, feature in zip(self.keys, self._features, strict=True):
            if key.key == CATEGORY_KEY and self.has_categories:
                edges = self._shard["mask_offset"].tolist()
                ids = [np.empty(0, np.int64)]
                for row, (first, stop) in enumerate(pairwise(edges)):
                    rows = feature.read(row, first, stop)
                    assert rows.present is not None  # any row may be missing
                    ids.append(np.where(rows.present, rows.values, NO_CATEGORY))
                return np.concatenate(ids)
        return None


def _texts(key: KeptKey, rows: FeatureRows, feature: FeatureShard) -> list[str | None]:
    """The JSON text of each row; None for one that is missing."""
    texts: Sequence[str]
    if rows.lengths is None:
        as_json: Callable[[Any], Any] = bool if key.type == "bool" else np.ndarray.item
        texts = [json.dumps(as_json(value)) for value in rows.values[:, None]]
    elif key.type == "json":
        texts = rows.texts(feature.path)
    elif key.spec.text:
        texts = [json.dumps(text) for text in rows.texts(feature.path)]
    else:
        texts = [json.dumps(row.tolist()) for row in rows.per_row()]
    assert rows.present is not None  # any row may be missing
    return marked_missing(texts, rows.present)


def with_pairs(text: str, pairs: Pairs) -> str:
    """The JSON text of an object that has keys, with others after them."""
    added = ", ".join(f"{json.dumps(key)}: {value}" for key, value in pairs)
    if added and len(text) > len("{}"):
        added = f", {added}"
    return f"{text[:-1]}{added}}}"


def with_others(value: Mapping[str, Any], pairs: Pairs, *, keep: str) -> str:
    """The JSON text of an object, with other keys after its own.

    Args:
        value: the object.
        pairs: the other keys.
        keep: of a key that both have, the value that is kept: "own" or "others".
    """
    if keep == "own":
        pairs = [(key, text) for key, text in pairs if key not in value]
    else:
        keys = {key for key, _ in pairs}
        value = {key: item for key, item in value.items() if key not in keys}
    return with_pairs(json.dumps(value), pairs)


def record_text(
    image: dict[str, Any],
    annotations: list[dict[str, Any]],
    masks: Sequence[int],
    kept_texts: KeptTexts,
    row: int,
) -> str:
    """The JSON text of a record, as Python's json writes it.

    A kept key that SA-1B's records have as well, as those of other data sets may, is left out.

    Args:
        image: the object `image` of the record.
        annotations: annotations of all masks of the image.
        masks: numbers of the masks that the record has.
        kept_texts: what the pack keeps of other keys.
        row: row of the image in its shard.
    """
    if not kept_texts.keys:
        return json.dumps({"image": image, "annotations": [annotations[mask] for mask in masks]})
    of_image = kept_texts.of_image(row)
    of_masks = kept_texts.of_masks(row)
    texts = [with_others(annotations[mask], of_masks[mask], keep="own") for mask in masks]
    image_text = with_others(image, of_image[PARENTS[0]], keep="own")
    record = f'{{"image": {image_text}, "annotations": [{", ".join(texts)}]}}'
    return with_pairs(record, of_image[""])
