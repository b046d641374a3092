"""Every exception that sa1bpack raises on purpose.

::

    Sa1bpackError
    ├── OptionError        an option or argument has a value that cannot be used (also ValueError)
    ├── SourceError        a tar or a folder cannot be read as a whole
    │   ├── SourceTruncated    it ends too early: what came before the end is sound
    │   └── SourceCorrupt      its bytes are wrong: nothing that came from it can be trusted
    ├── SampleError        one image, its annotations or a mask cannot be used; the others go on
    │   ├── AnnotationError    the JSON record
    │   ├── MaskError          one run-length mask
    │   └── ImageError         the JPEG
    ├── FormatError        something under a pack is not what docs/format.md demands
    │   ├── NotAPack           what is named is no pack at all: most often a mistyped path
    │   ├── VersionError       it is of a format version that this release does not read
    │   └── ReadError          one sample of a pack cannot be read
    ├── PackError          a pack run cannot start or cannot go on
    │   ├── OutputRefused      the output folder cannot be packed into: it holds something else
    │   │   ├── OutputLocked       another process packs into it
    │   │   └── OptionsDiffer      it holds a pack made with other options
    │   └── TooManyRejects     more members were rejected than --max-rejects allows
    ├── MissingPackage     a package that is needed cannot be imported (also ImportError)
    └── LoaderError        a loader cannot give the next batch, for a reason other than the data
        └── LoaderTimeout      the batch did not come in time (also TimeoutError)

A message names what was looked at (file, member, annotation), the value found, the limit, and what
to do about it. Of an option that cannot be used it begins with the option's name, as Python has it;
the command line puts the flag in its place.
"""


class Sa1bpackError(Exception):
    """Root of the tree; catching it catches everything that sa1bpack raises on purpose."""


class OptionError(Sa1bpackError, ValueError):
    """An option or argument has a value that cannot be used."""


class SourceError(Sa1bpackError):
    """A tar or a folder cannot be read as a whole."""


class SourceTruncated(SourceError):
    """A source ends too early; what came before the end is sound."""


class SourceCorrupt(SourceError):
    """A source's bytes are wrong; nothing that came from it can be trusted."""


class SampleError(Sa1bpackError):
    """One sample cannot be used; it is rejected and the others go on.

    `code` is the short, stable word that `rejects.jsonl` files it under.
    """

    code = "bad-sample"

    def __init__(self, message: str, code: str | None = None):
        super().__init__(message)
        if code is not None:
            self.code = code

    def __reduce__(self):
        return type(self), (str(self), self.code), self.__dict__


class AnnotationError(SampleError):
    """The JSON record of an image cannot be used."""

    code = "bad-annotation"


class MaskError(SampleError):
    """A run-length mask cannot be used."""

    code = "bad-mask"


class ImageError(SampleError):
    """A JPEG cannot be used."""

    code = "bad-image"


class FormatError(Sa1bpackError):
    """Something under a pack is not what docs/format.md demands."""


class NotAPack(FormatError):
    """What is named as a pack is none: it is not there, or is something else."""


class VersionError(FormatError):
    """A pack is of a format version that this release does not read."""


class ReadError(FormatError):
    """A sample of a pack cannot be read.

    shard      name of its shard
    row        its row in the pack, counted over all shards
    image_id   its id, from the index of the pack
    file_name  its file name; None if that cannot be read either
    """

    def __init__(
        self,
        message: str,
        shard: str = "",
        row: int = -1,
        image_id: int = -1,
        file_name: str | None = None,
    ):
        # The defaults are for torch, which makes a worker's exception anew from its text alone.
        super().__init__(message)
        self.shard = shard
        self.row = row
        self.image_id = image_id
        self.file_name = file_name

    def __reduce__(self):
        return type(self), (str(self), self.shard, self.row, self.image_id, self.file_name)


class PackError(Sa1bpackError):
    """A pack run cannot start or cannot go on."""


class OutputRefused(PackError):
    """The output folder cannot be packed into."""


class OutputLocked(OutputRefused):
    """Another process packs into the same folder."""


class OptionsDiffer(OutputRefused):
    """The output folder holds a pack made with other options."""


class TooManyRejects(PackError):
    """More members were rejected than allowed."""


class MissingPackage(Sa1bpackError, ImportError):
    """A package that is needed cannot be imported."""


class LoaderError(Sa1bpackError):
    """A loader cannot give the next batch, for a reason other than the data."""


class LoaderTimeout(LoaderError, TimeoutError):
    """A batch did not come in time."""
