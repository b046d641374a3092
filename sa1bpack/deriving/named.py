"""The function that "module:function" names."""

from collections.abc import Callable
from importlib import import_module

from sa1bpack.errors import OptionError


def function_of(name: str) -> Callable:
    """Import and return a function. Raises OptionError if there is none of that name.

    An error of the module itself passes.
    """
    module, colon, attribute = name.partition(":")
    if not (colon and attribute and all(part.isidentifier() for part in module.split("."))):
        raise OptionError(f"fn is {name!r}: choose MODULE:FUNCTION, such as my_teacher:embed")
    try:
        found = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # something that the module imports
        raise OptionError(
            f"fn is {name!r}: there is no module {error.name!r} here or among the installed ones"
        ) from None
    except AttributeError:
        raise OptionError(f"fn is {name!r}: the module has no {attribute!r}") from None
    if not callable(found):
        raise OptionError(f"fn is {name!r}: this is of type {type(found).__name__}, not a function")
    return found
