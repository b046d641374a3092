"""Malicious JSON records; invalid ones are in test_parse_annotations.py."""

import json

import pytest
from system import peak_growth

from sa1bpack.errors import AnnotationError
from sa1bpack.source.annotations import parse_annotations

PROGRAM = """
from sa1bpack.errors import AnnotationError
size = 16 << 20
image = b'{"image_id": 1, "width": 1, "height": 1, "file_name": "sa_1.jpg"}'
mask = (
    b'{"bbox":[1,2,3,4.5],"area":1,"segmentation":{"size":[1,1],"counts":"1"},"id":1,'
    b'"predicted_iou":0.5,"point_coords":[[1.5,1.5]],"crop_box":[0,0,1,1.5],"stability_score":1'
)
many = size // len(mask)
cases = {
    "lists under an unknown key": (lambda: b'],"x":[' + b'[],' * (size // 3) + b'[]]}', True),
    "objects under an unknown key": (lambda: b'],"x":[' + b'{},' * (size // 3) + b'{}]}', True),
    "a number of very many digits": (lambda: mask + b',"area":' + b'7' * size + b'}]}', False),
    "an id that is a list": (lambda: mask + b',"id":[' + b'1,' * (size // 2) + b'1]}]}', False),
    "very many masks": (lambda: b','.join([mask + b'}'] * many) + b']}', False),
    "masks, and a number": (lambda: b','.join([mask + b'}'] * many) + b',3]}', False),
    "masks with an unknown key": (lambda: b','.join([mask + b',"u":1}'] * many) + b']}', False),
}
for name, (make, valid) in cases.items():
    data = b'{"image":' + image + b',"annotations":[' + make()
    try:
        parse_annotations(data)
        assert valid, name
    except AnnotationError as error:
        assert not valid and len(str(error)) < 500, (name, str(error)[:500])
"""


def test_records_of_the_largest_size_take_a_bounded_multiple_of_it():
    """The worst cases of 16 MB; the limit includes the record itself and its parts."""
    imports = "sa1bpack.source; from sa1bpack.source.annotations import parse_annotations"
    assert peak_growth(PROGRAM, imports=imports) < 350


def test_a_record_of_the_most_masks_is_read(record):
    """Refusing one more is tested in test_rejects.py."""
    found = record()
    found["annotations"] *= 10_000
    assert len(parse_annotations(json.dumps(found).encode())) == 10_000


@pytest.mark.parametrize("digits", [20, 400, 4300, 100_000])
@pytest.mark.parametrize("field", ["id", "area", "predicted_iou", "size"])
def test_integers_of_any_length_are_refused_with_a_short_message(record, field, digits):
    text = json.dumps(record(id=-1, area=-2, predicted_iou=-3))
    number = "7" * digits
    places = {"id": "-1", "area": "-2", "predicted_iou": "-3", "size": "[10"}
    text = text.replace(places[field], ("[" if field == "size" else "") + number, 1)
    with pytest.raises(AnnotationError) as caught:
        parse_annotations(text.encode())
    assert len(str(caught.value)) < 400


def test_the_first_of_many_unknown_keys_are_reported_safe_to_print(record):
    keys = {f"k{n:04}": n for n in range(1000)}
    found = parse_annotations(json.dumps(record() | keys | {"\x1b[2J": 1}).encode())
    assert "'\\x1b[2J'" in found.images[0].unknown_keys
    assert found.images[0].unknown_keys == {f"k{n:04}" for n in range(63)} | {"'\\x1b[2J'", "..."}


def test_every_depth_of_nesting_is_read_or_refused(record):
    """Any of several calls may hit the parser's recursion limit; all must handle it."""
    place = json.dumps(record()).replace('"area": 5', '"area": @')
    outcomes = set()
    for depth in (*range(1, 60), *range(700, 1100), 5000):
        for text in (place, json.dumps(record())[:-1] + ', "x": @}'):
            data = text.replace("@", "[" * depth + "]" * depth).encode()
            try:
                parse_annotations(data)
                outcomes.add("read")
            except AnnotationError as error:
                outcomes.add(str(error).rpartition("; ")[0][-60:][:20])
    assert "read" in outcomes and len(outcomes) > 2
