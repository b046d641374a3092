"""`sa1bpack attach`: what it prints and returns, and what is wrong in the words of the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from format_files import manifest_of

import sa1bpack
from sa1bpack import verify


@pytest.fixture
def lines(packed, tmp_path) -> Path:
    """A file of captions for five of the six images, and for two others."""
    ids = [*sorted(sa1bpack.open(packed).column("image_id").tolist())[:-1], 70, 71]
    records = [{"image": f"sa_{number}.jpg", "text": f"image {number}"} for number in ids]
    path = tmp_path / "captions.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_rows_of_a_file_are_attached_and_what_does_not_match_is_named(command, packed, lines):
    words = ("attach", packed, lines, "--name", "caption", "--key", "image", "--value", "text")
    code, out, error = command(*words)
    assert (code, out) == (2, "")
    assert "rows lack 1 image of the dataset, such as 5 of shard sa_000000-00" in error
    assert "add rows, or choose missing='allow' (--missing allow)" in error
    code, out, error = command(*words, "--missing", "allow")
    assert (code, error) == (0, "")
    assert out == (
        f"{packed}/side/caption: text per image, rows may be missing\n"
        f"{packed}/side/caption: 2 shards made, 0 existing, complete\n"
        "1 without a row\n"
        "2 rows left out, of ids that the dataset lacks, such as sa_70.jpg, sa_71.jpg\n"
    )
    ds = sa1bpack.open(packed, features="caption")
    texts = [ds.by_id(number)["caption"] for number in range(6)]
    assert texts == [*(f"image {number}" for number in range(5)), ""]
    assert command(*words, "--missing", "allow")[1].splitlines()[1].endswith(
        "0 shards made, 2 existing, complete"
    )  # fmt: skip
    assert verify(packed).ok


def test_folders_tables_and_options_of_rows_are_those_of_the_call(command, packed, tmp_path):
    ids = sa1bpack.open(packed).column("image_id").tolist()
    (tmp_path / "maps").mkdir()
    for number in ids:
        np.save(tmp_path / f"maps/sa_{number}.npy", np.full((1, 4, 6), number, np.float64))
    flags = ("--spatial", "--covers", "photograph", "--dtype", "float16", "--shape", "1,4,6")
    out = tmp_path / "elsewhere/depth"
    code, printed, error = command(
        "attach", packed, tmp_path / "maps", "--name", "depth", *flags, "-o", out
    )
    assert (code, error) == (0, "")
    assert "float16 (1, 4, 6) per image, spatial over the photograph" in printed
    assert manifest_of(out)["covers"] == "photograph"
    assert not (packed / "side").exists()

    tables = []
    for part in range(2):
        tables.append(tmp_path / f"part-{part}.csv")
        rows = [f"{number},{number / 2}\n" for number in ids[part::2]]
        tables[-1].write_text("id,score\n" + "".join(rows))
    flags = ("--key", "id", "--value", "score", "--dtype", "float32")
    assert command("attach", packed, *tables, "--name", "score", *flags)[0] == 0
    scores = sa1bpack.open(packed, features="score").column("score")
    np.testing.assert_array_equal(scores, np.array(ids, np.float32) / 2)

    mask_ids = sa1bpack.open(packed).mask_column("annotation_id").tolist()
    table = tmp_path / "lists.csv"
    table.write_text("annotation_id,v\n" + "".join(f'{i},"[{i}, 1]"\n' for i in mask_ids))
    flags = ("--axis", "mask", "--value", "v", "--dtype", "int64", "--shape", "any")
    assert command("attach", packed, table, "--name", "v", *flags)[0] == 0
    assert manifest_of(packed / "side/v")["row_shape"] == [None]


@pytest.mark.parametrize(
    "words, message",
    [
        (
            "--name a",
            "sa1bpack: --key is 'image_id', but {lines} has 'image', 'text': choose the one",
        ),
        ("--name a --value text", "{lines}, line 1: --key is 'image_id', but it has no id; it has"),
        ("--name a --key image --value texts", "rows have no value: .*; is --value right?"),
        ("--name a --key image --value text --dtype int8", "', cannot be used: it is nei"),
        ("--name a --key image --value text --dtype int4", "--dtype is 'int4': choose text, or"),
        ("--name a --key image --value text --shape 4,x", "--shape is '4,x': choose numbers"),
        ("--name a --key image --value text --shape 4,any", "only the first place can be any"),
        ("--name a --key image --value text --shape any,0", "--shape is 'any,0': choose numbers"),
        ("--name 1 --key image --value text", "--name is '1': choose a letter followed by"),
        ("--key image --value text", "the following arguments are required: --name; see `sa1bpack"),
        ("--name a --value text --missing no", "argument --missing: invalid choice: 'no'"),
    ],
    ids=lambda text: text[:40],
)
def test_wrong_arguments_are_exit_code_2_and_nothing_is_written(
    command, packed, lines, words, message
):
    code, out, error = command("attach", packed, lines, *words.split())
    assert (code, out) == (2, "")
    before, _, after = message.format(lines=lines).partition(".*")
    assert before in error and after in error
    assert not (packed / "side").exists()


def test_a_file_that_is_not_there_and_a_folder_without_rows_are_named(command, packed, tmp_path):
    (tmp_path / "empty").mkdir()
    for rows, message in (("none.jsonl", "there is no such file"), ("empty", "no file of rows")):
        code, _, error = command("attach", packed, tmp_path / rows, "--name", "a", "--value", "b")
        assert code == 2 and message in error
