"""What tars and folders have in common: members, and checks of their names.

Nothing is ever written under a member's name, and only its last part counts for pairing. Names are
checked nevertheless, because they appear in journals and reports.
"""

import re
from dataclasses import dataclass
from typing import Literal

MAX_NAME_BYTES = 64  # of `sa_5.jpg` in UTF-8: the space that a shard reserves
MAX_PATH_BYTES = 512  # of a member with its folders; longer paths are shortened

MemberKind = Literal["file", "directory", "link", "special", "sparse"]
Half = Literal["jpeg", "json"]
_HALVES: dict[str, Half] = {"jpg": "jpeg", "jpeg": "jpeg", "json": "json"}
_CONTROL = re.compile(r"[\0-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of a tar or one file of a folder.

    `name` is the full path as stored, with undecodable bytes and control characters as `\\xNN`; if
    it is longer than `MAX_PATH_BYTES`, its end. `size` is the number of data bytes. `problem` says
    why the name cannot be trusted, or is empty.
    """

    name: str
    size: int
    kind: MemberKind
    problem: str = ""


def split_name(name: str) -> tuple[str, Half | None]:
    """`./sa_5.jpg` → ('sa_5', 'jpeg'); the half is None for a foreign member.

    The extension may be in any case. Hidden files (`._sa_5.jpg` of macOS) are foreign.
    """
    base = name.rsplit("/", 1)[-1]
    stem, _, extension = base.rpartition(".")
    if not stem or base.startswith("."):
        return base, None
    return stem, _HALVES.get(extension.lower())


def decode_name(raw: bytes) -> tuple[str, str]:
    """A stored name as (text, problem). The text is of bounded length and safe to print."""
    if len(raw) > MAX_PATH_BYTES:
        end = raw[-MAX_NAME_BYTES:].decode("utf-8", "backslashreplace")
        return f"...{_escaped(end)}", f"the path has {len(raw)} bytes, over {MAX_PATH_BYTES}"
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        return _escaped(raw.decode("utf-8", "backslashreplace")), "the name is not UTF-8"
    if "\0" in name:
        return _escaped(name), "the name contains a NUL byte"
    if _CONTROL.search(name):
        return _escaped(name), "the name contains a control character"
    return name, path_problem(name)


def _escaped(name: str) -> str:
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", name)


def path_problem(name: str) -> str:
    """Why a stored path is not a plain relative one, or ''."""
    if name.startswith("/"):
        return "the name is an absolute path"
    if ".." in name.split("/"):
        return "the name contains '..'"
    return ""
