"""A note to the next repair: what the manifest must say in the end.

While a repair rewrites the manifest, it says for a moment that the pack is not complete, or knows
fewer sources than the tars hold. If the repair ends there, the manifest is believable, and without
this note the next repair would leave it as it is. The note is a working file: a run of the packer,
which reads the sources itself, removes it.
"""

from pathlib import Path

import msgspec

from sa1bpack.format.files import TEMPORARY_PREFIX, flush_folder, replace_file

_NAME = TEMPORARY_PREFIX + "unfinished-repair.json"


class Unfinished(msgspec.Struct, frozen=True):
    """What an unfinished repair intended.

    lost
        The manifest was lost, and must be rewritten from shards and sources.
    complete
        The manifest said that the pack is complete.
    """

    lost: bool = False
    complete: bool = False


def note_path(root: Path) -> Path:
    """Path of the note in a pack's folder."""
    return root / _NAME


def write_note(root: Path, note: Unfinished) -> None:
    """Leave a note; durable before anything in the pack changes."""
    replace_file(note_path(root), msgspec.json.encode(note))


def read_note(root: Path) -> Unfinished:
    """The note that an unfinished repair left, or an empty one. Raises OSError if unreadable."""
    try:
        return msgspec.json.decode(note_path(root).read_bytes(), type=Unfinished)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return Unfinished()


def remove_note(root: Path) -> None:
    """Remove the note, if there is one."""
    if note_path(root).exists():
        note_path(root).unlink()
        flush_folder(root)
