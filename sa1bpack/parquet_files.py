"""Parquet files, which pyarrow reads: `pip install "sa1bpack[parquet]"`."""

from importlib import import_module
from pathlib import Path
from typing import Any

from sa1bpack.errors import MissingPackage, SourceError
from sa1bpack.paths import naming


def import_arrow(path: Path) -> Any:
    """The module pyarrow, with `parquet`. Raises MissingPackage, which names the file."""
    try:
        arrow = import_module("pyarrow")
        import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingPackage(
            f'{path}: reading Parquet needs pyarrow ({error}): pip install "sa1bpack[parquet]"'
        ) from None
    return arrow


def open_parquet(path: Path, **options: Any) -> tuple[Any, Any]:
    """The module pyarrow, and the ParquetFile of a path, with more options for it.

    Raises MissingPackage, OSError, and SourceError for a file that is not whole.
    """
    arrow = import_arrow(path)
    with naming(path), path.open("rb"):  # says what is wrong, as pyarrow does not
        pass
    try:
        return arrow, arrow.parquet.ParquetFile(path, **options)
    except (arrow.ArrowException, OSError, ValueError) as error:  # also names that are not UTF-8
        raise SourceError(f"{path}: not a whole Parquet file: {error}; copy it again") from None
