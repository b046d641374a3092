"""Larger tars from a few photographs: the same pictures under other ids, in SA-1B's layout.

    python benchmarks/synthetic.py tests/samples/sa_000000.tar /tmp/sa_big.tar --images 400

Members are in random order, and the stream is gzip under a .tar name, as published. `--masks` sets
the number of annotations per image, by repeating or dropping some; SA-1B has about 100.
"""

import argparse
import gzip
import io
import json
import random
import tarfile
from pathlib import Path


def make_tar(
    sources, out, images: int, masks: int | None = 100, seed: int = 0, level: int = 1
) -> None:
    """Write a gzip tar of `images` pairs cycled from the pairs of `sources`.

    Args:
        level: of gzip; 0 does not compress.
    """
    pairs = [pair for source in sources for pair in _read_pairs(source)]
    members = []
    for number in range(images):
        jpeg, record = pairs[number % len(pairs)]
        members += [(number + 1, "jpg", jpeg), (number + 1, "json", record)]
    random.Random(seed).shuffle(members)
    with (
        gzip.open(out, "wb", compresslevel=level) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
    ):
        root = tarfile.TarInfo("./")
        root.type = tarfile.DIRTYPE
        tar.addfile(root)
        for image_id, suffix, content in members:
            data = content if suffix == "jpg" else _renamed(content, image_id, masks)
            info = tarfile.TarInfo(f"./sa_{image_id}.{suffix}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _read_pairs(source) -> list[tuple[bytes, dict]]:
    halves: dict[str, dict[str, bytes]] = {}
    with tarfile.open(source) as tar:
        for member in tar:
            if member.isfile():
                path = Path(member.name)
                halves.setdefault(path.stem, {})[path.suffix] = tar.extractfile(member).read()
    return [(pair[".jpg"], json.loads(pair[".json"])) for _, pair in sorted(halves.items())]


def _renamed(record: dict, image_id: int, masks: int | None) -> bytes:
    annotations = record["annotations"]
    if masks is not None and annotations:
        annotations = [annotations[k % len(annotations)] for k in range(masks)]
    image = record["image"] | {"image_id": image_id, "file_name": f"sa_{image_id}.jpg"}
    return json.dumps({"image": image, "annotations": annotations}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="+", help="tars to take pairs from")
    parser.add_argument("out", help="tar to write")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--masks", type=int, default=100)
    options = parser.parse_args()
    make_tar(options.source, options.out, options.images, options.masks)


if __name__ == "__main__":
    main()
