"""The manifest of a feature, written once, before all rows."""

import os
from collections.abc import Container
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from sa1bpack.errors import FormatError, NotAPack, OutputRefused
from sa1bpack.format import (
    arrays,
    file_checksums,
    file_locks,
    files,
    removal,
    replacing,
    working_names,
)
from sa1bpack.format.manifest import MANIFEST_NAME, SIDE_FORMAT_NAME
from sa1bpack.format.side.spec import FIXED_VERSION, SIDE_FORMAT_VERSION, SideSpec
from sa1bpack.paths import exists, is_folder

# The keys of the provenance in which all feature shards must agree: they decide the rows.
MADE_WITH = ("function", "seed", "options", "pipeline", "mask_choice", "samples")
# The key of the provenance that has the digest of the function's file, if there is one. Rows of two
# files may be equal, so it forbids nothing.
CODE = "code"
TOP_FILES = {MANIFEST_NAME, arrays.METADATA_NAME, file_checksums.CHECKSUMS_NAME}
AGAIN = "repeat the `sa1bpack derive` or the `sa1bpack.attach` that made the array"
REMAKE = f"remove that folder, and {AGAIN}"


@dataclass(frozen=True)
class SideManifest:
    """The manifest of a feature: its SideSpec, and how it was made.

    Attributes:
        provenance: JSON data for people: function, options, versions. No reader depends on it.
    """

    spec: SideSpec
    provenance: dict[str, Any]


def side_root_metadata(spec: SideSpec) -> dict[str, Any]:
    """The zarr.json at the top of a feature."""
    return arrays.group_metadata({"format": list(spec.version)})


def is_side(folder: Path) -> bool:
    """True if a folder has the manifest of a feature. Raises OSError if it cannot be read."""
    try:
        manifest = arrays.read_json(Path(folder) / MANIFEST_NAME)
    except FormatError:
        return False
    return isinstance(manifest, dict) and manifest.get("format") == SIDE_FORMAT_NAME


def read_side_manifest(folder: Path) -> SideManifest:
    """Read and check the manifest of a feature.

    Raises NotAPack if the folder is not a feature, FormatError if the manifest breaks a rule of
    docs/format.md, VersionError for another major version, OSError if it cannot be read.
    """
    path = Path(folder) / MANIFEST_NAME
    if not exists(path):
        raise NotAPack(
            f"{folder}: not a feature: it has no {MANIFEST_NAME}; make one with "
            "`sa1bpack derive` or `sa1bpack.attach`"
        )
    keys = arrays.read_json(path, REMAKE)
    if not isinstance(keys, dict) or keys.get("format") != SIDE_FORMAT_NAME:
        raise NotAPack(f'{path}: it lacks "format": "{SIDE_FORMAT_NAME}"; this is not a feature')
    major = arrays.check_version(
        path, keys.get("version"), SIDE_FORMAT_VERSION, REMAKE, oldest=FIXED_VERSION[0]
    )
    try:
        provenance = msgspec.convert(keys.get("provenance", {}), dict[str, Any])
        spec = SideSpec.from_json(keys)
    except msgspec.ValidationError as error:  # also of an OptionError of the spec
        later = "install the release of sa1bpack that wrote it, if it is a later one; otherwise "
        raise FormatError(f"{path}: {error}; {later}{REMAKE}") from None
    if major != spec.version[0]:
        raise FormatError(
            f"{path}: version is {major}, but rows of {spec.to_text()} have version "
            f"{spec.version[0]}; {REMAKE}"
        )
    return SideManifest(spec, provenance)


def top_of_side(manifest: SideManifest) -> dict[str, bytes]:
    """The files of a feature above its feature shards: name → bytes."""
    kind = {"format": SIDE_FORMAT_NAME, "version": manifest.spec.version}
    described = {**kind, **manifest.spec.to_json(), "provenance": manifest.provenance}
    top = {
        MANIFEST_NAME: arrays.canonical_json(described),
        arrays.METADATA_NAME: arrays.canonical_json(side_root_metadata(manifest.spec)),
    }
    digests = {name: xxhash.xxh3_128_hexdigest(data) for name, data in top.items()}
    top[file_checksums.CHECKSUMS_NAME] = file_checksums.format_checksums(digests)
    return top


def create_side(folder: Path, manifest: SideManifest, mark: str = "") -> SideManifest:
    """Make the folder of a feature, complete but for its feature shards, unless it exists.

    Any number of processes may do so at once: the first one wins.

    Args:
        mark: beginning of its working name, for a process that later removes what it left when it
            was killed.

    Returns:
        The manifest that the folder has.

    Raises:
        OutputRefused: the manifest is that of another array, or of one made with something else
            (MADE_WITH), or the folder is not a feature.
        FormatError, OSError: as for `read_side_manifest`.
    """
    files.make_folder(folder.parent)
    removal.remove_leftovers(folder.with_name(mark + folder.name))
    if is_folder(folder):
        removal.remove_idle_locks(folder)
    if not exists(folder):
        staging = working_names.temporary_beside(folder.with_name(mark + folder.name))
        try:
            staging.mkdir()
            for name, data in top_of_side(manifest).items():
                files.write_durably(staging / name, data)
            files.flush_folder(staging)
            if replacing.claim_name(staging, folder):
                return manifest
        finally:
            removal.discard_entry(staging)
    if not is_side(folder):
        raise OutputRefused(f"{folder}: it exists and is not a feature; choose another folder")
    stored = read_side_manifest(folder)
    if (difference := first_difference(stored, manifest)) is not None:
        raise OutputRefused(
            f"{folder}: it is another feature, {difference}: choose another folder, or remove "
            "this one"
        )
    return stored


def first_difference(stored: SideManifest, expected: SideManifest) -> str | None:
    """The difference that forbids rows of two features in one folder; None if there is none."""
    expected_keys = asdict(expected.spec)
    for key, value in asdict(stored.spec).items():
        if value != expected_keys[key]:
            return f"{key} is {value!r}, not {expected_keys[key]!r}"
    for key in MADE_WITH:
        value = stored.provenance.get(key)
        other = expected.provenance.get(key)
        if value != other:
            return f"made with {key} {value!r:.400}, not {other!r:.400}"
    return None


def is_unused(folder: Path, *, or_unfinished: bool = False) -> bool:
    """True if a feature has no feature shard, and no process that makes one or that was killed.

    Args:
        or_unfinished: what processes have left of unfinished feature shards counts for nothing.
    """
    names = {path.name for path in Path(folder).iterdir()}
    used = {
        name for name in names if name not in TOP_FILES and not working_names.is_kept_in_use(name)
    }
    if or_unfinished:
        used = {name for name in used if not _is_unfinished(name, names)}
    return not used


def _is_unfinished(name: str, names: Container[str]) -> bool:
    """True for the working name of a feature shard that no process has locked; of those `names`."""
    if not name.startswith(working_names.TEMPORARY_PREFIX) or name.endswith(
        working_names.LOCK_SUFFIX
    ):
        return False
    return not working_names.is_owned(name) and name + working_names.LOCK_SUFFIX not in names


def remove_unused(folder: Path, *, or_unfinished: bool = False) -> None:
    """Remove a feature unless it is in use, see `is_unused`, or comes into use meanwhile.

    It is renamed before it is looked into, and a `FeatureShardWriter` reads the manifest after it
    has made its lock file there: one of the two notices the other.
    """
    aside = working_names.temporary_beside(folder)
    folder.rename(aside)
    if is_unused(aside, or_unfinished=or_unfinished):
        removal.remove_entry(aside)
    else:
        aside.rename(folder)


def is_of_another_file(folder: Path, code: str | None) -> bool:
    """True if a feature was begun with another version of the function's file.

    Args:
        folder: folder of the feature; it need not exist.
        code: digest of the file as it is; None if there is none.

    Raises:
        FormatError, VersionError, OSError: as for `read_side_manifest`.
    """
    with suppress(NotAPack):
        begun_with = read_side_manifest(folder).provenance.get(CODE)
        return begun_with is not None and code is not None and begun_with != code
    return False


def remove_begun_by_another_file(folder: Path, code: str) -> None:
    """Remove a feature that another version of the function's file has begun, and left.

    It has no feature shard, and nothing of what is unfinished can be continued; but its manifest
    would name a file of which there are no rows. Processes that begin at once do this one after
    another, so that none removes what the next one has begun. Without locks the feature stays.

    Args:
        folder, code: as in `is_of_another_file`.
    """
    if not _is_left_by_another_file(folder, code):
        return
    lock_path = folder.with_name(
        f"{working_names.TEMPORARY_PREFIX}{folder.name}{working_names.LOCK_SUFFIX}"
    )
    with suppress(file_locks.NoFileLocks):
        file_locks.try_locks(folder.parent)
        lock = file_locks.locked(lock_path)
        try:
            if _is_left_by_another_file(folder, code):
                remove_unused(folder, or_unfinished=True)
        finally:
            lock_path.unlink(missing_ok=True)
            os.close(lock)


def _is_left_by_another_file(folder: Path, code: str) -> bool:
    """True for what `remove_begun_by_another_file` removes."""
    if not is_of_another_file(folder, code):
        return False
    with suppress(FileNotFoundError):  # another process has just removed it
        removal.remove_idle_locks(folder)
        return is_unused(folder, or_unfinished=True)
    return False
