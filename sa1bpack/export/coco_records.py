"""What a COCO file has of a pack: its head, and the texts of its images and annotations.

A pack that was made from COCO's form has COCO's own values as kept keys, see
docs/from-your-dataset.md, and the categories and licences of the file in its manifest. Its
annotations get back the keys that they had. What the record of a mask lacks is that of the mask
itself; one without a pixel has a run-length text without any, the area 0, and no box.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.export.kept_texts import NO_CATEGORY, KeptTexts, Pairs, with_others
from sa1bpack.format.shard_reader import Shard
from sa1bpack.format.side.kept import PARENTS
from sa1bpack.wording import brief

INFO = {"description": "SA-1B annotations, exported by sa1bpack"}
# SA-1B's masks have no classes.
OBJECT = "object"
CATEGORIES = [{"id": 1, "name": OBJECT, "supercategory": OBJECT}]
_FORM = "coco"  # the option `records` of packs whose records are of this form
# Keys of an annotation that are written first; those of the mask's other numbers come after COCO's.
_FIRST = ("id", "area", "bbox", "segmentation")


def head_of(
    sources: Sequence[Mapping[str, Any]], names: Collection[str], categories: Collection[int]
) -> dict[str, Any]:
    """The keys of a file before its images: info, licences and categories.

    Args:
        sources: the records of sources in a manifest.
        names: names of the sources that images are exported from.
        categories: ids of categories that masks are in.

    Raises:
        OptionError: two sources have categories, or licences, that differ and have one id.
    """
    files = []
    for source in sources:
        described = source.get("records", {})
        if source.get("name") in names and described.get("reader") == _FORM:
            files.append(described)
    listed = _joined(files, "categories")
    known = {category.get("id") for category in listed if isinstance(category, dict)}
    for category in sorted(set(categories) - known):
        name = OBJECT if category == NO_CATEGORY else str(category)
        listed.append({"id": category, "name": name, "supercategory": OBJECT})
    infos = [file.get("info", INFO) for file in files] or [INFO]
    return {
        "info": infos[0] if infos.count(infos[0]) == len(infos) else INFO,
        "licenses": _joined(files, "licenses"),
        "categories": listed if files else listed or CATEGORIES,
    }


def _joined(files: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    """The objects that annotation files list under a key, each once."""
    listed: list[Any] = []
    by_id: dict[Any, tuple[Any, str]] = {}
    for file in files:
        for value in file.get(key, []):
            identity = brief(value.get("id") if isinstance(value, dict) else value)
            first, name = by_id.setdefault(identity, (value, file.get("file", "")))
            if first != value:
                raise OptionError(
                    f"{key} of {name} and {file.get('file', '')} differ, and have the id "
                    f"{identity}: {brief(first)}, {brief(value)}; export one --source at a time"
                )
            if value not in listed:
                listed.append(value)
    return listed


class CocoTexts:
    """The JSON texts of the images and annotations of a shard."""

    def __init__(self, shard: Shard):
        """Open what the pack keeps of records. Raises FormatError if it is damaged or missing."""
        options = shard.attributes.get("options")
        self._as_recorded = isinstance(options, dict) and options.get("records") == _FORM
        self._kept = KeptTexts(shard)
        self._shard = shard

    def categories(self, kept: np.ndarray) -> np.ndarray:
        """int64 (c,), ascending: the categories of some masks of the shard, if the pack keeps them.

        Args:
            kept: bool (m,), which of the masks.
        """
        of_masks = self._kept.categories()
        if of_masks is None:
            return np.empty(0, np.int64)
        of_masks = of_masks[kept]
        if self._as_recorded:  # which leave it out where there is none
            of_masks = of_masks[of_masks != NO_CATEGORY]
        return np.unique(of_masks)

    def image(self, row: int, image: dict[str, Any]) -> str:
        """The text of an image, made of the object `image` of SA-1B's record."""
        coco = {"id": image["image_id"]} | image
        del coco["image_id"]
        return with_others(coco, self._kept.of_image(row)[PARENTS[0]], keep="others")

    def annotations(
        self,
        row: int,
        masks: Sequence[int],
        annotations: Sequence[Mapping[str, Any]],
        boxes: np.ndarray,
    ) -> list[tuple[dict[str, Any], Pairs]]:
        """What annotations have but for their ids: an object, and kept keys, which come after it.

        Args:
            row: row of the image in the shard.
            masks: numbers of the masks.
            annotations: of all masks of the image, as in SA-1B's record.
            boxes: int64 (m, 4): x, y, w, h of these masks, in COCO's convention.
        """
        of_masks = self._kept.of_masks(row)
        image_id = int(self._shard["image_id"][row])
        made = []
        for mask in masks:
            annotation = annotations[mask]
            box = boxes[mask].tolist()
            coco: dict[str, Any] = {"image_id": image_id}
            if not self._as_recorded:
                coco["category_id"] = CATEGORIES[0]["id"]
                if self._kept.has_categories:
                    coco["category_id"] = NO_CATEGORY
            coco["segmentation"] = annotation["segmentation"]
            coco["area"] = annotation["area"]
            if not self._as_recorded or box[2]:
                coco["bbox"] = box
            if not self._as_recorded:
                coco["iscrowd"] = 0
            for key, value in annotation.items():
                if key not in _FIRST:
                    coco[key] = value
            made.append((coco, of_masks[mask]))
        return made
