"""Claims about JSON records, compared with json.loads."""

import json

import numpy as np
import pytest
from any_records import INT64, annotations
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.errors import AnnotationError
from sa1bpack.source.annotations import parse_annotations


def parse(record):
    return parse_annotations(json.dumps(record).encode())


def rebuild(annotations):
    """The record, including its number types, from the arrays alone."""
    [entry] = annotations.images
    masks = []
    numbers = annotations.numbers
    names = ("bbox", "area", "predicted_iou", "point_coords", "crop_box", "stability_score")
    table = np.column_stack([numbers[name] for name in names])
    for i in range(len(annotations)):
        bits = int(annotations.number_types[i])
        values = [int(value) if bits >> k & 1 else float(value) for k, value in enumerate(table[i])]
        start, end = annotations.counts_offset[i : i + 2]
        masks.append(
            {
                "bbox": values[0:4],
                "area": values[4],
                "segmentation": {
                    "size": [entry.height, entry.width],
                    "counts": annotations.counts_text[start:end].tobytes().decode("ascii"),
                },
                "predicted_iou": values[5],
                "point_coords": [values[6:8]],
                "crop_box": values[8:12],
                "id": int(numbers["annotation_id"][i]),
                "stability_score": values[12],
            }
        )
    image = {
        "image_id": entry.image_id,
        "width": entry.width,
        "height": entry.height,
        "file_name": entry.file_name,
    }
    return {"image": image, "annotations": masks}


def same(left, right):
    """Whether values and number types are equal."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


@st.composite
def records(draw):
    """Any valid record."""
    height, width = draw(st.integers(1, 40_000)), draw(st.integers(1, 40_000))
    ascii_text = st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=30)
    image = {"image_id": draw(INT64), "width": width, "height": height}
    image["file_name"] = draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    masks = st.lists(annotations(height, width, ascii_text), max_size=4)
    return {"image": image, "annotations": draw(masks)}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(record=records(), ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_any_valid_record_round_trips_with_digits_and_number_types(record, ascii_only, indent):
    data = json.dumps(record, ensure_ascii=ascii_only, indent=indent).encode()
    assert same(rebuild(parse_annotations(data)), json.loads(data))


def test_keys_that_sa1b_does_not_have_are_reported_and_the_rest_is_kept(record):
    extra = record(uncertain_iou=0.5)
    extra["info"] = {"version": 1}
    extra["image"]["license"] = "x"
    extra["annotations"][0]["segmentation"]["format"] = "rle"
    annotations = parse(extra)
    assert annotations.images[0].unknown_keys == {
        "info", "image.license", "annotations.uncertain_iou", "annotations.segmentation.format",
    }  # fmt: skip
    assert same(rebuild(annotations), rebuild(parse(record())))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bbox": [1, 2, 3]}, "bbox: Expected `array` of length 4, found [1, 2, 3]"),
        ({"bbox": [1, 2, "3", 4]}, "bbox[2]: Expected `int | float`, got `str`, found '3'"),
        ({"predicted_iou": None}, "predicted_iou: Expected `int | float`, got `null`, found None"),
        (
            {"stability_score": True},
            "stability_score: Expected `int | float`, got `bool`, found True",
        ),
        ({"point_coords": []}, "point_coords: Expected `array` of length 1, found []"),
        ({"point_coords": [[1, 2], [3, 4]]}, "point_coords: Expected `array` of length 1"),
        ({"area": -1}, "area is -1, not a whole number"),
        ({"area": 5.5}, "area is 5.5, not a whole number"),
        ({"area": 2**53}, "area is the integer 9007199254740992, beyond 2^53 - 1"),
        ({"bbox": [1, 2**53 + 1, 3, 4]}, "bbox[1] is the integer 9007199254740993, beyond"),
        ({"point_coords": [[1, 10**400]]}, "point_coords[0][1] is the integer 1000"),
        ({"id": 2**63}, "id: Expected `int` <= 9223372036854775807"),
        ({"id": 5.0}, "id: Expected `int`, got `float`, found 5.0"),
        ({"segmentation": {"size": [20, 10], "counts": "a"}}, "size is [20, 10], but the image"),
        ({"segmentation": {"size": [10, 20]}}, "missing required field `counts`"),
        (
            {"segmentation": {"size": [10, 20], "counts": [3, 4]}},
            "got `array`, found [3, 4]; this is an uncompressed run-length mask: compress it",
        ),
        (
            {"segmentation": {"size": [10, 20], "counts": "aé"}},
            r"has non-ASCII characters, as in 'a\xe9'",
        ),
    ],
)
def test_a_bad_field_is_named_with_its_annotation_and_value(record, fields, message):
    bad = record()
    bad["annotations"].append(bad["annotations"][0] | {"id": 77} | fields)
    with pytest.raises(AnnotationError) as caught:
        parse(bad)
    assert message in str(caught.value)
    mask_id = fields.get("id", 77)
    assert f"annotation 1 (id {mask_id!r}): " in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 0}, "image.width: Expected `int` >= 1, found 0"),
        ({"height": 2**31}, "image.height: Expected `int` <= 2147483647"),
        ({"width": 65536, "height": 32768}, "65536 x height 32768 is more than 2147483647"),
        ({"image_id": 2**63}, "image.image_id: Expected `int` <= 9223372036854775807"),
        ({"file_name": None}, "image.file_name: Expected `str`, got `null`, found None"),
        ({"file_name": "x" * 1_000_000}, "image.file_name: Expected `str` of length <= 255"),
    ],
)
def test_a_bad_field_of_the_image_is_named_with_its_value(record, fields, message):
    bad = record()
    bad["image"] |= fields
    with pytest.raises(AnnotationError) as caught:
        parse(bad)
    assert message in str(caught.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "0x10", "01", ".5"])
def test_an_invalid_json_number_is_an_error(record, number):
    text = json.dumps(record()).replace('"stability_score": 0.99', f'"stability_score": {number}')
    assert number in text
    said = r"malformed|stability_score: Number out of"
    if number.lstrip("-").isalpha():
        said = rf"the number at byte \d+ is {number}, which JSON does not have"
    with pytest.raises(AnnotationError, match=said):
        parse_annotations(text.encode())
