"""What the documents show works: Python runs, commands parse, links lead somewhere."""

import ast
import importlib.util
import json
import re
import shlex
import shutil
import tarfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from frameworks import has_torchvision
from PIL import Image
from pycocotools import mask as coco

import sa1bpack
from sa1bpack.cli.arguments import parse

REPOSITORY = Path(__file__).parent.parent
NAMES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
DOCUMENTS = [REPOSITORY / name for name in NAMES]
DOCUMENTS += [*sorted((REPOSITORY / "docs").rglob("*.md")), REPOSITORY / "docs/llms.txt"]


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.S | re.M)


WITH_PYTHON = [path for path in DOCUMENTS[1:] if blocks(path, "python")]


@pytest.fixture(scope="module")
def sample_pack(tmp_path_factory, sample_tar):
    """Folder of a pack of the sample tar."""
    folder = tmp_path_factory.mktemp("docs") / "packed"
    sa1bpack.pack(sample_tar, folder, workers=1)
    return folder


@pytest.fixture
def folder(tmp_path, sample_tar, monkeypatch):
    """The working folder, with the sample tar where a clone has it."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "samples").symlink_to(sample_tar.parent)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# What recipes may import that is not installed for the tests; see docs/recipes.md.
OPTIONAL = {
    "albumentations", "datasets", "faster_coco_eval", "kornia", "monai", "torchdata",
    "torchvision", "transformers",
}  # fmt: skip


def missing_of(block: str) -> set[str]:
    """The optional libraries that a block imports and that are not installed."""
    nodes = [*ast.walk(ast.parse(block))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    wanted = {name.split(".")[0] for name in names} & OPTIONAL
    return {name for name in wanted if importlib.util.find_spec(name) is None}


def run_blocks(path: Path, missing: set[str] | None = None) -> dict:
    """Run the Python of a document from its beginning to its end.

    Blocks that import an optional library that is not installed are left out, and `missing` gets
    its name; so is the block that a test of its own runs.
    """
    names = {"__name__": "__main__"}
    for number, block in enumerate(blocks(path, "python"), 1):
        if "iou_of" in block:
            continue
        if missing is not None and (lacking := missing_of(block)):
            missing |= lacking
            continue
        exec(compile(block, f"<{name_of(path)}, Python block {number}>", "exec"), names)
    return names


def test_python_of_the_readme_runs_and_makes_the_pack_it_looks_at(folder, capsys):
    names = run_blocks(REPOSITORY / "README.md")
    assert names["result"].images == 3
    assert (folder / "packed" / "manifest.json").exists()
    out = capsys.readouterr().out
    assert f"3 images, {names['result'].masks} masks" in out
    assert "[2, 3, 512, 512]" in out and "[2, 64, 256, 256]" in out


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's use of torch
@pytest.mark.filterwarnings("ignore:The `srun` command is available")  # Lightning, beside SLURM
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")  # torch.compile
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's use of it
@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")  # the same, 3.13.0
@pytest.mark.parametrize("path", WITH_PYTHON, ids=name_of)
def test_python_of_the_documents_runs(path, folder, sample_pack):
    for name in ("packed", "pack"):
        (folder / name).symlink_to(sample_pack)
    shutil.rmtree(sample_pack / "side", ignore_errors=True)  # features of another document
    has_torchvision()  # before other libraries import it
    missing: set[str] = set()
    run_blocks(path, missing)
    if missing:
        pytest.skip(f"all but the blocks for {', '.join(sorted(missing))} ran: make frameworks")


def test_the_miou_of_the_recipe_is_that_of_pycocotools_on_the_records(folder, sample_pack):
    """Of every third mask, from the box in its record to the photograph's size."""
    (folder / "packed").symlink_to(sample_pack)
    recipes = blocks(REPOSITORY / "docs/recipes.md", "python")
    [block] = [text for text in recipes if "iou_of" in text]
    names: dict = {}
    exec(compile(block, "<mIoU>", "exec"), names)
    compared = 0
    with tarfile.open(folder / "tests/samples/sa_000000.tar") as tar:
        texts = [tar.extractfile(member).read() for member in tar if member.name.endswith(".json")]
    for record in map(json.loads, texts):
        height, width = record["image"]["height"], record["image"]["width"]
        scale = 1024 / max(height, width)
        stored = [int(side * scale + 0.5) for side in (height, width)]
        for mask in record["annotations"][::3]:
            if mask["id"] not in names["iou_of"]:  # of an image for training
                continue
            x, y, w, h = mask["bbox"]
            edges = torch.tensor([x, y, x + w + 1, y + h + 1]).view(2, 2)
            edges = (edges * torch.tensor(stored[::-1]) / torch.tensor([width, height])).float()
            logits = names["predict"]({"images": edges, "boxes_xyxy": edges.view(1, 4)})[None]
            logits = torch.nn.functional.interpolate(logits, (1024, 1024), mode="bilinear")
            logits = logits[..., : stored[0], : stored[1]]
            logits = torch.nn.functional.interpolate(logits, (height, width), mode="bilinear")
            found = coco.encode(np.asfortranarray((logits[0, 0] > 0).numpy(), np.uint8))
            [[iou]] = coco.iou([found], [mask["segmentation"]], [0])
            assert names["iou_of"][mask["id"]] == pytest.approx(iou, abs=1e-4)  # float32 edges
            compared += 1
    assert len(names["iou_of"]) > 50 and compared > 15


def test_sam2s_datapoint_has_every_object_of_every_source_also_empty_ones(folder):
    """An object without a pixel, alone in its batch; and masks without ids, of a generator."""
    (folder / "photos").mkdir()
    (folder / "masks").mkdir()
    square = [5, 5, 30, 5, 30, 30, 5, 30]
    kinds = {1: [square], 2: [[10, 10, 50]]}  # polygons of image 1; of image 2, which are no shape
    images = []
    annotations = []
    for number, polygons in kinds.items():
        Image.linear_gradient("L").resize((64, 48)).save(folder / f"photos/{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 64, "height": 48})
        annotations.append({"id": number + 90, "image_id": number, "segmentation": polygons})
        mask = {"segmentation": {"size": [48, 64], "counts": [100, 9, 48 * 64 - 109]}}
        (folder / f"masks/{number}.json").write_text(json.dumps([mask] * number))
    file = {"images": images, "annotations": annotations, "categories": []}
    (folder / "labels.json").write_text(json.dumps(file))
    loaders = {}
    for name, records in (("coco", "labels.json"), ("made", "masks")):
        sa1bpack.pack("photos", name, annotations=records, workers=1, image_size=64, fit="squash")
        ds = sa1bpack.open(name, mask_format="runs")
        pipeline = sa1bpack.transforms.Pipeline(ds, size=64, mask_size=64)
        loaders[name] = sa1bpack.Loader(ds, 1, pipeline=pipeline)
    mix = sa1bpack.Mix(loaders, at_end="skip")
    names = {"T": sa1bpack.transforms, "mix": mix}
    [block] = [
        text for text in blocks(REPOSITORY / "docs/mix.md", "python") if "def datapoint" in text
    ]
    exec(compile(block, "<datapoint>", "exec"), names)
    objects = []
    for batch in mix:
        made = names["datapoint"](batch)
        ids = made.metadata.unique_objects_identifier[0]
        assert len(set(ids[:, 1].tolist())) == len(ids) == made.masks.shape[1]
        assert made.obj_to_frame_idx.tolist() == [[[0, 0]] * len(ids)]
        if made.dict_key == "coco":
            assert ids.tolist() == [[ids[0, 0], ids[0, 0] + 90, 0]]
        objects += [(made.dict_key, bool(mask.any())) for mask in made.masks[0]]
    assert sorted(objects) == [("coco", False), ("coco", True), *[("made", True)] * 3]


def commands() -> list[tuple[str, str]]:
    """(document, command line) of every line in a shell block, with continued lines joined."""
    return [
        (name_of(path), line.strip())
        for path in DOCUMENTS
        for block in blocks(path, "sh")
        for line in block.replace("\\\n", " ").splitlines()
        if line.strip()
    ]


def test_every_sa1bpack_command_of_the_documents_parses():
    lines = [line for _, line in commands() if re.match(r"(\S*/)?sa1bpack ", line)]
    cluster = (REPOSITORY / "scripts" / "kubernetes" / "rayjob.yaml").read_text()
    lines += re.findall(r"^  entrypoint: (sa1bpack .*)", cluster, re.M)
    assert len(lines) >= 5
    for line in lines:
        arguments = shlex.split(line, comments=True)[1:]
        try:
            assert parse(arguments).run
        except SystemExit as ended:
            raise AssertionError(f"{line!r} is wrong usage") from ended


def test_every_script_and_target_of_the_documents_is_there():
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M)
    seen = set()
    for document, line in commands():
        words = shlex.split(line, comments=True)
        for word in words:
            if word.startswith(("scripts/", "benchmarks/")):
                assert (REPOSITORY / word).is_file(), f"{document}: {line}"
                seen.add("script")
        if words and words[0] == "make":
            named = [word for word in words[1:] if "=" not in word and word[0] != "-"]
            assert set(named) <= set(targets), f"{document}: {line}"
            seen.add("target")
    assert seen == {"script", "target"}


def test_commands_that_set_up_puts_into_its_environment_are_called_from_there():
    """`sa1bpack` and `python` are on nobody's PATH before the environment is active."""
    for block in blocks(REPOSITORY / "README.md", "sh"):
        lines = [line for line in block.splitlines() if line.strip()]
        if any(re.match(r"(sa1bpack|python) ", line) for line in lines):
            assert lines[0].startswith(". .venv/bin/activate"), block


def anchors(path: Path) -> set[str]:
    """The anchors that headings have, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_to_a_file_and_a_heading():
    known = cache(anchors)
    for path in DOCUMENTS:
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
        for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", text):
            file, _, heading = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), f"{path}: {link} leads nowhere"
            assert not heading or heading in known(target), f"{path}: {link}: no such heading"


def test_every_program_of_the_benchmarks_stands_in_their_list_once():
    """In a cell of its own: after its question, or before what it does for the others."""
    text = (REPOSITORY / "benchmarks" / "README.md").read_text()
    cells = re.findall(r"\| ((?:`[\w./]+`,? ?)+)(?:\(`make [\w-]+`\) )?(?=\|)", text)
    listed = [name for cell in cells for name in re.findall(r"[\w./]+", cell)]
    folder = REPOSITORY / "benchmarks"
    programs = [path.name for kind in ("*.py", "*.c") for path in folder.glob(kind)]
    assert sorted(listed) == sorted([*programs, "peers/"])


def test_the_architecture_names_modules_that_exist():
    """In the two walks a module may stand without its folder, after one of the same folder."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z_0-9/]+\.py)`", text))
    paths = [path for room in ("sa1bpack", "tests") for path in (REPOSITORY / room).rglob("*.py")]
    modules = tuple(f"/{name_of(path)}" for path in paths)
    unknown = [name for name in named if not any(each.endswith(f"/{name}") for each in modules)]
    assert len(named) > 40 and unknown == []
