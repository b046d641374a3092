"""Lists of numbers in JSON, compared with Python's json."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sa1bpack.source.number_lists import number_lists

DIGITS = st.text("0123456789", max_size=22)
WHOLE = st.one_of(st.just("0"), st.builds("{}{}".format, st.sampled_from("123456789"), DIGITS))
DECIMALS = st.one_of(st.just(""), DIGITS.map(lambda digits: f".{digits}0"), st.just(".5"))
EXPONENTS = st.sampled_from(["", "", "", "e0", "E-5", "e+17", "e-320"])
SPELLED = st.builds("{}{}{}{}".format, st.sampled_from(["", "-"]), WHOLE, DECIMALS, EXPONENTS)
# As programs write numbers: rounded, or all digits of a float.
WRITTEN = st.one_of(
    st.integers(-(10**6), 10**6).map(lambda hundredths: repr(hundredths / 100)),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)
SPACE = st.sampled_from(["", "", " ", "\n ", "\t", "\r"])
LISTS = st.lists(st.lists(st.one_of(SPELLED, WRITTEN), max_size=8), max_size=5)


def texts_of(lists: list[list[str]], space: str) -> list[msgspec.Raw]:
    return [
        msgspec.Raw(f"{space}[{space}{f'{space},{space}'.join(numbers)}{space}]{space}".encode())
        for numbers in lists
    ]


@given(LISTS, SPACE)
@example([["9007199254740992", "9007199254740993", "-0", "-0.0", "0.1"]], "")
@example([["-0", "-0.0", "0", "-1"]], "")
@example([[], ["702.1057499999998", "239.97000000000003"], []], " ")
def test_numbers_are_those_of_python(lists, space):
    values, offset = number_lists(texts_of(lists, space))
    expected = [float(json.loads(number)) for numbers in lists for number in numbers]
    assert values.tobytes() == np.array(expected, np.float64).tobytes()
    assert offset.tolist() == np.cumsum([0, *map(len, lists)]).tolist()


@pytest.mark.parametrize(
    "text", ["1", "[1, null]", '["1"]', "[[1, 2]]", "{}", "null", "[true]", "[1e999]", '"["']
)
@pytest.mark.parametrize("others", [[], ["[1, 2]"]])
def test_what_is_no_list_of_numbers_is_refused(text, others):
    for texts in ([text, *others], [*others, text]):
        with pytest.raises(msgspec.MsgspecError):
            number_lists([msgspec.Raw(one.encode()) for one in texts])
