"""Where the records of images are: the annotation file, or the folder of masks, beside them."""

import re
from collections.abc import Sequence
from pathlib import Path

from sa1bpack.errors import SourceError
from sa1bpack.paths import is_file, matching, naming, real_path
from sa1bpack.source.find import Source
from sa1bpack.wording import brief

_HEAD_BYTES = 4096
# A JSON in COCO's form begins with one of its keys.
_COCO_HEAD = re.compile(
    rb'\s*\{\s*"(info|licenses|images|annotations|categories|type|videos|dataset)"\s*:'
)
# Kinds of COCO's files whose annotations are no masks of objects; `instances_*` are.
_OTHER_KINDS = ("captions_", "person_keypoints_", "panoptic_", "stuff_", "image_info_")
_MOST_NAMED = 8


def looks_like_coco(path: Path) -> bool:
    """True for a file that begins as a JSON in COCO's form does. Raises OSError."""
    if not is_file(path):
        return False
    with naming(path), path.open("rb") as file:
        return _COCO_HEAD.match(file.read(_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")) is not None


def _candidates(folder: Path, shared_with: str | None) -> list[Path]:
    """The annotation files in a folder, and none of the hidden ones.

    Args:
        folder: folder, which need not exist.
        shared_with: name of the source, if other things than annotations lie in the folder, too:
            what this user may not read there is passed over, but for a file that has this name.

    Raises:
        SourceError: the folder cannot be listed, or a file cannot be read.
    """
    files = []
    try:
        for path in _json_files(folder, shared_with is not None):
            try:
                if looks_like_coco(path):
                    files.append(path)
            except PermissionError:
                if shared_with is None or shared_with in path.stem:
                    raise
    except OSError as error:
        raise SourceError(
            f"{error.filename}: may have the annotations, and cannot be read: {error.strerror}; "
            "make it readable, or name the file of annotations, --annotations FILE"
        ) from error
    return files


def _json_files(folder: Path, is_shared: bool) -> list[Path]:
    """The JSON files in a folder; none of a shared one that may not be listed. Raises OSError."""
    try:
        return matching(folder, "[!.]*.json")
    except PermissionError:
        if is_shared:
            return []
        raise


def _best(paths: Sequence[Path], name: str) -> list[Path]:
    """Of several annotation files, those that are for a source of this name, if that is clear."""
    masks = [path for path in paths if not path.name.startswith(_OTHER_KINDS)] or [*paths]
    exact = [path for path in masks if path.stem in (name, f"instances_{name}")]
    if exact:
        return exact[:1]
    whole_name = re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])")
    return [path for path in masks if whole_name.search(path.stem)] or masks


def find_annotation_file(source: Source) -> Path | None:
    """The annotation file that belongs to a source; None if there is none.

    It is looked for in the folder of images, in `annotations` within it, beside it, and in
    `annotations` beside it or beside the folder above, as COCO, LVIS, Roboflow and CVAT place it.
    Of several, one that has the name of the source counts, such as instances_train2017.json.

    Raises SourceError if several may be it, or if one that may be it cannot be read.
    """
    if not isinstance(source.path, Path):
        return None
    path = real_path(source.path)
    folders = [path.parent / "annotations", path.parent, path.parent.parent / "annotations"]
    if source.kind == "folder":
        folders = [path, path / "annotations", *folders]
    for folder in folders:
        shared_with = None
        if folder == path.parent:  # where files of others lie, too
            shared_with = source.name
        best = _best(_candidates(folder, shared_with), source.name)
        if shared_with is not None:
            best = [file for file in best if _best([file], source.name) and _named(file, source)]
        if len(best) == 1:
            return best[0]
        if best:
            named = ", ".join(file.name for file in best[:_MOST_NAMED])
            raise SourceError(
                f"{source.path}: {folder} has {len(best)} annotation files that may be that of "
                f"{brief(source.name)}: {named}; name it, --annotations FILE, or give the folder "
                "of images that one belongs to"
            )
    return None


def _named(file: Path, source: Source) -> bool:
    """True if the name of an annotation file has that of the source."""
    return source.name in file.stem


def annotation_file(source: Source) -> Path:
    """`find_annotation_file`; raises SourceError if there is none."""
    path = find_annotation_file(source)
    if path is None:
        raise SourceError(
            f"{source.path}: no annotation file in COCO's form is in it, beside it or in a folder "
            "annotations there: name it, --annotations FILE"
        )
    return path
