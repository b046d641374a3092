"""Every exception that sa1bpack raises deliberately.

::

    Sa1bpackError
    ├── OptionError        an option or argument has a value that cannot be used (also ValueError)
    ├── UnknownName        a dataset has no such image id, column, source or shard (also KeyError)
    ├── SourceError        a tar or a folder cannot be read
    │   ├── SourceTruncated    it ends too early; what was read before the end is sound
    │   └── SourceCorrupt      its bytes are wrong; nothing read from it can be trusted
    ├── SampleError        one image, its annotations or a mask cannot be used; it is rejected
    │   ├── AnnotationError    the JSON record
    │   ├── MaskError          one run-length mask
    │   └── ImageError         the image
    ├── FormatError        a pack breaks a rule of docs/format.md: it is damaged
    │   ├── NotAPack           the path does not name a pack; often it is mistyped
    │   ├── EmptyPack          the pack is sound, but has no image, or none yet
    │   ├── VersionError       the pack has a format version that this release does not support
    │   └── ReadError          one sample of a pack cannot be read
    ├── PackError          a pack run cannot start or cannot continue
    │   ├── OutputRefused      the output folder holds something else, or its disk is full
    │   │   ├── OutputLocked       another process packs into it
    │   │   └── OptionsDiffer      it holds a pack made with other options
    │   └── TooManyRejects     more members were rejected than --max-rejects allows
    ├── ResourceShortage   the system refuses memory or an open file (also OSError)
    ├── ThreadRefused      the system refuses a thread or a process (also RuntimeError)
    ├── StoreError         an object store cannot deliver: its network, service or credentials
    │   └── CacheFull          there is no room for what is to be read through a cache
    ├── ClusterError       a cluster cannot be reached, or its processes die again and again
    ├── MissingPackage     a package that is needed is missing or too old (also ImportError)
    ├── UserCodeError      a function that you passed, such as a transform, raised an exception
    └── LoaderError        a loader cannot deliver the next batch, for a reason other than the data
        └── LoaderTimeout      the batch was not ready in time (also TimeoutError)

A message names the place (file, member, annotation), the value found, the limit and the remedy. A
message about an option starts with its Python name; the command line replaces that by the flag.
"""

from typing import Any

# Characters of a message. Values in messages are cut to less; this holds whatever they are.
MAX_MESSAGE = 4000
_END_OF_MESSAGE = 1000  # which has the remedy


class Sa1bpackError(Exception):
    """Root of the tree: catching it catches everything that sa1bpack raises deliberately."""

    def __init__(self, *arguments: object):
        super().__init__(*map(_bounded, arguments))


def _bounded(text: object) -> object:
    """A message without its middle, if that makes it longer than MAX_MESSAGE."""
    if not isinstance(text, str) or len(text) <= MAX_MESSAGE:
        return text
    start = MAX_MESSAGE - _END_OF_MESSAGE - 100
    left_out = len(text) - start - _END_OF_MESSAGE
    return f"{text[:start]} ... ({left_out:,} characters) ... {text[-_END_OF_MESSAGE:]}"


class OptionError(Sa1bpackError, ValueError):
    """An option or argument has a value that cannot be used."""


class UnknownName(Sa1bpackError, KeyError):
    """A dataset has no image id, column, source or shard of that name."""

    __str__ = Exception.__str__  # KeyError shows its text in quotes


class SourceError(Sa1bpackError):
    """A tar or a folder cannot be read."""


class SourceTruncated(SourceError):
    """A source ends too early; what was read before the end is sound."""


class SourceCorrupt(SourceError):
    """The bytes of a source are wrong; nothing read from it can be trusted."""


class SampleError(Sa1bpackError):
    """One sample cannot be used; it is rejected, and the others are packed.

    `code` is the short, stable reason in `rejects.jsonl`.
    """

    code = "bad-sample"

    def __init__(self, message: str, code: str | None = None):
        super().__init__(message)
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[type, tuple[str, str], dict[str, Any]]:
        return type(self), (str(self), self.code), self.__dict__


class AnnotationError(SampleError):
    """The JSON record of an image cannot be used."""

    code = "bad-annotation"


class MaskError(SampleError):
    """A run-length mask cannot be used; `mask` is its index in the record, if it is one mask."""

    code = "bad-mask"
    mask: int | None = None


class ImageError(SampleError):
    """An image cannot be used."""

    code = "bad-image"


class FormatError(Sa1bpackError):
    """A pack breaks a rule of docs/format.md: it is damaged.

    Examples:
        >>> sa1bpack.open("tests")
        Traceback (most recent call last):
            ...
        sa1bpack.errors.NotAPack: ...
    """


class NotAPack(FormatError):
    """A path does not name a pack: it does not exist, or is something else."""


class EmptyPack(FormatError):
    """A pack has no image: none of its sources has any, or its first shard is not complete yet."""


class VersionError(FormatError):
    """A pack has a format version that this release does not support."""


class ReadError(FormatError):
    """A sample of a pack cannot be read.

    Args:
        message: what is wrong.
        shard: name of the sample's shard.
        row: row of the sample in the pack, counted over all shards.
        image_id: image id, from the index of the pack.
        file_name: file name; None if that cannot be read either.
    """

    def __init__(
        self,
        message: str,
        shard: str = "",
        row: int = -1,
        image_id: int = -1,
        file_name: str | None = None,
    ):
        # The defaults are for torch, which recreates a worker's exception from its text alone.
        super().__init__(message)
        self.shard = shard
        self.row = row
        self.image_id = image_id
        self.file_name = file_name

    def __reduce__(self) -> tuple[type, tuple[str, str, int, int, str | None]]:
        return type(self), (str(self), self.shard, self.row, self.image_id, self.file_name)


class PackError(Sa1bpackError):
    """A pack run cannot start or cannot continue."""


class OutputRefused(PackError):
    """The output folder cannot be packed into: it holds something else, or its disk has no room."""


class OutputLocked(OutputRefused):
    """Another process packs into the same folder."""


class OptionsDiffer(OutputRefused):
    """The output folder holds a pack made with other options."""


class TooManyRejects(PackError):
    """More members were rejected than allowed."""


class ResourceShortage(Sa1bpackError, OSError):
    """The system refuses memory or an open file: not the data's fault."""


class ThreadRefused(Sa1bpackError, RuntimeError):
    """The system refuses to start a thread or a process: not the data's fault."""


class StoreError(Sa1bpackError):
    """An object store cannot deliver, or accept, what it is asked for: not the data's fault."""


class CacheFull(StoreError):
    """A cache has no room for what is to be read through it."""


class ClusterError(Sa1bpackError):
    """A cluster cannot be reached, or a task's process died each time it was run."""


class MissingPackage(Sa1bpackError, ImportError):
    """A package that is needed cannot be imported, or is too old."""


class UserCodeError(Sa1bpackError):
    """A function that was passed to sa1bpack, such as a transform, raised an exception.

    The message has the function, its exception, and what it was called for, such as the name of the
    sample. The exception is the cause of this one, `error.__cause__`; of one that was raised in a
    worker process, the message has the traceback.
    """


class LoaderError(Sa1bpackError):
    """A loader cannot deliver the next batch, for a reason other than the data."""


class LoaderTimeout(LoaderError, TimeoutError):
    """A batch was not ready in time."""
