"""Draw the figures of README.md from the measurements in docs/figures/*.json.

`python scripts/make_figures.py` writes docs/figures/chart.svg and the table in README.md; with
--picture also docs/figures/sheet.jpg, a contact sheet of the sample tar. After a new measurement,
change the JSON (and docs/performance.md), and run it again: a test compares them.
"""

import argparse
import contextlib
import json
import re
import tempfile
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs/figures"
ORDER = ("packing", "loading", "cold")
WIDTH, NAMES, BARS, ROW = 880, 300, 460, 24
HEADING = 52  # pixels of a contact sheet above its pictures
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
        parts.append(f'<text x="12" y="{y + 18}" class="title">{escape(panel["title"])}</text>')
        y += 30
        for line in panel["lines"]:
            length = max(2, round(BARS * line["value"] / most))
            kind = "ours" if line.get("ours") else "other"
            middle = y + ROW / 2 + 4
            text = f"{number(line['value'])} {panel['unit']}"
            parts += [
                f'<text x="{NAMES - 8}" y="{middle:g}" class="name">{escape(line["name"])}</text>',
                f'<rect x="{NAMES}" y="{y + 4}" width="{length}" height="{ROW - 8}" '
                f'class="{kind}"/>',
                f'<text x="{NAMES + length + 6}" y="{middle:g}">{escape(text)}</text>',
            ]
            y += ROW
        y += 14
    style = (
        "text{font:13px system-ui,sans-serif;fill:#222}.title{font-weight:600;font-size:14px}"
        ".name{text-anchor:end}.ours{fill:#00897b}.other{fill:#9aa5ad}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
        f'height="{y}" role="img">\n<style>{style}</style>\n'
        f'<rect width="{WIDTH}" height="{y}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def table(panels: list[dict]) -> str:
    """What the chart shows in a sentence per panel, as the table of README.md."""
    rows = ["| | sa1bpack | next best or usual | measured |", "|---|---|---|---|"]
    for panel in panels:
        ours = next(line for line in panel["lines"] if line.get("ours"))
        other = next(line for line in panel["lines"] if not line.get("ours"))
        rows.append(
            f"| {panel['title']} | **{number(ours['value'])} {panel['unit']}** "
            f"| {number(other['value'])} {panel['unit']} ({other['name']}) "
            f"| {panel['date']}, `{panel['command']}` |"
        )
    return "\n".join(rows) + "\n"


def with_table(readme: str, rows: str) -> str:
    """README.md with its table between the marks replaced."""
    pattern = f"({re.escape(BEGIN)}).*?({re.escape(END)})"
    return re.sub(pattern, lambda found: found[1] + rows + found[2], readme, flags=re.S)


def draw_picture(path: Path) -> None:
    """A contact sheet of the sample tar, which is freely licensed: tests/samples/ATTRIBUTION.md."""
    import sa1bpack

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sa1bpack.pack(ROOT / "tests/samples/sa_000000.tar", "packed", workers=1, progress=False)
        picture = sa1bpack.show("packed", samples=3)
    picture = picture.crop((0, HEADING, picture.width, picture.height))  # without its path
    width = 1200
    picture = picture.resize((width, round(picture.height * width / picture.width)))
    picture.save(path, quality=82, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--picture", action="store_true", help="draw the contact sheet as well")
    panels = measured()
    (FIGURES / "chart.svg").write_text(chart(panels))
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text(), table(panels)))
    if parser.parse_args().picture:
        draw_picture(FIGURES / "sheet.jpg")


if __name__ == "__main__":
    main()
