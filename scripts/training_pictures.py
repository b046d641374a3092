"""The pictures of a run of train_promptable.py: its curves, and masks on images."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from sa1bpack.export.batch_samples import Predictions, subject_of
from sa1bpack.export.drawing import drawn, drawn_panel
from sa1bpack.export.lettering import font
from sa1bpack.export.look import Look

GAP = 10  # pixels between two pictures
# Of predictions.png, in pixels.
TILE_HEIGHT = 340
TITLE_HEIGHT = 30
LETTERS = 20
MASKS_ALONE = Look(boxes=False, points=False)


def read_lines(path: Path) -> list[dict]:
    """The lines of a log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def draw_losses(folder: Path) -> None:
    """Write losses.svg: the loss of every step, and below it the IoU, with that of validation."""
    steps = read_lines(folder / "log.jsonl")
    scores = read_lines(folder / "scores.jsonl")
    losses = [(line["step"], line["loss"]) for line in steps]
    chart = Chart(last=steps[-1]["step"])
    chart.panel("loss", most=1.1 * max(loss for _, loss in losses))
    chart.curve(losses, "#c33")
    chart.panel("mean IoU", most=1.0)
    chart.curve([(line["step"], line["iou"]) for line in steps], "#9bd")
    chart.legend("training", "#69b")
    for name, color in (("iou@1", "#e80"), ("iou@3", "#086")):
        points = [(line["step"], line[name]) for line in scores]
        chart.curve(points, color)
        chart.dots(points, color)
        chart.legend(f"validation, {name}", color)
    chart.write(folder / "losses.svg")


class Chart:
    """Panels of curves over the steps, one below the other: SVG, which needs no library."""

    WIDTH, HEIGHT, LEFT, RIGHT = 640, 150, 56, 16  # of a panel, and its margins
    ABOVE, BELOW = 34, 44  # a panel

    def __init__(self, last: int):
        """last: the step at the right end."""
        self.last = last
        self.parts: list[str] = []
        self.bottom = -self.BELOW  # of the latest panel
        self.most = 1.0  # value at its upper end
        self.legend_left = 0

    def panel(self, title: str, most: float) -> None:
        """Begin a panel whose axis goes from 0 to `most`."""
        top = self.bottom + self.BELOW + self.ABOVE
        self.bottom = top + self.HEIGHT
        self.most = most
        self.legend_left = self.LEFT + 110
        right = self.WIDTH - self.RIGHT
        self.text(self.LEFT, top - 12, title, "#222", weight="bold")
        for value in ticks(most):
            y = self.y(value)
            self.line(self.LEFT, y, right, y, "#ddd" if value else "#444")
            self.text(self.LEFT - 8, y + 4, f"{value:g}", "#444", anchor="end")
        for step in ticks(self.last):
            x = self.x(step)
            self.line(x, self.bottom, x, self.bottom + 5, "#444")
            self.text(x, self.bottom + 20, f"{step:g}", "#444", anchor="middle")
        self.text(right, self.bottom + 36, "step", "#444", anchor="end")

    def x(self, step: float) -> float:
        return self.LEFT + step / self.last * (self.WIDTH - self.LEFT - self.RIGHT)

    def y(self, value: float) -> float:
        return self.bottom - value / self.most * self.HEIGHT

    def curve(self, points: list[tuple[int, float]], color: str) -> None:
        """A line through (step, value), of many points through the means of a hundredth of them."""
        window = max(1, len(points) // 100)
        values = np.convolve([value for _, value in points], np.full(window, 1 / window), "valid")
        steps = [step for step, _ in points[window - 1 :]]
        path = " ".join(
            f"{self.x(step):.1f},{self.y(value):.1f}"
            for step, value in zip(steps, values.tolist(), strict=True)
        )
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        )

    def dots(self, points: list[tuple[int, float]], color: str) -> None:
        """A dot at each (step, value)."""
        for step, value in points:
            x, y = self.x(step), self.y(value)
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>')

    def legend(self, text: str, color: str) -> None:
        """The next entry beside the title of the panel."""
        self.text(self.legend_left, self.bottom - self.HEIGHT - 12, text, color)
        self.legend_left += 36 + 8 * len(text)

    def line(self, x0: float, y0: float, x1: float, y1: float, color: str) -> None:
        self.parts.append(f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{color}"/>')

    def text(
        self, x: float, y: float, text: str, color: str, anchor: str = "start", weight: str = ""
    ) -> None:
        style = f'fill="{color}" text-anchor="{anchor}" font-weight="{weight or "normal"}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{text}</text>')

    def write(self, path: Path) -> None:
        height = self.bottom + self.BELOW
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.WIDTH} {height}" '
            f'width="{self.WIDTH}" height="{height}" font-size="13" font-family="sans-serif">'
        )
        ground = '<rect width="100%" height="100%" fill="#fff"/>'
        path.write_text("\n".join([head, ground, *self.parts, "</svg>"]) + "\n")


def ticks(most: float) -> list[float]:
    """Up to seven round numbers from 0 to at most `most`, evenly spaced."""
    unit = 10.0 ** np.floor(np.log10(most))
    spacing = next(unit * part for part in (0.1, 0.2, 0.5, 1.0) if most / (unit * part) < 7)
    return [round(number * spacing, 10) for number in range(int(most / spacing + 1e-9) + 1)]


def prediction_pictures(
    batch: Mapping[str, Any], predictions: Mapping[str, torch.Tensor], images: int
) -> Image.Image:
    """A row of pictures with the true masks of a batch, and below it a row for each prediction.

    Args:
        batch: a batch that a Pipeline returned, with concatenated masks.
        predictions: title of a row -> logits (T, h, w), which cover the canvas.
        images: how many of the batch are drawn, the first ones.
    """
    indices = range(min(images, len(batch["images"])))
    tiles = [picture_of(batch, index) for index in indices]
    rows = [("true masks", in_a_row(tiles))]
    for title, logits in predictions.items():
        tiles = [picture_of(batch, index, Predictions(logits)) for index in indices]
        rows.append((title, in_a_row(tiles)))
    row_height = TITLE_HEIGHT + TILE_HEIGHT + GAP
    width = max(row.width for _, row in rows)
    sheet = Image.new("RGB", (width, len(rows) * row_height - GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (title, row) in enumerate(rows):
        top = number * row_height
        draw.text((2, top + 2), title, fill=(34, 34, 34), font=font(LETTERS))
        sheet.paste(row, (0, top + TITLE_HEIGHT))
    return sheet


def picture_of(
    batch: Mapping[str, Any], index: int, predictions: Predictions | None = None
) -> Image.Image:
    """An image of a batch under its masks, or under those that were predicted, without padding."""
    subject = subject_of(batch, index, predictions=predictions)
    height, width = batch["input_sizes"][index].tolist()  # of the image on the canvas
    side = round(TILE_HEIGHT * batch["images"].shape[-1] / height)
    if predictions is None:
        canvas = drawn(subject, side, side, look=MASKS_ALONE)
    else:
        canvas = drawn_panel(subject, subject.panels[0], side, side, line=1.0, look=MASKS_ALONE)
    return canvas.crop((0, 0, round(TILE_HEIGHT * width / height), TILE_HEIGHT))


def in_a_row(tiles: Sequence[Image.Image]) -> Image.Image:
    """Pictures of one height side by side."""
    width = sum(tile.width + GAP for tile in tiles) - GAP
    row = Image.new("RGB", (width, tiles[0].height), "white")
    left = 0
    for tile in tiles:
        row.paste(tile, (left, 0))
        left += tile.width + GAP
    return row
