"""Keys of JSON records that a pack keeps as features in PACK/side, as its options record them.

docs/format.md, "Kept keys", is the specification.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format import files, removal, replacing
from sa1bpack.format.side.manifest import SideManifest, create_side, top_of_side
from sa1bpack.format.side.shards import SIDES_NAME
from sa1bpack.format.side.spec import TEXT, SideSpec, side_name
from sa1bpack.paths import is_folder
from sa1bpack.wording import brief

# Types of the values of a kept key, as in its text.
KEPT_TYPES = ("text", "bool", "int64", "float64", "int64-list", "float64-list", "json")
# The objects of a record whose keys can be kept, as the beginnings of keys; a record itself has "".
PARENTS = ("image", "annotations")
CATEGORY_KEY = "annotations.category_id"  # of COCO: the class of a mask
# In the options of a pack: the texts of its kept keys.
KEEP_OPTION = "keep"
FUNCTION = "sa1bpack:pack"  # in the provenance of the features

_TEXT = re.compile(rf"(.+?)(?::({'|'.join(KEPT_TYPES)}))?(?:=([A-Za-z]\w*))?", re.ASCII)


def split_key(key: str) -> tuple[str, str]:
    """The object of a record that has a key, one of PARENTS or "", and the key in it."""
    parent, dot, rest = key.partition(".")
    if dot and rest and parent in PARENTS:
        return parent, rest
    return "", key


def feature_name(key: str) -> str:
    """The name of the feature of a key, unless another one is chosen: the key in its object.

    Characters that a name cannot have become "_".
    """
    _, rest = split_key(key)
    return re.sub(r"[^A-Za-z0-9_]", "_", rest)


def parts_of(text: str) -> tuple[str, str | None, str | None]:
    """Key, type and name of the feature, of a text "KEY[:TYPE][=NAME]"; None for what it lacks.

    Raises OptionError if it has no key.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise OptionError(f"keep has {brief(text)}: choose KEY, KEY:TYPE or KEY:TYPE=NAME")
    return match[1], match[2], match[3]


def without_type(text: str) -> OptionError:
    """The error for a key of a pack that has no type."""
    return OptionError(
        f"keep has {brief(text)} without a type: write {brief(text + ':TYPE')}, TYPE one of "
        f"{', '.join(KEPT_TYPES)} (only `sa1bpack.pack` finds out which it is)"
    )


@dataclass(frozen=True)
class KeptKey:
    """A key of JSON records whose values are kept.

    Attributes:
        key: the key, after its object and a dot: "annotations.category_id", "image.prompt"; of the
            record itself alone.
        type: type of its values, one of KEPT_TYPES.
        name: name of the feature that has them.

    Raises:
        OptionError: another type, or what no feature can be called.
    """

    key: str
    type: str
    name: str

    def __post_init__(self) -> None:
        if self.type not in KEPT_TYPES:
            raise OptionError(
                f"keep has {self.key} of the type {brief(self.type)}: choose one of "
                f"{', '.join(KEPT_TYPES)}"
            )
        try:
            side_name(self.name)
        except OptionError:
            raise OptionError(
                f"keep has {self.key}, whose feature would be called {brief(self.name)}: choose a "
                f"name, a letter and then letters, digits and _: {brief(self.key + '=NAME')}"
            ) from None

    @classmethod
    def of_text(cls, text: str) -> "KeptKey":
        """The key of a text that has its type. Raises OptionError if that cannot be used."""
        key, kind, name = parts_of(text)
        if kind is None:
            raise without_type(text)
        return cls(key, kind, name or feature_name(key))

    @property
    def text(self) -> str:
        """The key as it is recorded: "image.prompt:text", or "image.prompt:text=other_name"."""
        text = f"{self.key}:{self.type}"
        if self.name != feature_name(self.key):
            text += f"={self.name}"
        return text

    @cached_property
    def parent(self) -> str:
        """The object that has it: one of PARENTS, or "" for the record itself."""
        return split_key(self.key)[0]

    @cached_property
    def last(self) -> str:
        """The key in that object."""
        return split_key(self.key)[1]

    @cached_property
    def axis(self) -> Literal["sample", "mask"]:
        """What a row belongs to."""
        return "mask" if self.parent == "annotations" else "sample"

    @cached_property
    def spec(self) -> SideSpec:
        """The rows of the feature."""
        item, _, is_list = self.type.partition("-")
        dtype = {"text": TEXT, "json": TEXT, "bool": "uint8"}.get(item, item)
        ragged = bool(is_list) or dtype == TEXT
        return SideSpec(self.name, self.axis, dtype, (), ragged=ragged, missing=True)

    @property
    def manifest(self) -> SideManifest:
        """The manifest of the feature."""
        options = {"key": self.key, "type": self.type}  # and no versions: shards record them
        return SideManifest(self.spec, {"function": FUNCTION, "options": options})

    def folder(self, root: Path) -> Path:
        """The folder of the feature in the pack at `root`."""
        return root / SIDES_NAME / self.name


def kept_keys(options: Mapping[str, Any], where: Path | str) -> tuple[KeptKey, ...]:
    """The keys that a pack keeps, of the options in its manifest or in the attributes of a shard.

    Raises FormatError, which names `where`, if they cannot be used.
    """
    recorded = options.get(KEEP_OPTION) or []
    try:
        if not isinstance(recorded, list) or not all(isinstance(text, str) for text in recorded):
            raise OptionError(f"keep is {brief(recorded)}, not a list of texts")
        return tuple(map(KeptKey.of_text, recorded))
    except OptionError as error:
        raise FormatError(f"{where}: {error}; repair it with the sa1bpack that wrote it") from None


def make_kept_features(root: Path, keys: Iterable[KeptKey]) -> None:
    """Make the folders of the features of kept keys, where they are not there yet.

    What killed processes left under working names there is removed.

    Raises:
        OutputRefused: another feature has the name of one.
        OSError: the disk fails.
    """
    for key in keys:
        folder = key.folder(root)
        create_side(folder, key.manifest)
        removal.remove_all_leftovers(folder)


def restore_kept_features(root: Path, keys: Iterable[KeptKey]) -> None:
    """Write again what is damaged of the features of kept keys, above their feature shards.

    Raises FormatError if a folder with other files is in the place of one.
    """
    for key in keys:
        folder = key.folder(root)
        files.make_folder(folder)
        for name, data in top_of_side(key.manifest).items():
            removal.make_way_for_file(folder / name)
            replacing.replace_file(folder / name, data)


def remove_kept_rows(root: Path, keys: Iterable[KeptKey], shard: str) -> None:
    """Remove the rows of kept keys for a shard that is removed. Raises OSError."""
    for key in keys:
        for folder in feature_shards_of(root, key, shard):
            removal.remove_published(folder)


def feature_shards_of(root: Path, key: KeptKey, shard: str) -> list[Path]:
    """The feature shards of a kept key for a shard of this name, whatever its bytes."""
    folder = key.folder(root)
    if not is_folder(folder):
        return []
    pattern = re.compile(re.escape(shard) + r"-[0-9a-f]{8}")
    return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))
