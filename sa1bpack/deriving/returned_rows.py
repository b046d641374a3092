"""Rows that a function returned, or that a user has, as they are stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sa1bpack.errors import OptionError
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.spec import SIDE_DTYPES, TEXT
from sa1bpack.wording import brief

_MASKED = (
    "a masked array, whose masked numbers would be stored as others: fill them, array.filled(0), "
    "or leave such rows out"
)
_NOT_DENSE = "a sparse or nested tensor: give a dense one, or a list of tensors"


@dataclass(frozen=True)
class ReturnedRows:
    """The rows of one feature for a batch, and what kind they are.

    Attributes:
        rows: the rows.
        dtype: their type, one of SIDE_DTYPES or TEXT.
        row_shape: shape of a row, or of an item of ragged rows.
    """

    rows: FeatureRows
    dtype: str
    row_shape: tuple[int, ...]

    @property
    def ragged(self) -> bool:
        """True for rows of any length, of text too."""
        return self.rows.lengths is not None

    def __str__(self) -> str:
        if self.dtype == TEXT:
            return f"{len(self.rows)} texts"
        if self.ragged:
            return (
                f"{len(self.rows)} rows of {self.dtype} (n, {', '.join(map(str, self.row_shape))})"
            )
        return f"{self.dtype} {self.rows.values.shape}"


def returned_rows(returned: Any) -> ReturnedRows:
    """The rows that a function returned: an array or a tensor, a list of such, or of strings.

    Rows of a list of arrays are ragged, whether or not they happen to be equally long.

    Raises OptionError for anything else, and for a type that a feature cannot have.
    """
    if isinstance(returned, list | tuple):
        for row in returned:
            check_dense(row)
        if returned and all(isinstance(text, str) for text in returned):
            return _texts(returned)
        if returned and all(hasattr(row, "shape") for row in returned):
            return _ragged(returned)
        raise OptionError(
            f"rows are {brief(returned)}: return an array or a tensor of all rows, a list of "
            "arrays, or a list of strings"
        )
    rows, dtype = stored_rows(returned)
    if rows.ndim < 1:
        raise OptionError(f"rows are a single {dtype}: return one row for each image or mask")
    return ReturnedRows(FeatureRows(rows), dtype, rows.shape[1:])


def _texts(texts: Sequence[str]) -> ReturnedRows:
    """Rows of text. Raises OptionError for one that UTF-8 cannot hold."""
    encoded = []
    for text in texts:
        try:
            encoded.append(text.encode())
        except UnicodeEncodeError as error:
            raise OptionError(f"text {brief(text)} cannot be written as UTF-8: {error}") from None
    lengths = np.array([len(data) for data in encoded], np.int64)
    values = np.frombuffer(b"".join(encoded), np.uint8)
    return ReturnedRows(FeatureRows(values, lengths), TEXT, ())


def _ragged(arrays: Sequence[Any]) -> ReturnedRows:
    """Ragged rows. Raises OptionError unless all have items of one shape and type."""
    stored = []
    for array in arrays:
        if not len(array.shape):
            raise OptionError("rows are a list of single numbers: return them as one array")
        stored.append(stored_rows(array))
    first, dtype = stored[0]
    for row, row_dtype in stored:
        if (row.shape[1:], row_dtype) != (first.shape[1:], dtype):
            raise OptionError(
                f"rows are {dtype} {first.shape} and {row_dtype} {row.shape}: those of a list may "
                "differ in their first axis alone"
            )
    values = np.concatenate([row for row, _ in stored])
    lengths = np.array([len(row) for row, _ in stored], np.int64)
    return ReturnedRows(FeatureRows(values, lengths), dtype, first.shape[1:])


def check_dense(rows: Any) -> None:
    """Raise OptionError for an array or a tensor that has not a number at every place.

    Of a sparse or a nested tensor, many questions are errors of torch.
    """
    if isinstance(rows, np.ma.MaskedArray):
        raise OptionError(_MASKED)
    if isinstance(rows, torch.Tensor) and (rows.is_nested or rows.layout != torch.strided):
        raise OptionError(_NOT_DENSE)


def stored_rows(rows: Any) -> tuple[np.ndarray, str]:
    """A tensor or an array as it is stored, C-contiguous, and its type by name.

    Raises OptionError for anything else, and for a type that a feature cannot have.
    """
    check_dense(rows)
    if isinstance(rows, torch.Tensor):
        dtype = str(rows.dtype).removeprefix("torch.")
        tensor = rows.detach().cpu().contiguous()
        if dtype == "bfloat16":
            return tensor.view(torch.int16).numpy().view(np.uint16), dtype
        if dtype in SIDE_DTYPES:
            rows = tensor.numpy()
    else:
        dtype = getattr(getattr(rows, "dtype", None), "name", type(rows).__name__)
    if not isinstance(rows, np.ndarray | torch.Tensor) and hasattr(rows, "__array__"):
        library = type(rows).__module__.partition(".")[0]
        raise OptionError(
            f"rows are a {library}.{type(rows).__name__}: give an array of numpy, such as "
            "np.asarray(rows), or a tensor"
        )
    if dtype == "bfloat16":
        raise OptionError(
            "rows are an array of bfloat16, which numpy does not know: give a tensor, "
            "torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)"
        )
    if dtype not in SIDE_DTYPES or not isinstance(rows, np.ndarray):
        raise OptionError(f"rows are {dtype}: choose one of {', '.join(SIDE_DTYPES)}")
    return np.ascontiguousarray(rows, rows.dtype.newbyteorder("<")), dtype
