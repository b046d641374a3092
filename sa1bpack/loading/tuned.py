"""Settings that `sa1bpack tune` found, in a JSON file that Loader and make_dataloader accept."""

import json
import logging
import os
from dataclasses import asdict, dataclass
from typing import Any

from sa1bpack.arguments import local_path
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.environment import available_cpus
from sa1bpack.errors import OptionError
from sa1bpack.wording import brief

KIND, VERSION = "sa1bpack settings", 1

_LOADER = {"threads": int, "ahead": int, "io": str}
_DATALOADER = {"workers": int, "prefetch_factor": int, "pin_memory": bool}

_log = logging.getLogger("sa1bpack")


@dataclass(frozen=True)
class MeasuredFor:
    """What settings were measured for: others may suit something else.

    layout  image_size, mask_size, fit, pixels, bits and runs of the pack
    device  "cpu" or "cuda"
    cores   that the process could use
    batch_size  samples per batch; the most of all epochs, if that changes
    """

    layout: dict[str, Any]
    device: str
    cores: int
    batch_size: int

    @classmethod
    def of(cls, ds: Dataset, device: str, batch_size: int) -> "MeasuredFor":
        """A dataset on this machine."""
        return cls(asdict(ds.layout), device.partition(":")[0], available_cpus(), batch_size)

    def differences(self, here: "MeasuredFor") -> list[str]:
        """What is different here, as text."""
        pairs = [(name, self.layout.get(name), value) for name, value in here.layout.items()]
        pairs += [(name, getattr(self, name), getattr(here, name))
                  for name in ("device", "cores", "batch_size")]  # fmt: skip
        return [f"{name} {there} (here {value})" for name, there, value in pairs if there != value]


@dataclass(frozen=True)
class TunedSettings:
    """The content of the file.

    loader      options of Loader: threads, ahead, io
    dataloader  options of make_dataloader: workers, prefetch_factor, pin_memory
    measured_for
    disk_bytes_per_second  what the pack's disk delivered when nothing else was done; None if that
                           was not measured
    """

    loader: dict[str, Any]
    dataloader: dict[str, Any]
    measured_for: MeasuredFor
    disk_bytes_per_second: float | None = None

    def as_json(self) -> bytes:
        """The bytes of the file."""
        text = json.dumps({"kind": KIND, "version": VERSION} | asdict(self), indent=1)
        return f"{text}\n".encode()


def read_tuned(path: str | os.PathLike[str]) -> TunedSettings:
    """Read the file. Raises OptionError if it is something else, or cannot be read."""
    path = local_path("tuned", path)
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            f"tuned is {str(path)!r}, which cannot be read ({reason}); `sa1bpack tune PACK -o "
            f"{path}` makes it"
        ) from None
    try:
        if (found["kind"], found["version"]) != (KIND, VERSION):
            raise ValueError(f"it has the kind and version {found['kind']}, {found['version']}")
        for name, types in (("loader", _LOADER), ("dataloader", _DATALOADER)):
            if {key: type(value) for key, value in found[name].items()} != types:
                raise ValueError(f"{name} is {brief(found[name])}")
        measured, disk = MeasuredFor(**found["measured_for"]), found["disk_bytes_per_second"]
        if not isinstance(measured.layout, dict) or not isinstance(disk, float | int | None):
            raise ValueError("measured_for or disk_bytes_per_second is of another type")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(
            f"tuned is {str(path)!r}, which is not a file of `sa1bpack tune` ({error!r}); make it "
            "again"
        ) from None
    return TunedSettings(found["loader"], found["dataloader"], measured, disk)


def warn_of_differences(
    path: str | os.PathLike[str], tuned: TunedSettings, ds: Dataset, device: str, batch_size: int
) -> None:
    """Log what was different where the settings were measured."""
    different = tuned.measured_for.differences(MeasuredFor.of(ds, device, batch_size))
    if different:
        _log.warning(
            "the settings of %s were measured for something else, and may not be the best here: "
            "%s; `sa1bpack tune` measures again",
            os.fspath(path),
            ", ".join(different),
        )
