"""Draw the figures of README.md from the measurements in docs/figures/*.json.

`python scripts/make_figures.py` writes docs/figures/chart.svg and the sentences in README.md; with
--picture also docs/figures/sheet.jpg and batch.jpg, of the photographs of the sample tar. After a
new measurement, change the JSON (and docs/performance.md), and run it again: a test compares them.
"""

import argparse
import contextlib
import json
import re
import tempfile
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs/figures"
ORDER = ("packing", "loading", "cold")
WIDTH, BARS, ROW = 440, 290, 37  # as wide as a phone, where the letters stay as large as they are
HIGH, GAP = 460, 8  # of the pictures: pixels of a photograph, and between two
LEAST_AREA = 20_000  # source pixels of a mask in the sheet: smaller ones are specks there
BEGIN, END = "<!-- measured: make_figures.py -->\n", "<!-- end -->\n"


def measured() -> list[dict]:
    """The measurements, in the order of the chart."""
    return [json.loads((FIGURES / f"{name}.json").read_text()) for name in ORDER]


def number(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:g}"


def chart(panels: list[dict]) -> str:
    """The measurements as bars, one panel below the other: SVG on a white ground."""
    parts, y = [], 8
    for panel in panels:
        most = max(line["value"] for line in panel["lines"])
        most = 1.0 if most <= 1 else most
        source = f"{panel['command']}, {panel['date']}"
        parts += [
            f'<text x="12" y="{y + 15}" class="title">{escape(panel["title"])}</text>',
            f'<text x="12" y="{y + 33}" class="source">{escape(source)}</text>',
        ]
        y += 42
        for line in panel["lines"]:
            length = max(2, round(BARS * line["value"] / most))
            kind = "ours" if line.get("ours") else "other"
            text = f"{number(line['value'])} {panel['unit']}"
            parts += [
                f'<text x="12" y="{y + 13}">{escape(line["name"])}</text>',
                f'<rect x="12" y="{y + 18}" width="{length}" height="13" class="{kind}"/>',
                f'<text x="{length + 18}" y="{y + 29}">{escape(text)}</text>',
            ]
            y += ROW
        y += 14
    style = (
        "text{font:14px system-ui,sans-serif;fill:#222}.title{font-weight:600;font-size:15px}"
        ".source{font-size:13px;fill:#667}.ours{fill:#00897b}.other{fill:#9aa5ad}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
        f'height="{y}" role="img">\n<style>{style}</style>\n'
        f'<rect width="{WIDTH}" height="{y}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def summary(panels: list[dict]) -> str:
    """The sentences of README.md on the chart: our value and the best other one."""

    def values(panel: dict) -> tuple[str, str, str]:
        ours = next(line for line in panel["lines"] if line.get("ours"))
        other = next(line for line in panel["lines"] if not line.get("ours"))
        return number(ours["value"]), number(other["value"]), other["name"]

    (pack, usual, way), (share, next_share, peer), (cold, next_cold, cold_peer) = map(
        values, panels
    )
    text = (
        f"Preparing an image with 100 masks takes **{pack} ms** once, in place of {usual} ms "
        f"({way}). A Loader reads samples in memory at **{share} of the speed** of copying their "
        f"bytes (next best: {next_share}, {peer}), and samples on the disk at **{cold} per "
        f"second** (next best: {next_cold}, {cold_peer})."
    )
    return textwrap.fill(text, 124, break_on_hyphens=False) + "\n"


def with_summary(readme: str, text: str) -> str:
    """README.md with what is between the marks replaced."""
    pattern = f"({re.escape(BEGIN)}).*?({re.escape(END)})"
    return re.sub(pattern, lambda found: found[1] + text + found[2], readme, flags=re.S)


def draw_pictures(folder: Path) -> None:
    """The sample tar, which is freely licensed (tests/samples/ATTRIBUTION.md): sheet.jpg, its
    photographs under their masks, boxes and points, as `sa1bpack.show` draws them; and batch.jpg, a
    batch after a pipeline with crops and flips, with points and boxes as prompts."""
    import sa1bpack

    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        sa1bpack.pack(ROOT / "tests/samples/sa_000000.tar", "packed", workers=1, progress=False)
        in_a_row(photographs(), folder / "sheet.jpg")
        in_a_row(prompted(), folder / "batch.jpg")


def photographs() -> list:
    """The stored images under their masks."""
    import sa1bpack
    from sa1bpack.export.drawing import drawn
    from sa1bpack.export.subject import read_subject

    ds = sa1bpack.open("packed", min_area=LEAST_AREA)
    subjects = [read_subject(ds, row, side=1024) for row in range(len(ds))]
    return [
        drawn(one, HIGH, round(HIGH * one.rgb.shape[1] / one.rgb.shape[0]), line=2)
        for one in subjects
    ]


def prompted() -> list:
    """The images of a batch with one prompt per mask: a point, or a box with noise."""
    import torch
    from PIL import Image, ImageDraw

    import sa1bpack
    from sa1bpack.export.drawing import mask_colours

    transforms = sa1bpack.transforms
    ds = sa1bpack.open("packed", mask_format="runs", min_area=LEAST_AREA)
    steps = [transforms.RandomHorizontalFlip(), transforms.RandomResizedCrop(scale=(0.4, 0.8))]
    plain = {"mean": (0, 0, 0), "std": (1, 1, 1)}  # colours as they are stored
    pipeline = transforms.Pipeline(ds, steps, size=HIGH, mask_size=HIGH, **plain)
    prompts = transforms.Prompts({"point": 0.5, "box": 0.5})
    with sa1bpack.Loader(ds, batch_size=3, max_masks=12, mask_select="largest") as loader:
        batch = prompts(pipeline(next(iter(loader))))
    tiles, colours = [], torch.from_numpy(mask_colours(12)).float()
    for k, image in enumerate(batch["images"]):
        rgb = image.permute(1, 2, 0).float()
        for m in range(12):
            mask = batch["masks"][k, m]
            rgb[mask] = 0.55 * rgb[mask] + 0.45 * colours[m]
        tile = Image.fromarray(rgb.round().clamp(0, 255).byte().numpy())
        draw = ImageDraw.Draw(tile)
        for m, kind in enumerate(batch["prompt_kinds"][k].tolist()):
            if kind == 1:
                box = batch["prompt_boxes"][k, m].tolist()
                draw.rectangle(box, outline=tuple(map(int, colours[m].tolist())), width=3)
            elif kind == 0:
                x, y = batch["prompt_points"][k, m, 0].tolist()
                draw.ellipse((x - 6, y - 6, x + 6, y + 6), fill="white", outline="black", width=2)
        tiles.append(tile)
    return tiles


def in_a_row(tiles: list, path: Path) -> None:
    """Write pictures of one height side by side."""
    from PIL import Image

    width = sum(tile.width for tile in tiles) + GAP * (len(tiles) - 1)
    picture = Image.new("RGB", (width, HIGH), "white")
    left = 0
    for tile in tiles:
        picture.paste(tile, (left, 0))
        left += tile.width + GAP
    picture.save(path, quality=82, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--picture", action="store_true", help="draw the photographs as well")
    panels = measured()
    (FIGURES / "chart.svg").write_text(chart(panels))
    readme = ROOT / "README.md"
    readme.write_text(with_summary(readme.read_text(), summary(panels)))
    if parser.parse_args().picture:
        draw_pictures(FIGURES)


if __name__ == "__main__":
    main()
