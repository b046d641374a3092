"""The function of a feature: its name, and what it is called with."""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import xxhash

from sa1bpack.deriving.options import DeriveOptions
from sa1bpack.errors import OptionError
from sa1bpack.paths import is_file
from sa1bpack.transforms.geometric_steps import GeometricStep
from sa1bpack.transforms.pipeline import Pipeline
from sa1bpack.transforms.seeding import Seeded
from sa1bpack.wording import brief

# What it returns is checked: `returned_rows` says which rows there are.
Function = Callable[..., Any]


def function_name(fn: Function) -> str:
    """The name of a function in the manifest: "module:name"; of a script "its file:name".

    A module that imports the script would have the same name for it.

    Raises OptionError for a lambda or a partial, which share their name with every other one.
    """
    named = named_object(fn)
    module = named.__module__
    script = getattr(sys.modules["__main__"], "__file__", None)
    if module == "__main__" and script is not None:
        module = Path(script).stem
    name = f"{module}:{named.__qualname__}"
    if name.endswith("<lambda>") or isinstance(fn, functools.partial):
        raise OptionError(
            f"fn is {name}, which does not tell it from another one when a call is repeated: "
            "choose a function with a name (def), and pass arguments as options"
        )
    return name


def named_object(fn: Function) -> Any:
    """The object that has the name of a function: itself, or the class of a callable object."""
    if isinstance(fn, Seeded):
        fn = fn.function
    return fn if hasattr(fn, "__qualname__") else type(fn)


def function_file(fn: Function) -> Path | None:
    """The file that a function is written in; None if it has none, or it cannot be read."""
    try:
        file = Path(inspect.getsourcefile(inspect.unwrap(named_object(fn))) or "")
    except (TypeError, OSError):  # in another language, or by another program
        return None
    return file if is_file(file) else None


def digest_of_file(path: Path) -> str | None:
    """The XXH3-128 of a file, 32 hexadecimal digits; None if it cannot be read."""
    try:
        return xxhash.xxh3_128_hexdigest(path.read_bytes())
    except OSError:
        return None


def checked_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The keyword arguments of the function. Raises OptionError."""
    if options is None:
        return {}
    if not (isinstance(options, Mapping) and all(isinstance(key, str) for key in options)):
        raise OptionError(f"options is {brief(options)}: choose a dict of keyword arguments")
    return dict(options)


def check_function(fn: Function, pipeline: Pipeline | None, chosen: DeriveOptions) -> None:
    """Raise OptionError unless the function can be called with what the pipeline makes."""
    if not callable(fn):
        raise OptionError(f"fn is {brief(fn)}: choose a function of a batch")
    if not isinstance(pipeline, Pipeline | None):
        raise OptionError(f"pipeline is {brief(pipeline)}: choose a transforms.Pipeline")
    if pipeline is None or not chosen.spatial:
        return
    moves = any(isinstance(step, GeometricStep) for step in pipeline.steps)
    if moves or pipeline.canvas[0] != pipeline.canvas[1]:
        raise OptionError(
            f"pipeline is {pipeline}, but spatial is True: rows are over the canvas of the "
            "stored image, so choose a pipeline with a square size that moves no image"
        )
    if pipeline.stored.fit == "scale_down" and chosen.covers != "photograph":
        raise OptionError(
            "pipeline enlarges the images of a pack with the fit scale_down to its canvas, which "
            "is not that of the stored image then, but spatial is True: return rows of the image "
            "alone, cut by batch['input_sizes'], and say covers='photograph' "
            "(docs/features.md#the-input-of-a-teacher); or pack with --fit native"
        )


def function_of(name: str, option: str = "fn") -> Callable[..., Any]:
    """Import and return the function that an option names. Raises OptionError if there is none.

    An error of the module itself passes.
    """
    module, colon, attribute = name.partition(":")
    if not (colon and all(word.isidentifier() for word in f"{module}.{attribute}".split("."))):
        raise OptionError(
            f"{option} is {brief(name)}: choose MODULE:FUNCTION, such as my_teacher:embed"
        )
    try:
        function: Any = resolve_name(name)
    except (ModuleNotFoundError, AttributeError) as error:
        missing_module = ""
        if isinstance(error, ModuleNotFoundError):
            missing_module = f"{error.name}."
        if not f"{module}.".startswith(missing_module):
            raise  # something that the module imports
        raise OptionError(f"{option} is {brief(name)}: {error}") from None
    if not callable(function):
        kind = type(function).__name__
        raise OptionError(f"{option} is {brief(name)}: of type {kind}, no function")
    checked: Callable[..., Any] = function
    return checked
