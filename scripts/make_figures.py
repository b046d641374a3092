"""Draw the figures of README.md from the measurements in docs/figures/*.json.

`python scripts/make_figures.py` writes docs/figures/chart.svg and the sentences in README.md; with
--picture also docs/figures/sheet.jpg, the photographs of the sample tar. After a new measurement,
change the JSON (and docs/performance.md), and run it again: a test compares them.
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
WIDTH, NAMES, BARS, ROW = 760, 290, 340, 19
HIGH, GAP = 300, 8  # of the picture: pixels of a photograph, and between two
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
        parts.append(
            f'<text x="12" y="{y + 15}" class="title">{escape(panel["title"])}'
            f'<tspan class="source" dx="10">{escape(source)}</tspan></text>'
        )
        y += 24
        for line in panel["lines"]:
            length = max(2, round(BARS * line["value"] / most))
            kind = "ours" if line.get("ours") else "other"
            middle = y + ROW / 2 + 4
            text = f"{number(line['value'])} {panel['unit']}"
            parts += [
                f'<text x="{NAMES - 8}" y="{middle:g}" class="name">{escape(line["name"])}</text>',
                f'<rect x="{NAMES}" y="{y + 3}" width="{length}" height="{ROW - 6}" '
                f'class="{kind}"/>',
                f'<text x="{NAMES + length + 6}" y="{middle:g}">{escape(text)}</text>',
            ]
            y += ROW
        y += 10
    style = (
        "text{font:13px system-ui,sans-serif;fill:#222}.title{font-weight:600;font-size:14px}"
        ".source{font-weight:400;font-size:12px;fill:#667}.name{text-anchor:end}.ours{fill:#00897b}.other{fill:#9aa5ad}"
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


def draw_picture(path: Path) -> None:
    """The sample tar, which is freely licensed (tests/samples/ATTRIBUTION.md): its photographs
    under their masks, boxes and points, as `sa1bpack.show` draws them, at one height in a row."""
    from PIL import Image

    import sa1bpack
    from sa1bpack.export.drawing import drawn
    from sa1bpack.export.subject import read_subject

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sa1bpack.pack(ROOT / "tests/samples/sa_000000.tar", "packed", workers=1, progress=False)
        ds = sa1bpack.open("packed")
        subjects = [read_subject(ds, row, side=1024) for row in range(len(ds))]
        tiles = [
            drawn(one, HIGH, round(HIGH * one.rgb.shape[1] / one.rgb.shape[0])) for one in subjects
        ]
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
        draw_picture(FIGURES / "sheet.jpg")


if __name__ == "__main__":
    main()
