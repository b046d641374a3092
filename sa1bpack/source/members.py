"""What a tar and a folder have in common: members, and their names judged.

Nothing is ever written under a member's name, and only its last part counts for pairing. Names
are judged all the same, for they end in journals and reports.
"""

from dataclasses import dataclass
from typing import Literal

MAX_NAME_BYTES = 64  # of `sa_5.jpg` in UTF-8: what a shard reserves for it

MemberKind = Literal["file", "directory", "link", "special", "sparse"]
Half = Literal["jpeg", "json"]
_HALVES: dict[str, Half] = {"jpg": "jpeg", "jpeg": "jpeg", "json": "json"}


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of a tar or one file of a folder.

    `name` is the whole path as stored, with undecodable bytes as `\\xNN`. `size` is the number of
    data bytes. `problem` says why the name cannot be trusted, or is empty.
    """

    name: str
    size: int
    kind: MemberKind
    problem: str = ""


def split_name(name: str) -> tuple[str, Half | None]:
    """`./sa_5.jpg` → ('sa_5', 'jpeg'); the half is None for a foreign member.

    The extension may be of any case. Hidden files (`._sa_5.jpg` of macOS) are foreign.
    """
    base = name.rsplit("/", 1)[-1]
    stem, _, extension = base.rpartition(".")
    if not stem or base.startswith("."):
        return base, None
    return stem, _HALVES.get(extension.lower())


def decode_name(raw: bytes) -> tuple[str, str]:
    """A stored name as (text, problem)."""
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "backslashreplace"), "the name is not UTF-8"
    if "\0" in name:
        return name.replace("\0", "\\x00"), "the name holds a NUL byte"
    return name, path_problem(name)


def path_problem(name: str) -> str:
    """Why a stored path is not a plain relative one, or ''."""
    if name.startswith("/"):
        return "the name is an absolute path"
    if ".." in name.split("/"):
        return "the name holds '..'"
    return ""
