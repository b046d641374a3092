"""Keyword arguments of what users call: an unknown one is answered with what is meant."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from math import inf
from typing import Any, TypeVar, overload

from sa1bpack.errors import OptionError
from sa1bpack.options import Declaration, Options, declarations, section_of
from sa1bpack.wording import brief

_Call = TypeVar("_Call", bound=Callable[..., Any])


class _Unchanged:
    """The default of an option that a call leaves as it is, in signatures."""

    def __repr__(self) -> str:
        return "<unchanged>"


UNCHANGED = _Unchanged()


def takes_options(
    *groups: type[Options], unchanged: bool = False, without: Collection[str] = ()
) -> Callable[[_Call], _Call]:
    """A decorator of a call with `**options`, which are the fields of these groups.

    The signature has each of them, and the docstring a section `Options:` with their texts. For
    type checkers, the annotation is an `Unpack` of `option_keywords.pyi`.

    Args:
        groups: the groups; of an option that several have, the declaration of the last counts.
        unchanged: what is not given stays as it is, in place of the defaults of the groups.
        without: fields that are no options of this call.
    """
    declared: dict[str, Declaration] = {}
    for group in groups:
        declared |= declarations(group)
    for name in without:
        del declared[name]

    def completed(call: _Call) -> _Call:
        signature = inspect.signature(call)
        *parameters, variable_keywords = signature.parameters.values()
        for name, declaration in declared.items():
            parameter = inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=UNCHANGED if unchanged else declaration.default,
                annotation=declaration.accepts,
            )
            parameters.append(parameter)
        signature = signature.replace(parameters=parameters)
        call.__signature__ = signature  # type: ignore[attr-defined] # inspect's own protocol
        options = {name: declaration.accepts for name, declaration in declared.items()}
        call.__annotations__ = {**call.__annotations__, **options}
        del call.__annotations__[variable_keywords.name]
        description, raises, rest = inspect.cleandoc(call.__doc__ or "").partition("\n\nRaises:\n")
        call.__doc__ = description + "\n\n" + section_of(declared) + raises + rest
        return call

    return completed


# Call → its options that people look for in another call. A test compares them with signatures.
PLACES = {
    "Loader": "max_masks mask_select pad_to_max shuffle order bucket_by relations batch_size "
    "threads device io prefetch drop_last pad_last seed timeout max_dropped",
    "open": "mask_format coordinates transform verify_checksums duplicates features cache_dir "
    "cache_size",
    "pack": "image_size fit resample empty samples_per_shard workers md5sums max_rejects",
    "TarDataset": "index_folder cache_dir_size",
}
_CALL_WITH = {name: call for call, names in PLACES.items() for name in names.split()}


@overload
def checks_options(call: _Call, /) -> _Call: ...
@overload
def checks_options(**elsewhere: str) -> Callable[[_Call], _Call]: ...
def checks_options(call: Any = None, /, **elsewhere: str) -> Any:
    """A decorator of what users call: an option that it does not have is an OptionError.

    The message says what is meant, or where the option belongs. On a class, it applies to
    `__init__`, `__call__` and the public methods; it may also decorate a single method.

    Args:
        elsewhere: options of other libraries → what to use here.
    """
    if call is None:
        return functools.partial(checks_options, **elsewhere)
    if not isinstance(call, type):
        return _checked(elsewhere, call, is_method="." in call.__qualname__.rpartition(">.")[2])
    for name, member in list(vars(call).items()):
        if name in ("__init__", "__call__") or not name.startswith("_"):
            if inspect.isfunction(member):
                setattr(call, name, _checked(elsewhere, member, is_method=True))
            elif isinstance(member, classmethod):
                checked = _checked(elsewhere, member.__func__, is_method=True)
                setattr(call, name, classmethod(checked))
    return call


def _checked(
    elsewhere: Mapping[str, str], call: Callable[..., Any], is_method: bool
) -> Callable[..., Any]:
    """The call, preceded by a check of its arguments' number and names."""
    signature = inspect.signature(call)
    parameters = list(signature.parameters.values())[is_method:]
    keyword_only = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    known = keyword_only | {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    most_positional: float = is_method + len(parameters) - len(keyword_only)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        most_positional = inf

    @functools.wraps(call)
    def checked(*args: Any, **options: Any) -> Any:
        if len(args) <= most_positional and known.issuperset(options):
            return call(*args, **options)
        owner = call.__name__
        if is_method:
            cls = args[0] if isinstance(args[0], type) else type(args[0])
            owner = f"{cls.__name__}.{owner}".removesuffix(".__init__")
        if len(args) > most_positional:
            raise OptionError(
                f"{owner} has no place for {brief(args[int(most_positional)])}: give options by "
                f"their names: {', '.join(sorted(keyword_only)) or 'it has none'}"
            )
        unknown = min(options.keys() - known)
        hint = _hint(unknown, known, elsewhere)
        raise OptionError(f"{owner} has no option {brief(unknown)}{hint}")

    checked.__signature__ = signature  # type: ignore[attr-defined] # inspect's own protocol
    return checked


def _hint(unknown: str, known: set[str], elsewhere: Mapping[str, str]) -> str:
    """What to use in place of an option that a call does not have."""
    if unknown in elsewhere:
        return f": use {elsewhere[unknown]}"
    if unknown in _CALL_WITH:
        return f": it is an option of {_CALL_WITH[unknown]}"
    valid = f"valid options: {', '.join(sorted(known)) or 'none'}"
    for near in get_close_matches(unknown, known, 1):
        return f": is {near} meant? {valid}"
    return f"; {valid}"
