"""The settings that were compared, as a picture: a bar for the median, a line for the range."""

from pathlib import Path

from sa1bpack.measuring.sweep import Line, Sweep
from sa1bpack.measuring.tune import TuneResult
from sa1bpack.report.lettering import font, plain_text, shortened, write_right
from sa1bpack.report.output import write_png
from sa1bpack.report.pil import Image, ImageDraw
from sa1bpack.wording import size_text

_WIDTH, _LEFT, _RIGHT, _ROW, _MARGIN = 1000, 420, 790, 22, 16
_TEXT, _LETTERS = 14, (30, 30, 30)
_PAPER, _BAR, _CHOSEN, _RANGE = (255, 255, 255), (160, 185, 215), (40, 110, 190), (20, 20, 20)


def write_plot(result: TuneResult, path: Path) -> None:
    """Write a PNG. Raises OSError."""
    rows = sum(len(one.lines) + 2 for one in result.sweeps) + 2
    picture = Image.new("RGB", (_WIDTH, rows * _ROW + 2 * _MARGIN), _PAPER)
    draw = ImageDraw.Draw(picture)
    letters = font(_TEXT)
    fastest = max(max(line.speeds, default=0.0) for s in result.sweeps for line in s.lines)
    y = _MARGIN
    title = shortened(plain_text(f"{result.task.pack}: samples/s"), letters, _WIDTH - 2 * _MARGIN)
    draw.text((_MARGIN, y), title, fill=_LETTERS, font=letters)
    for one in result.sweeps:
        y += 2 * _ROW
        head = plain_text(f"{one.name}: {one.verdict}")
        draw.text((_MARGIN, y), head, fill=_LETTERS, font=letters)
        for line in one.lines:
            y += _ROW
            _draw(draw, one, line, y, fastest)
    write_png(picture, path)


def _draw(draw: ImageDraw.ImageDraw, one: Sweep, line: Line, y: int, fastest: float) -> None:
    letters = font(_TEXT)
    name = shortened(plain_text(line.setting.short()), letters, _LEFT - 2 * _MARGIN - 10)
    draw.text((_MARGIN + 10, y), name, fill=_LETTERS, font=letters)
    if not line.speeds:
        draw.text((_LEFT, y), "does not run", fill=_LETTERS, font=letters)
        return

    def at(speed: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * speed / max(fastest, 1e-9)

    middle = y + _TEXT // 2 + 1
    colour = _CHOSEN if line is one.chosen else _BAR
    draw.rectangle((_LEFT, y + 1, max(at(line.speed), _LEFT), y + _TEXT + 1), fill=colour)
    draw.line((at(min(line.speeds)), middle, at(max(line.speeds)), middle), fill=_RANGE, width=2)
    write_right(draw, _RIGHT + 80, y, f"{line.speed:,.0f}", fill=_LETTERS, font=letters)
    if line.host_bytes is not None:
        memory = size_text(line.host_bytes + line.device_bytes)
        write_right(draw, _WIDTH - _MARGIN, y, memory, fill=_LETTERS, font=letters)
