"""The options that a call asks for, beside those that a pack has recorded."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa1bpack.errors import OptionsDiffer
from sa1bpack.format.manifest import folder_to_write
from sa1bpack.format.side.kept import CATEGORY_KEY
from sa1bpack.options import declarations
from sa1bpack.packing.keep import IMAGE_NAME_KEY, KeepRequest, check_names
from sa1bpack.packing.options import (
    PRESETS,
    RECORDED_AS,
    PackOptions,
    RunOptions,
    checked_absent,
    default_shard_size,
    differences,
    options_text,
    recorded_options,
)
from sa1bpack.paths import patterns_of
from sa1bpack.source.records.table import SA1B

if TYPE_CHECKING:
    from sa1bpack.option_keywords import RunKeywords

# Options of which None is not a value: it stands for what other options decide.
_DECIDED_BY_OTHERS = ("fit", "pixels", "masks", "samples_per_shard", "records")


@dataclass(frozen=True)
class RequestedOptions:
    """The options of a pack that a call asks for; of those that it leaves out, a pack has its own.

    Attributes:
        named: name of each option that the call has given → its value, checked by itself. A preset
            stands for its options. That of `keep` is a KeepRequest.
        find_open: the options of a new pack that its sources decide where a call leaves them open:
            the reader of their records, and which numbers and keys these have.
    """

    named: Mapping[str, Any] = field(default_factory=dict)
    find_open: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None

    @classmethod
    def of_call(cls, keywords: Mapping[str, Any]) -> "RequestedOptions":
        """Those of the keywords of a call. Raises OptionError for a value that cannot be used."""
        named = {}
        for name, value in keywords.items():
            value = declarations(PackOptions)[name].checked(name, value)
            if name == "keep" and value is not None:
                value = KeepRequest.of(value)
            if name == "absent":
                value = checked_absent(value)
            if value is not None or name not in _DECIDED_BY_OTHERS:
                named[name] = value
        if "preset" in named:
            named = PRESETS[named.pop("preset")] | named
        if keywords.get("image_size") == "source" and keywords.get("fit") is None:
            named["fit"] = "scale_down"
        return cls(named)

    @classmethod
    def all_of(cls, options: PackOptions) -> "RequestedOptions":
        """A request for every one of these options."""
        return cls.of_call(asdict(options))

    def of_new_pack(self) -> PackOptions:
        """The options of a pack that does not exist yet: defaults where none is named.

        Raises OptionError for options that do not go together, and what reading the first records
        raises, if that tells which keys are kept.
        """
        named = dict(self.named)
        if self.find_open is not None:
            # What can be refused without a look at sources is.
            PackOptions(**{name: named[name] for name in named.keys() - {"keep", "keys"}})
            named |= self.find_open(named)
        if isinstance(named.get("keep"), KeepRequest):
            named["keep"] = named["keep"].texts
        options = PackOptions(**named)
        check_names(options.kept_keys)
        return options

    def of_pack(self, recorded: dict[str, Any], root: Path | str) -> PackOptions:
        """The options that the pack at `root`, a folder or a URL, has recorded.

        Raises OptionsDiffer, naming every difference, if others are asked for; FormatError if they
        cannot be used.
        """
        options = recorded_options(recorded, root)
        asked = options.to_json()
        for name, value in self.named.items():
            if name == "keep":
                if self._keeps_as(options):
                    continue
                value = None if value is None else value.texts
            if name == "absent" and value is not None:
                value = list(value)
            if name == "records" and value == SA1B:  # which is not recorded
                asked.pop(name, None)
                continue
            asked[RECORDED_AS.get(name, name)] = value
        lines = [f"{root} holds a pack made with other options:"]
        for name, theirs, ours in differences(recorded, asked):
            lines.append(f"  {name}: the pack has {theirs}, this run asks for {ours}")
        if len(lines) == 1:
            return options
        lines.append(
            "Leave these options out: without them, a run takes those of the pack. Or choose "
            "another output folder."
        )
        raise OptionsDiffer("\n".join(lines))

    def _keeps_as(self, options: PackOptions) -> bool:
        """True if a pack with these options keeps what the call asks for."""
        request = self.named["keep"]
        if request is None or options.keep is None:
            return request is options.keep
        keys = [
            key
            for key in options.kept_keys
            if key != IMAGE_NAME_KEY or any(asked.key == key.key for asked in request.keys)
        ]
        met: bool = request.is_met_by(keys)
        return met

    def found_text(self, options: PackOptions) -> str:
        """A line for the user, if what was found for a new pack may surprise them; or "".

        It is to have images alone, and nobody said so, or classes of COCO that are no integers.
        """
        if "keep" not in self.named and options.records == "coco":
            types = {key.key: key.type for key in options.kept_keys}
            if types.get(CATEGORY_KEY) == "json":
                return (
                    "category_id is kept as JSON texts, because some of the first annotations have "
                    "one that is no integer: correct the file, or name the keys to keep, "
                    f"--keep {CATEGORY_KEY}:int64, which rejects the records of such images"
                )
        if options.records != "none" or "records" in self.named:
            return ""
        return (
            "no record lies beside the images: they are packed alone, without masks; if their "
            "records are elsewhere, name the folder or the file, --annotations PATH; if there are "
            "none, --records none says so"
        )

    def taken_text(self, options: PackOptions) -> str:
        """A line for the user, if options of a pack that are no defaults were left out; or ""."""
        values = asdict(PackOptions())
        values["samples_per_shard"] = default_shard_size(options.fit)
        values.update(self.named)
        if "keep" in self.named:  # which the pack keeps, as it was compared before
            values["keep"] = options.keep
        if values == asdict(options):
            return ""
        return f"the options are those of the pack: {options_text(options)}"


@dataclass(frozen=True, kw_only=True)
class PackRequest:
    """What a call asks for, checked as far as that is possible without opening a file.

    Attributes:
        patterns: paths, glob patterns and URLs of sources.
        output: folder of the pack.
        pack_options: those of the options that determine its bytes which the call names.
        run_options: the others.
    """

    patterns: Sequence[str | Path]
    output: Path
    pack_options: RequestedOptions
    run_options: RunOptions


def check_request(
    sources: str | Path | Iterable[str | Path], output: str | Path, options: "RunKeywords"
) -> PackRequest:
    """The request that these arguments of `pack` make. Raises OptionError."""
    of_pack: dict[str, Any] = {}
    of_run: dict[str, Any] = {}
    for name, value in options.items():
        if name in declarations(PackOptions):
            of_pack[name] = value
        else:
            of_run[name] = value
    return PackRequest(
        patterns=patterns_of("sources", sources),
        output=folder_to_write(
            "output", output, "give a new folder, or that of a pack", itself=False
        ),
        pack_options=RequestedOptions.of_call(of_pack),
        run_options=RunOptions(**of_run),
    )
