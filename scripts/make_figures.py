"""Draw the figures of README.md from the measurements in docs/figures/*.json.

`python scripts/make_figures.py` writes docs/figures/chart.svg, the sentences in README.md, and the
rows of docs/figures.md on them; with --picture also docs/figures/sheet.jpg and batch.jpg, of the
photographs of the sample tar; with --training it runs the example of docs/training.md, and keeps
its curves and predictions. After a new measurement, change the JSON (and docs/performance.md), and
run it again: a test compares them.
"""

import argparse
import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sa1bpack import Dataset
    from sa1bpack.export.drawing import Picture

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs/figures"
ORDER = ("packing", "loading", "cold")
WIDTH, BARS, ROW = 520, 300, 37  # pixels: of the chart, of its longest bar, and of a row
OTHERS = 5  # other ways in a panel of the chart, the fastest
WIDEST = {"title": 0.7, "source": 0.62, "": 0.62}  # of a character in Verdana or DejaVu Sans, in em
HIGH = 460  # pixels of a crop of batch.jpg
CROP_LINE = 1.5  # pixels of the outlines in a crop
STORED = 1536  # pixels at which photographs are stored and drawn, before they are made smaller
SHEET_WIDTH, TITLES, LETTERS = 1760, 44, 28  # of sheet.jpg, in pixels
SHEET_TITLES = (
    "the photograph",
    "its 90 masks, from their exact outlines",
    "a crop of a batch, with prompts",
)
IN_SHEET = (5, 6)  # image ids
CROPS = {5: 7, 6: 7, 2: 4}  # image id → epoch whose crop is shown
SHARES = (0.003, 0.3)  # of a crop that a mask with a prompt covers, at least and at most
# Of the pictures of docs/pictures.md: masks of an image, and those of them that are valid.
SHOWN_MASKS = 40
SHOWN_PROMPTS = 16
BEGIN, END = "<!-- measured: make_figures.py -->\n", "<!-- end -->\n"


def measured() -> list[dict]:
    """The measurements, in the order of the chart."""
    return [json.loads((FIGURES / f"{name}.json").read_text()) for name in ORDER]


def number(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:g}"


def chart(panels: list[dict]) -> str:
    """The measurements as bars, one panel below the other: SVG on a white ground."""
    parts: list[str] = []
    y = 8
    for panel in panels:
        most = max(line["value"] for line in panel["lines"])
        most = 1.0 if most <= 1 else most
        source = f"{panel['command']}, {panel['date']}"
        parts.append(text_at(12, y + 15, panel["title"], "title"))
        parts.append(text_at(12, y + 33, source, "source"))
        y += 42
        others = [line for line in panel["lines"] if not line.get("ours")]
        left_out = others[OTHERS:]
        for line in panel["lines"]:
            if line in left_out:
                continue
            length = max(2, round(BARS * line["value"] / most))
            kind = "ours" if line.get("ours") else "other"
            parts.append(text_at(12, y + 13, line["name"], ""))
            parts.append(f'<rect x="12" y="{y + 18}" width="{length}" height="13" class="{kind}"/>')
            value = f"{number(line['value'])} {panel['unit']}"
            parts.append(text_at(length + 18, y + 29, value, ""))
            y += ROW
        if left_out:
            text = f"and {len(left_out)} others with less: docs/performance.md"
            parts.append(text_at(12, y + 13, text, "source"))
            y += 20
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


def text_at(x: int, y: int, text: str, kind: str) -> str:
    """A line of text. Raises ValueError if it could leave the picture in a wide fallback font."""
    size = {"title": 15, "source": 13, "": 14}[kind]
    widest = WIDEST[kind] * size * len(text)
    if x + widest > WIDTH:
        raise ValueError(f"{text!r} may be {widest:.0f} pixels wide: shorten it, or widen WIDTH")
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'


def summary(panels: list[dict]) -> str:
    """The sentences of README.md on the chart."""
    packing, loading, cold = panels
    guide, fastest, pack, read = (number(line["value"]) for line in packing["lines"])
    share, peer_share, peer, peers = against_peers(loading)
    speed, peer_speed, cold_peer, cold_peers = against_peers(cold)
    text = (
        f"Without a pack, an image with 100 masks costs {guide} ms of processor time in every "
        "epoch if it is prepared the way guides to SA-1B describe (PIL and pycocotools), or "
        f"{fastest} ms the best way without a pack ({packing['without_pack']}). "
        f"With sa1bpack, it costs **{pack} ms once**, then **{read} ms** in every epoch. "
        f"From memory, a Loader reads samples at **{share} times the speed** of copying their "
        f"bytes (the best of {peers} other ways reaches {peer_share}: {peer}). "
        f"From disk, past the page cache, it reads **{speed} samples per second** (the best of "
        f"{cold_peers} other libraries, which read through it, has {peer_speed}: {cold_peer})."
    )
    return textwrap.fill(text, 124, break_on_hyphens=False) + "\n"


def against_peers(panel: dict) -> tuple[str, str, str, int]:
    """Our first value, the best other one, whose it is, and how many others were measured."""
    ours = next(line for line in panel["lines"] if line.get("ours"))
    others = [line for line in panel["lines"] if not line.get("ours")]
    best = max(others, key=lambda line: line["value"])
    return number(ours["value"]), number(best["value"]), best["name"], len(others)


def origins(panels: list[dict]) -> str:
    """The table of docs/figures.md on the figures of the chart."""
    rows = ["| figure | command | measured | who can repeat it |", "|---|---|---|---|"]
    packing, *loading = panels
    values = [f"{line['name']}: {number(line['value'])} ms" for line in packing["lines"]]
    rows.append(origin(packing, f"{'; '.join(values)} ({packing['without_pack']})"))
    for panel in loading:
        ours, best, name, count = against_peers(panel)
        unit = panel["unit"]
        rows.append(origin(panel, f"{ours} {unit}; the best of {count} others, {name}: {best}"))
    return "\n".join(rows) + "\n"


def origin(panel: dict, values: str) -> str:
    """A row of the table."""
    measured_on = f"{panel['date']}, {panel['machine']}"
    title = panel["title"]
    return f"| {title}: {values} | `{panel['command']}` | {measured_on} | {panel['repeat']} |"


def with_summary(page: str, text: str) -> str:
    """A page with what is between the marks replaced."""
    pattern = f"({re.escape(BEGIN)}).*?({re.escape(END)})"
    return re.sub(pattern, lambda found: found[1] + text + found[2], page, flags=re.S)


def draw_pictures(folder: Path) -> None:
    """Write sheet.jpg and batch.jpg, of the sample tar: tests/samples/ATTRIBUTION.md."""
    from training_pictures import in_a_row

    import sa1bpack

    tar = ROOT / "tests/samples/sa_000000.tar"
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        sa1bpack.pack(tar, "packed", workers=1, image_size=STORED, progress=False)
        ds = sa1bpack.open("packed", mask_format="runs")
        draw_shown(ds, folder)
        draw_sheet(ds, folder / "sheet.jpg")
        crops = [crop_with_prompts(ds, image_id, epoch, HIGH) for image_id, epoch in CROPS.items()]
        save_jpeg(in_a_row(crops), folder / "batch.jpg")


def example() -> list[str]:
    """The options of the complete example of docs/training.md, with which it learns visibly."""
    text = (ROOT / "docs/training.md").read_text().replace("\\\n", "")
    [options] = re.findall(
        r"^python scripts/train_promptable.py (.* --validate-every .*)$", text, re.M
    )
    return shlex.split(options)


def draw_training(folder: Path) -> None:
    """Write losses.svg and predictions.jpg of the example, which takes a minute or two."""
    from PIL import Image

    import sa1bpack

    tar = ROOT / "tests/samples/sa_000000.tar"
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        sa1bpack.pack(tar, "packed", workers=1, progress=False)
        script = ROOT / "scripts/train_promptable.py"
        subprocess.run([sys.executable, str(script), *example()], check=True)
        shutil.copy("run/losses.svg", folder / "losses.svg")
        with Image.open("run/predictions.png") as picture:
            save_jpeg(picture.convert("RGB"), folder / "predictions.jpg")


def draw_sheet(ds: "Dataset", path: Path) -> None:
    """Rows of a photograph, the same under its masks, and a crop with prompts; titles above."""
    from PIL import Image, ImageDraw
    from training_pictures import GAP, MASKS_ALONE, in_a_row

    from sa1bpack.export.drawing import drawn, plain
    from sa1bpack.export.lettering import font
    from sa1bpack.export.subject import Unreadable, read_subject

    rows = []
    lefts: list[int] = []
    for image_id in IN_SHEET:
        subject = read_subject(ds, ds.index_of(image_id))
        if isinstance(subject, Unreadable):
            raise subject.error
        ratio = subject.rgb.shape[1] / subject.rgb.shape[0]
        height = round((SHEET_WIDTH - 2 * GAP) / (2 * ratio + 1))
        width = round(height * ratio)
        photo = plain(subject, height, width)
        masks = drawn(subject, height, width, look=MASKS_ALONE)
        crop = crop_with_prompts(ds, image_id, CROPS[image_id], height)
        rows.append(in_a_row([photo, masks, crop]))
        lefts = lefts or [0, width + GAP, 2 * (width + GAP)]
    sheet_height = TITLES + sum(row.height + GAP for row in rows) - GAP
    sheet = Image.new("RGB", (SHEET_WIDTH, sheet_height), "white")
    draw = ImageDraw.Draw(sheet)
    for left, title in zip(lefts, SHEET_TITLES, strict=True):
        draw.text((left, 2), title, fill=(34, 34, 34), font=font(LETTERS))
    top = TITLES
    for row in rows:
        sheet.paste(row, (0, top))
        top += row.height + GAP
    save_jpeg(sheet, path)


def crop_with_prompts(ds: "Dataset", image_id: int, epoch: int, side: int) -> "Picture":
    """A crop, `side` pixels wide and high, with masks of which each has a point or a box."""
    import sa1bpack
    from sa1bpack.export.batch_samples import subject_of
    from sa1bpack.export.drawing import drawn

    transforms = sa1bpack.transforms
    steps = [transforms.RandomHorizontalFlip(), transforms.RandomResizedCrop(scale=(0.1, 0.3))]
    pipeline = transforms.Pipeline(ds, steps, size=STORED, mask_size=STORED)
    prompts = transforms.Prompts({"point": 0.6, "box": 0.4}, where="interior")
    with sa1bpack.Loader(ds[[ds.index_of(image_id)]], batch_size=1) as loader:
        loader.set_epoch(epoch)
        batch = prompts(pipeline(next(iter(loader))))
    share = batch["masks"].float().mean((2, 3))
    batch["valid"] &= (share > SHARES[0]) & (share < SHARES[1])
    subject = replace(subject_of(batch, 0), ignored=None)  # the other masks are not drawn
    return drawn(subject, side, side, line=CROP_LINE)


def draw_shown(ds: "Dataset", folder: Path) -> None:
    """Write show_large.jpg and show_batch.jpg, what `sa1bpack.show` draws, for docs/pictures.md."""
    import sa1bpack

    transforms = sa1bpack.transforms
    steps = [transforms.RandomHorizontalFlip(), transforms.RandomResizedCrop(scale=(0.3, 0.6))]
    pipeline = transforms.Pipeline(ds, steps, mask_size=STORED // 2, max_valid=SHOWN_PROMPTS)
    prompts = transforms.Prompts({"point": 0.5, "box": 0.3, "mask": 0.2}, where="interior")
    with sa1bpack.Loader(ds, batch_size=len(ds), max_masks=SHOWN_MASKS) as loader:
        batch = prompts(pipeline(next(iter(loader))))
    batch["prompt_points"], batch["prompt_labels"] = with_clicks(batch)
    save_jpeg(sa1bpack.show(batch), folder / "show_batch.jpg")
    sample = ds[ds.index_of(2)]  # whose picture does not name the folder of the pack
    large = sa1bpack.show(sample, large=True, max_masks=SHOWN_MASKS)
    save_jpeg(large, folder / "show_large.jpg")


def with_clicks(batch) -> tuple:
    """Points of the prompts, and for each mask with a point a click outside of it, as a model's
    mistake would have it: here, that it takes the box of the mask for the mask."""
    import torch

    import sa1bpack

    masks = batch["masks"]
    height, width = masks.shape[-2:]
    boxes = batch["boxes_xyxy"] * (height / batch["images"].shape[-1])
    x = torch.arange(width) + 0.5
    y = (torch.arange(height) + 0.5)[:, None]
    x0, y0, x1, y1 = boxes[..., None, None].unbind(2)
    taken_for = (x > x0) & (x < x1) & (y > y0) & (y < y1)
    clicks, labels = sa1bpack.transforms.correction_clicks(
        taken_for,
        masks,
        batch["annotation_ids"],
        where="interior",
        seed=0,
        epoch=0,
        size=tuple(batch["images"].shape[-2:]),
    )
    labels = torch.where(batch["prompt_kinds"][..., None] == 0, labels, -1)
    return (
        torch.cat([batch["prompt_points"], clicks], 2),
        torch.cat([batch["prompt_labels"], labels], 2),
    )


def save_jpeg(picture: "Picture", path: Path) -> None:
    picture.save(path, quality=80, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--picture", action="store_true", help="draw the photographs as well")
    parser.add_argument("--training", action="store_true", help="run the example of training.md")
    options = parser.parse_args()
    panels = measured()
    (FIGURES / "chart.svg").write_text(chart(panels))
    readme = ROOT / "README.md"
    readme.write_text(with_summary(readme.read_text(), summary(panels)))
    page = ROOT / "docs/figures.md"
    page.write_text(with_summary(page.read_text(), origins(panels)))
    if options.picture:
        draw_pictures(FIGURES)
    if options.training:
        draw_training(FIGURES)


if __name__ == "__main__":
    main()
