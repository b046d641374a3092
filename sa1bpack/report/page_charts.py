"""The charts of a report."""

import numpy as np

from sa1bpack.format import Manifest
from sa1bpack.report.chart import bar_chart, histogram_chart
from sa1bpack.report.histogram import histogram, log_histogram
from sa1bpack.report.markup import Markup, element
from sa1bpack.report.survey import Survey
from sa1bpack.wording import counted

_COMMON_SIZES = 8  # the rest are one bar


def charts(manifest: Manifest, mask_counts: np.ndarray, survey: Survey) -> list[Markup]:
    """Histograms of masks per image, areas, predicted IoU, stability, and image sizes."""
    if not mask_counts.size:
        return [element("p", "The pack has no images yet.", class_="faint")]
    figures = [
        _chart(mask_counts, "Masks per image", f"all {counted(len(mask_counts), 'image')}",
               "masks per image", "images")
    ]  # fmt: skip
    if survey.images:
        of = _basis(manifest, survey)
        masks = f"{counted(len(survey.area), 'mask')} of {of}"
        figures.append(_sizes_chart(survey, of))
        if len(survey.area):
            figures += [
                _chart(
                    survey.area, "Mask area", masks, "area in source pixels (log scale)", "masks"
                ),
                _chart(survey.predicted_iou, "Predicted IoU", masks, "predicted IoU", "masks"),
                _chart(
                    survey.stability_score, "Stability score", masks, "stability score", "masks"
                ),
            ]
    return [element("div", *figures, class_="grid")]


def _basis(manifest: Manifest, survey: Survey) -> str:
    """Where the values are from, as text."""
    if survey.images == manifest.samples:
        return f"all {counted(survey.images, 'image')}"
    return (
        f"{survey.images:,} of {counted(manifest.samples, 'image')}, "
        f"in {len(survey.shards):,} of {counted(len(manifest.shards), 'shard')}"
    )


def _chart(values: np.ndarray, title: str, of: str, x_label: str, y_label: str) -> Markup:
    shape = log_histogram(values) if x_label.endswith("(log scale)") else histogram(values)
    form = ",.0f" if shape.whole else ".3f"
    low, middle, high = (format(float(at), form) for at in np.quantile(values, (0, 0.5, 1)))
    note = f"Smallest {low}, median {middle}, largest {high}; {of}."
    if shape.left_out:
        note += f" Not shown: {counted(shape.left_out, 'value')} that the axis cannot show."
    if not shape.counts.any():
        return element("div", element("h3", title), element("p", note), class_="card faint")
    return histogram_chart(shape, title, note, x_label, y_label)


def _sizes_chart(survey: Survey, of: str) -> Markup:
    common = survey.sizes.most_common(_COMMON_SIZES)
    rows = [(f"{width} x {height}", count) for (width, height), count in common]
    others = len(survey.sizes) - len(common)
    if others:
        rows.append(("others", sum(survey.sizes.values()) - sum(count for _, count in common)))
    note = f"Width x height of the source, {counted(len(survey.sizes), 'size')}; {of}."
    return bar_chart(rows, "Image sizes", note, "pixels", "images")
