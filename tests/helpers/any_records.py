"""Annotations of SA-1B with any numbers that a record may have, made by hypothesis."""

from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.sampled_from(
        [1e-05, 0.1 + 0.2, 1e16, 1e22, 123456789012345680.0, 5e-324, 1.7976931348623157e308, -0.0,
         100000.0, 0, 2**53 - 1, 1.0201592445373535]
    ),
)  # fmt: skip
AREAS = st.integers(0, 2**53 - 1) | st.integers(0, 2**50).map(float)
INT64 = st.integers(-(2**63), 2**63 - 1)


def numbers(count: int) -> st.SearchStrategy[list[float]]:
    """Lists of so many numbers."""
    return st.lists(NUMBERS, min_size=count, max_size=count)


def annotations(height: int, width: int, counts: st.SearchStrategy[str]) -> st.SearchStrategy[dict]:
    """Annotations of an image of this size."""
    return st.fixed_dictionaries(
        {
            "bbox": numbers(4),
            "area": AREAS,
            "segmentation": counts.map(lambda text: {"size": [height, width], "counts": text}),
            "predicted_iou": NUMBERS,
            "point_coords": numbers(2).map(lambda point: [point]),
            "crop_box": numbers(4),
            "id": INT64,
            "stability_score": NUMBERS,
        }
    )
