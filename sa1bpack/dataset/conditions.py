"""The language of conditions: what `Dataset.where` and `Dataset.where_masks` understand as text.

::

    mask_count >= 10                                  of images
    max(area) > 100000 & height < 1600
    area > 1000 & phrase.present & depth == 0         of masks
    ~(phrase == "sky" | bbox.w < 16)

A comparison is a name, a sign and a constant; the name of a feature alone says that its row is
there. `~` (not) binds tighter than `&` (and), which binds tighter than `|` (or), and a comparison
tighter than all of them. Nothing is evaluated as code: names and signs are looked up in tables.
"""

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import Any

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.wording import brief

SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
# How the values of a sample's masks become one value; a sample without any has 0.
REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}
PRESENT = "present"  # the part of a feature that says whether its row is there
MAX_TERMS = 1000  # names, signs, constants and parentheses of a condition
_MAX_DEPTH = 50  # of parentheses and "~"
_EXACT = 1 << 53  # below, a float is the whole number that it stands for

_NUMBER = r"[-+]?[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?"
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>{_NUMBER})(?![\w.])|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)"
    rf"|(?P<text>\"[^\"]*\"|'[^']*')|(?P<sign>{'|'.join(SIGNS)})|(?P<mark>[()&|~]))"
)


@dataclass(frozen=True)
class Operand:
    """What is compared: "area", "bbox.w", "max(area)" or "phrase.present".

    Attributes:
        name: name of a number, a column, a feature or a relation.
        part: what follows the dot; "" for none.
        reduce: how the numbers of masks become one of a sample, a key of REDUCTIONS; None: they do
            not.
    """

    name: str
    part: str = ""
    reduce: str | None = None

    def __str__(self) -> str:
        text = self.name
        if self.part:
            text = f"{text}.{self.part}"
        if self.reduce is not None:
            text = f"{self.reduce}({text})"
        return text


# Values (k,) of what is compared, one for each sample or mask.
Values = Callable[[Operand], np.ndarray]
# bool (k,): which of these values are there; None: all of them.
Presence = Callable[[Operand], np.ndarray | None]


def all_present(_operand: Operand) -> None:
    """The presence of values of which none is missing."""


class Condition(ABC):
    """A condition of samples or masks, as it was parsed."""

    @abstractmethod
    def operands(self) -> Iterator[Operand]:
        """What the condition compares, in the order of its text."""

    @abstractmethod
    def holds(self, values: Values, presence: Presence = all_present) -> np.ndarray:
        """bool (k,): which of k samples or masks fulfil it, with the values of its operands.

        A value that is missing fulfils no comparison.

        Raises OptionError for a comparison of text with a number, or the reverse.
        """


@dataclass(frozen=True)
class Comparison(Condition):
    """A value compared with a constant; without a sign, whether a row is there, a bool."""

    operand: Operand
    sign: str = ""
    constant: int | float | str = True

    def operands(self) -> Iterator[Operand]:
        """The one that it compares."""
        yield self.operand

    def holds(self, values: Values, presence: Presence = all_present) -> np.ndarray:
        """See Condition."""
        compared = values(self.operand)
        if not self.sign:
            return compared
        constant: object = self.constant
        is_text = compared.dtype.kind in "OSUT"
        if is_text != isinstance(constant, str):
            kind = "text" if is_text else "a number"
            raise OptionError(f"{self.operand} is {kind}: compare it with {kind}, not {constant!r}")
        if isinstance(constant, str):
            if self.sign not in ("==", "!="):
                raise OptionError(f"{self.operand} is text: compare it by == or !=")
            if compared.dtype.kind == "S":
                constant = np.bytes_(constant.encode())
        with np.errstate(over="ignore"):  # of a constant beyond a small type, which is infinite
            fulfilled: np.ndarray = SIGNS[self.sign](compared, constant)
        fulfilled = fulfilled.astype(np.bool_, copy=False)
        present = presence(self.operand)
        return fulfilled if present is None else fulfilled & present


@dataclass(frozen=True)
class Not(Condition):
    """A condition that must not hold."""

    inner: Condition

    def operands(self) -> Iterator[Operand]:
        """Those of what must not hold."""
        return self.inner.operands()

    def holds(self, values: Values, presence: Presence = all_present) -> np.ndarray:
        """See Condition."""
        return ~self.inner.holds(values, presence)


@dataclass(frozen=True)
class Joined(Condition):
    """Several conditions: all of them hold ("&"), or one of them ("|")."""

    mark: str
    parts: tuple[Condition, ...]

    def operands(self) -> Iterator[Operand]:
        """Those of all parts."""
        for part in self.parts:
            yield from part.operands()

    def holds(self, values: Values, presence: Presence = all_present) -> np.ndarray:
        """See Condition."""
        fulfilled = self.parts[0].holds(values, presence)
        for part in self.parts[1:]:
            other = part.holds(values, presence)
            fulfilled = fulfilled & other if self.mark == "&" else fulfilled | other
        return fulfilled


def parse_condition(text: str, option: str = "where") -> Condition:
    """The condition that a text says, in which any name may stand.

    Args:
        text: the condition.
        option: name of the argument, for messages.

    Raises:
        OptionError: the text is not a condition.
    """
    try:
        text.encode()
    except UnicodeEncodeError:  # as the shell's arguments in a locale without UTF-8
        raise OptionError(
            f"{option} is {brief(text)}, which is not text in this locale: set PYTHONUTF8=1"
        ) from None
    tokens = _tokens(text)
    if tokens is None or not 0 < len(tokens) <= MAX_TERMS:
        raise _not_a_condition(text, option)
    parser = _Parser(tokens)
    try:
        condition = parser.any_of()
    except (_Unexpected, IndexError):
        raise _not_a_condition(text, option) from None
    if parser.position != len(tokens):
        raise _not_a_condition(text, option)
    return condition


def _not_a_condition(text: str, option: str) -> OptionError:
    example = "'mask_count >= 10' or 'max(area) > 100000'"
    if option == "where_masks":
        example = "'area > 1000' or 'bbox.w >= 16 & depth == 0'"
    return OptionError(
        f"{option} is {brief(text)}: write NAME SIGN NUMBER, such as {example}; a sign is one of "
        f"{' '.join(SIGNS)}; of features also NAME == 'text' and NAME.present; & (and), "
        "| (or), ~ (not) and parentheses join conditions"
    )


def _tokens(text: str) -> list[tuple[str, str]] | None:
    """The kind and the text of each token, and None for a text that has something else."""
    text = text.rstrip()
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None or len(tokens) > MAX_TERMS:
            return None
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return tokens


class _Unexpected(Exception):
    """A token that cannot stand where it does."""


def _number_of(text: str) -> int | float:
    """The number that a text is: an int if it is whole, which columns of int64 are compared with.

    Raises _Unexpected for one beyond all floats.
    """
    digits = text.replace("_", "")
    value = float(digits)
    if not isfinite(value):
        raise _Unexpected
    if not value.is_integer():
        return value
    if abs(value) < _EXACT:  # what is lost of the digits does not matter beside whole numbers
        return int(value)
    exact = Decimal(digits)
    return int(exact) if exact == exact.to_integral_value() else value


class _Parser:
    """A parser of tokens by recursive descent, one method per level of binding."""

    def __init__(self, tokens: list[tuple[str, str]]):
        self._tokens = tokens
        self.position = 0
        self._depth = 0

    def any_of(self) -> Condition:
        """Conditions with "|" between them."""
        return self._joined("|", self._all_of)

    def _all_of(self) -> Condition:
        return self._joined("&", self._factor)

    def _joined(self, mark: str, part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self._takes("mark", mark):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        return Joined(mark, tuple(parts))

    def _factor(self) -> Condition:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _Unexpected
        if self._takes("mark", "~"):
            condition: Condition = Not(self._factor())
        elif self._takes("mark", "("):
            condition = self.any_of()
            self._expect("mark", ")")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> Condition:
        operand = self._operand()
        if not self._is_next("sign"):
            if operand.part or operand.reduce is not None:
                return Comparison(operand)
            return Comparison(Operand(operand.name, PRESENT))
        sign = self._expect("sign")
        if self._is_next("text"):
            return Comparison(operand, sign, self._expect("text")[1:-1])
        return Comparison(operand, sign, _number_of(self._expect("number")))

    def _operand(self) -> Operand:
        name = self._expect("name")
        reduce = None
        if name in REDUCTIONS and self._takes("mark", "("):
            reduce = name
            name = self._expect("name")
            self._expect("mark", ")")
        name, _, part = name.partition(".")
        return Operand(name, part, reduce)

    def _is_next(self, kind: str, text: str | None = None) -> bool:
        if self.position == len(self._tokens):
            return False
        next_kind, next_text = self._tokens[self.position]
        return next_kind == kind and text in (None, next_text)

    def _takes(self, kind: str, text: str) -> bool:
        """Take the next token if it is this one."""
        if not self._is_next(kind, text):
            return False
        self.position += 1
        return True

    def _expect(self, kind: str, text: str | None = None) -> str:
        """The text of the next token, which is taken. Raises _Unexpected for another one."""
        if not self._is_next(kind, text):
            raise _Unexpected
        self.position += 1
        return self._tokens[self.position - 1][1]
