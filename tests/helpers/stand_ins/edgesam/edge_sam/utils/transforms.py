"""The size of an image whose longer side is given."""


def stored_size(height: int, width: int, side: int) -> tuple[int, int]:
    scale = side / max(height, width)
    return int(height * scale + 0.5), int(width * scale + 0.5)
