"""The display of objects in a terminal and in a notebook."""

import inspect
import logging
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Self

import numpy as np

from sa1bpack import PICTURES
from sa1bpack.wording import brief

# Keys of samples and batches that have runs in place of masks.
_RUNS_KEYS = {"runs", "run_ends", "run_offset"}
_LONGEST = 60  # characters of a value of a sample or batch that is not an array


_log = logging.getLogger("sa1bpack")


class Pictured:
    """An object that a notebook shows as a picture if that can be drawn, and otherwise as its text.

    Who draws is not a matter of the core: the table `PICTURES` of the package names the module.
    """

    def _repr_html_(self) -> str | None:
        try:
            drawing: Any = import_module(PICTURES)
            html: str | None = drawing.html_of(self)
            return html
        except Exception as error:  # PIL is missing, or a sample cannot be read: text will do
            _log.debug("no picture: %s", error)
            return None


def call_text(value: Any, **shown: Any) -> str:
    """An object as the call that makes it: `RandomHorizontalFlip(p=0.5)`.

    Its arguments are the attributes of the same names; floats have four digits.

    Args:
        value: the object.
        shown: values of arguments that have no attribute, or whose attribute differs.
    """
    names = inspect.signature(type(value)).parameters
    values = {name: getattr(value, name) for name in names if hasattr(value, name)} | shown
    text = ", ".join(f"{name}={_value_text(values[name])}" for name in names if name in values)
    return f"{type(value).__name__}({text})"


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_value_text, value))}{',' * (len(value) == 1)})"
    return getattr(value, "__qualname__", None) or repr(value).removeprefix("torch.")


class _Arrays(dict[str, Any]):
    """A dict whose text has the shape and type of each array on a line of its own, no numbers."""

    def __missing__(self, key: str) -> Any:
        """Raise KeyError, with the keys that are nearest, or all of them."""
        names = [*map(str, self)]
        kind = type(self).__name__.lower()
        if key == "masks" and (runs := _RUNS_KEYS.intersection(names)):
            raise KeyError(
                f"a {kind} has no 'masks': they are runs here, in "
                f"{' and '.join(sorted(runs))}. A transforms.Pipeline of the dataset draws them; "
                "so does the dataset with a grid, ds.with_options(mask_format='bool', "
                "mask_size=256), or 'bits'"
            )
        if key == "spec" and isinstance(self, Batch):
            raise KeyError(
                "a batch has no 'spec': the spec of its samples is an attribute, batch.spec, "
                "because a batch holds only what libraries can move, cut and join"
            )
        hint = f"it has {', '.join(names)}"
        if near := get_close_matches(str(key), names, n=3, cutoff=0.6):
            hint = f"is {' or '.join(near)} meant?"
        raise KeyError(f"a {kind} has no {brief(key)}: {hint}")

    def __repr__(self) -> str:
        width = max(map(len, map(str, self)), default=0)
        lines = [f"  {key!s:{width}}  {_array_text(value)}" for key, value in dict.items(self)]
        return "\n".join([f"{type(self).__name__} of {len(self)} keys", *lines])

    def copy(self) -> Self:
        return type(self)(self)

    # In one piece: torch.load does not fill dicts of a kind of their own.
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),), vars(self) or None

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, dict):
            return NotImplemented
        return type(self)({**self, **other})


class Sample(_Arrays):
    """A sample of a dataset: a dict, see `sa1bpack.Dataset`.

    Its arrays are read-only views of files until they are taken out. Whoever takes one, in any of a
    dict's ways, is given a copy of his own, which is in the sample from then on: torch writes to
    read-only memory without asking, which would end the process. `stored` has the views.

    Attributes:
        covered: source pixels per side that the grid of its masks covers, of a pack with the fit
            "scale_down"; None: what the fit implies.
        features: name of each feature → its type as text, see `SideSpec.to_text`; None: not known.
    """

    covered: int | None = None
    features: dict[str, str] | None = None

    def stored(self) -> dict[str, Any]:
        """The values as they are: a plain dict, in which views of files are read-only."""
        return dict(super().items())

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            value = value.copy()
            self[key] = value
        return value

    def __iter__(self) -> Iterator[str]:  # not that of dict, so that dict(sample) takes values here
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    def setdefault(self, key: str, default: Any = None) -> Any:
        super().setdefault(key, default)
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            self[key]  # a copy takes its place
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        self._take_all()
        return super().popitem()

    def items(self) -> Any:
        self._take_all()
        return super().items()

    def values(self) -> Any:
        self._take_all()
        return super().values()

    def copy(self) -> Self:
        return self._with_values(self.stored())

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, dict):
            return NotImplemented
        added = other.stored() if isinstance(other, Sample) else other
        return self._with_values({**self.stored(), **added})

    def _with_values(self, values: dict[str, Any]) -> Self:
        """A sample with other values and the same attributes."""
        sample = type(self)(values)
        vars(sample).update(vars(self))
        return sample

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.stored(),), vars(self) or None

    def _take_all(self) -> None:
        """Replace every view by a copy."""
        for key in list(self):
            self[key]


class Batch(Pictured, _Arrays):
    """A batch of a loader, `Collate` or a `Pipeline`: a dict, see `sa1bpack.Collate`.

    Attributes:
        spec: of the samples, `ds.spec_text`; None if it is not known. It is an attribute of the
            class, one class for each spec, because libraries that move, cut or join a batch make a
            new one by `type(batch)(...)`: that has the same spec.
        numbers: what the host knows of small tensors on a device, a
            `transforms.host.SentNumbers`; None: nothing. Who has asked for such a tensor may write
            to it, so that every way to a value tells `numbers`; copies of a batch have none.
        counts: the statistics of the epoch of a loader, in which a `Pipeline` notes its time; None
            for a batch that came another way, and for copies.
    """

    spec: str | None = None

    __slots__ = ("counts", "numbers")  # not in `vars`, and so in no pickle or copy

    def __init__(self, *items: Any, **more: Any):
        super().__init__(*items, **more)
        self.numbers: Any = None
        self.counts: Any = None

    def unseen(self) -> dict[str, Any]:
        """The items, for code of sa1bpack that writes to none of them."""
        return dict(dict.items(self))

    def to(self, device: Any, non_blocking: bool = False) -> "Batch":
        """The batch on a device: itself if all of it is there.

        Lightning and Accelerate call this; otherwise they would move one tensor after the other.
        """
        moved = self.unseen()
        is_moved = False
        for key, value in self.unseen().items():
            if hasattr(value, "to"):
                moved[key] = value.to(device, non_blocking=non_blocking)
                is_moved |= moved[key] is not value
        return type(self)(moved) if is_moved else self

    def forget_numbers(self) -> None:
        """Forget what the host knows of small tensors."""
        if self.numbers is not None:
            self.numbers.forget()
            self.numbers = None

    def _hand_out(self, key: Any) -> None:
        if self.numbers is not None and key in self.numbers.keys:
            self.forget_numbers()

    def __getitem__(self, key: str) -> Any:
        self._hand_out(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._hand_out(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self._hand_out(key)
        return super().pop(key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._hand_out(key)
        return super().setdefault(key, default)

    def popitem(self) -> tuple[str, Any]:
        self.forget_numbers()
        return super().popitem()

    def values(self) -> Any:
        self.forget_numbers()
        return super().values()

    def items(self) -> Any:
        self.forget_numbers()
        return super().items()

    def __iter__(self) -> Any:
        # A dict with an iterator of its own is copied, as by `dict(batch)` and `**batch`, by
        # `__getitem__`.
        return super().__iter__()


def _array_text(value: Any) -> str:
    """Type, shape and device of an array; anything else as it is, if it is short."""
    shape = getattr(value, "shape", None)
    dtype = getattr(value, "dtype", None)
    if isinstance(value, list | tuple) and any(hasattr(part, "shape") for part in value):
        return f"{type(value).__name__} of {len(value)}, the first {_array_text(value[0])}"
    if shape is None or dtype is None:
        text = " ".join(repr(value).split())
        if len(text) > _LONGEST:
            text = f"{type(value).__name__} {text[:_LONGEST]}…"
        return text
    device = str(getattr(value, "device", "cpu"))
    text = f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"
    if device == "cpu":
        return text
    return f"{text} {device}"
