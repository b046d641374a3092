"""Whatever system call of publication fails, once or from then on, or is the last one of a process
that is killed, the repeated command makes the undisturbed bytes.

Every command that publishes: a run, parts and `finalize`, tasks of Ray, an upload, a merge, a copy
of a selection, a repair, `derive` and `attach`. A few calls in `make test`, many of each with
--torture.
"""

import errno
import shutil
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray_stand_in
from commands import temporaries
from edited_packs import flip, lose_shard
from fresh_forks import FreshForks
from one_fault import FAULTS, KILL, Fault, run_with
from s3_server import s3_client, use_s3
from small_tars import contents, members, write_tar
from system import elsewhere  # noqa: F401 - a fixture

import sa1bpack

OPTIONS = {"image_size": 64, "mask_size": 16, "samples_per_shard": 2}
FEATURE = "side/score"


def _score(batch: dict) -> np.ndarray:
    """A row per image, for `derive`."""
    return batch["areas"].reshape(len(batch["image_ids"]), -1)[:, :1].float().numpy()


class Seam:
    """Sources, and what an undisturbed command makes of them."""

    def __init__(self, folder: Path):
        self.folder = folder
        first = members(range(10, 18))
        first["./sa_12.json"] = first["./sa_13.json"] = b"{}"  # pairs 2 and 3: a shard of no sample
        del first["./sa_17.json"]
        self.tars = [
            write_tar(folder / "sa_000000.tar", first, shuffle=None),
            write_tar(folder / "sa_000001.tar", members([20, 21, 22])),
        ]
        self.whole = folder / "whole"
        self.begun = folder / "begun"
        self.second = folder / "second"
        self.pack(self.whole)
        sa1bpack.pack(self.tars[0], self.begun, workers=1, **OPTIONS)
        sa1bpack.pack(self.tars[1], self.second, workers=1, **OPTIONS)
        self.attach(self.begun)
        self.attach(self.second)
        self.featured = folder / "featured"
        shutil.copytree(self.whole, self.featured)
        self.attach(self.featured)
        self.derived = folder / "derived"
        shutil.copytree(self.whole, self.derived)
        self.derive(self.derived)
        self.copied = folder / "copied"
        self.copy(self.copied)
        self.before_merges = self.merged_packs()

    def copy(self, root: Path) -> None:
        ds = sa1bpack.open(self.featured)
        sa1bpack.copy_selection(ds[[0, 1, 2, len(ds) - 2]], root, progress=False)

    def merged_packs(self) -> list[dict[str, bytes]]:
        """What the packs hold that are merged."""
        return [contents(self.begun), contents(self.second)]

    def pack(self, root: Path, workers: int = 1) -> None:
        sa1bpack.pack(self.tars, root, workers=workers, progress=False, **OPTIONS)

    def part(self, root: Path, *part: int) -> None:
        sa1bpack.pack_part(self.tars, root, part, workers=1, progress=False, **OPTIONS)

    def attach(self, root: Path) -> None:
        ds = sa1bpack.open(root)
        ids = ds.column("image_id")
        rows = np.stack([ids, ids * 3], 1).astype(np.float32)
        sa1bpack.attach(ds, "score", rows, ids)

    def derive(self, root: Path) -> None:
        sa1bpack.derive(sa1bpack.open(root), "score", _score, batch_size=1, device="cpu")


class Command:
    """A command that publishes.

    Attributes:
        root: folder whose calls fail.
        rounds: of a short run; the second is a kill.
    """

    rounds = 2

    def __init__(self, seam: Seam, folder: Path):
        self.seam = seam
        self.root = folder / "pack"

    def begin(self) -> None:
        """Make everything as it is before the command."""
        shutil.rmtree(self.root, ignore_errors=True)

    def run(self) -> None:
        """The command, one of whose calls fails."""
        self.seam.pack(self.root)

    def run_with(self, log: Path, fault: Fault | None = None) -> tuple[str, Counter[str]]:
        """The command in a process of its own, as `one_fault.run_with`."""
        return run_with(self.run, self.root, log, fault)

    def complete(self) -> None:
        """What the documents say to do after it: repeat it, and finalize."""
        self.run()

    def result_files(self) -> dict[str, bytes]:
        """What the command made."""
        return contents(self.root)

    def expected(self) -> dict[str, bytes]:
        """What it makes undisturbed."""
        return contents(self.seam.whole)

    def check_left(self, where: str, before: dict[str, bytes]) -> None:
        """What a failed command left is the old pack, a part of the new one or all of it.

        `before` is the checksum file of the old pack, if there was one.
        """
        if (self.root / "manifest.json").exists():
            report = sa1bpack.verify(self.root)
            assert report.ok, (where, report.problems)
            if report.complete:  # one that is not has no checksum file yet
                left = sums_of(self.root)
                assert left == before or self.expected().items() >= left.items(), where


def sums_of(root: Path) -> dict[str, bytes]:
    """The checksum file of a pack."""
    return {"checksums.xxh128": (root / "checksums.xxh128").read_bytes()}


class WithWorkers(Command):
    rounds = 1

    def run(self) -> None:
        self.seam.pack(self.root, workers=2)


class Added(Command):
    """A source is added to a complete pack."""

    def begin(self) -> None:
        super().begin()
        sa1bpack.pack(self.seam.tars[0], self.root, workers=1, **OPTIONS)

    def check_left(self, where: str, before: dict[str, bytes]) -> None:
        assert sa1bpack.verify(self.root).ok, where


class Part(Command):
    def run(self) -> None:
        self.seam.part(self.root, 1, 1)

    def complete(self) -> None:
        self.run()
        assert sa1bpack.finalize(self.root).complete


class TwoParts(Command):
    def run(self) -> None:
        for number in (1, 2):
            self.seam.part(self.root, number, 2)

    def complete(self) -> None:
        self.run()
        assert sa1bpack.finalize(self.root).complete


class Finalize(Command):
    def begin(self) -> None:
        super().begin()
        self.seam.part(self.root, 1, 1)

    def run(self) -> None:
        assert sa1bpack.finalize(self.root).complete


class FirstFinalize(Finalize):
    """A job of which a part is missing is finalized; then the part runs."""

    def begin(self) -> None:
        Command.begin(self)
        self.seam.part(self.root, 1, 2)

    def run(self) -> None:
        sa1bpack.finalize(self.root)

    def complete(self) -> None:
        self.run()
        self.seam.part(self.root, 2, 2)
        assert sa1bpack.finalize(self.root).complete


class OnRay(Command):
    def run(self) -> None:
        ray_stand_in.install()
        from sa1bpack.cluster.pack import pack_on_ray

        pack_on_ray(self.seam.tars, self.root, workers=1, progress=False, **OPTIONS)

    def complete(self) -> None:
        in_a_fork(self.run, self.root.with_name("again"))


class Merge(Command):
    def run(self) -> None:
        sa1bpack.merge([self.seam.begun, self.seam.second], self.root)

    def complete(self) -> None:
        self.run()
        assert temporaries(self.root) == []
        assert self.seam.merged_packs() == self.seam.before_merges

    def expected(self) -> dict[str, bytes]:
        return contents(self.seam.featured)


class MergeInto(Merge):
    """A pack is added to one that was merged before."""

    def begin(self) -> None:
        super().begin()
        sa1bpack.merge([self.seam.begun], self.root)


class MergeElsewhere(Merge):
    """Into another file system, as `elsewhere` makes it."""


class MergeOfCopies(Merge):
    """Where files cannot be linked."""

    def run(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.link", _refused)
            super().run()


def _refused(*_, **__):
    raise OSError(errno.EXDEV, "Invalid cross-device link")


class CopyOfASelection(Command):
    """Of shards that are copied whole, in part and not at all, with their rows of a feature."""

    def run(self) -> None:
        self.seam.copy(self.root)

    def expected(self) -> dict[str, bytes]:
        return contents(self.seam.copied)


class Repair(Command):
    def damage(self) -> None:
        flip(self.root / "shards/sa_000000-000/image/c.0.0.0.0")
        shutil.rmtree(self.root / "shards/sa_000001-001")

    def begin(self) -> None:
        super().begin()
        shutil.copytree(self.seam.whole, self.root)
        self.damage()

    def run(self) -> None:
        sa1bpack.repair(self.root, self.seam.tars, workers=1, progress=False)

    def check_left(self, where: str, before: dict[str, bytes]) -> None:
        """It opens as before."""
        sa1bpack.open(self.root)


class RepairOfTheManifest(Repair):
    def damage(self) -> None:
        (self.root / "manifest.json").unlink()
        flip(self.root / "shards/sa_000000-000/image/c.0.0.0.0")

    def check_left(self, where: str, before: dict[str, bytes]) -> None:
        """There is nothing to open."""


class RepairOfALostShard(Repair):
    def damage(self) -> None:
        lose_shard(self.root, "sa_000000-000")


class PackAfterALostShard(RepairOfALostShard):
    def run(self) -> None:
        self.seam.pack(self.root)


class Attach(Command):
    def begin(self) -> None:
        super().begin()
        shutil.copytree(self.seam.whole, self.root)

    def run(self) -> None:
        self.seam.attach(self.root)

    def result_files(self) -> dict[str, bytes]:
        """Without the lock files of those who make a feature, which are no part of it."""
        files = contents(self.root)
        return {name: data for name, data in files.items() if not name.endswith(".lock")}

    def expected(self) -> dict[str, bytes]:
        files = contents(self.seam.featured)
        return {name: data for name, data in files.items() if not name.endswith(".lock")}

    def check_left(self, where: str, before: dict[str, bytes]) -> None:
        assert sa1bpack.verify(self.root).ok, where


class Derive(Attach):
    def run(self) -> None:
        self.seam.derive(self.root)

    def expected(self) -> dict[str, bytes]:
        files = contents(self.seam.derived)
        return {name: data for name, data in files.items() if not name.endswith(".lock")}


class Upload(Command):
    """To an object store, from a staging folder, whose calls fail.

    Attributes:
        forks: where each upload runs: this process, or its parent, may have used an object store.
    """

    rounds = 1
    number = 0
    forks: FreshForks

    def begin(self) -> None:
        super().begin()
        Upload.number += 1
        self.url = f"s3://publication/{Upload.number}"

    def upload_of(self, sources: list[Path]) -> Callable[[], object]:
        """The program that uploads what is packed of these sources."""
        return partial(
            sa1bpack.pack,
            sources,
            self.url,
            staging=self.root,
            workers=1,
            progress=False,
            **OPTIONS,
        )

    def upload(self, sources: list[Path], folder: Path) -> None:
        """Upload what is packed of these sources, in a process in which nothing fails."""
        error, _ = self.forks.run_with(self.upload_of(sources), folder, folder.with_suffix(".log"))
        assert not error, error

    def run_with(self, log: Path, fault: Fault | None = None) -> tuple[str, Counter[str]]:
        return self.forks.run_with(self.upload_of(self.seam.tars), self.root, log, fault)

    def complete(self) -> None:
        self.upload(self.seam.tars, self.root.with_name("again"))

    def result_files(self) -> dict[str, bytes]:
        prefix, client, files = f"{Upload.number}/", s3_client(), {}
        listed = client.list_objects_v2(Bucket="publication", Prefix=prefix)
        for entry in listed.get("Contents", ()):
            body = client.get_object(Bucket="publication", Key=entry["Key"])["Body"]
            files[entry["Key"].removeprefix(prefix)] = body.read()
        return files

    def expected(self) -> dict[str, bytes]:
        files = {}
        for path in self.seam.whole.rglob("*"):
            name = path.relative_to(self.seam.whole).as_posix()
            if path.is_file() and not name.startswith("."):
                files[name] = path.read_bytes()
        return files

    def check_left(self, where: str, before: dict[str, bytes]) -> None:
        """The bucket is looked at in the end."""


class UploadWithoutStaging(Upload):
    """A source is added to what is in the bucket, from an empty staging folder."""

    def begin(self) -> None:
        super().begin()
        self.upload(self.seam.tars[:1], self.root.with_name("begun"))
        shutil.rmtree(self.root)


COMMANDS = {
    "pack": Command,
    "pack, source added": Added,
    "pack --part": Part,
    "two parts": TwoParts,
    "finalize": Finalize,
    "finalize, part missing": FirstFinalize,
    "tasks of Ray": OnRay,
    "merge": Merge,
    "merge, pack added": MergeInto,
    "merge of copies": MergeOfCopies,
    "merge, two file systems": MergeElsewhere,
    "copy of a selection": CopyOfASelection,
    "repair": Repair,
    "repair of the manifest": RepairOfTheManifest,
    "repair of a lost shard": RepairOfALostShard,
    "pack after a lost shard": PackAfterALostShard,
    "attach": Attach,
    "derive": Derive,
    "upload": Upload,
    "upload, staging lost": UploadWithoutStaging,
    "pack with workers": WithWorkers,
}


def in_a_fork(program: Callable[[], object], folder: Path) -> None:
    """Run a program in a process of its own, in which nothing fails."""
    error, _ = run_with(program, folder, folder.with_suffix(".log"))
    assert not error, error


@pytest.fixture(scope="module")
def seam(tmp_path_factory) -> Seam:
    """Sources, and undisturbed packs of them."""
    return Seam(tmp_path_factory.mktemp("seam"))


@pytest.fixture(scope="module")
def forks(s3_process):
    """Processes that upload, to a bucket which is there."""
    with pytest.MonkeyPatch.context() as patch:
        use_s3(s3_process.url, patch)
        s3_process.make_bucket("publication")
        with FreshForks() as forks:
            yield forks


@pytest.mark.parametrize("name", COMMANDS)
def test_after_any_call_that_fails_the_repeated_command_makes_the_undisturbed_bytes(
    name, seam, tmp_path, torture, request
):
    """Once, or from that one on, or with a kill."""
    folder = tmp_path
    if COMMANDS[name] is MergeElsewhere:
        folder = request.getfixturevalue("elsewhere")
    command = COMMANDS[name](seam, folder)
    if isinstance(command, Upload):
        command.forks = request.getfixturevalue("forks")
    log = tmp_path / "log"
    command.begin()
    error, counts = command.run_with(log)
    assert not error, error
    if torture.full:
        command.complete()
        assert command.result_files() == command.expected(), "undisturbed"
    kinds = [kind for kind in FAULTS if counts[kind]]
    rounds = torture.rounds(command.rounds, 150)
    failed = 0
    wrong = []
    for number in range(rounds):
        kind = torture.rng.choice(kinds)
        if "part" in name and number == 0:  # what once lost a shard
            kind = "rename"
        call_number = torture.rng.randrange(counts[kind])
        error_of_call = torture.rng.choice(FAULTS[kind])
        if number == 1:
            error_of_call = KILL
        fault = Fault(kind, call_number, error_of_call, lasting=torture.rng.random() < 0.3)
        where = f"{name}: {fault}"
        command.begin()
        before = {}
        if (command.root / "checksums.xxh128").exists():
            before = sums_of(command.root)
        error, _ = command.run_with(log, fault)
        failed += bool(error)
        try:
            command.check_left(where, before)
            command.complete()
            differing = different(command.result_files(), command.expected())
            assert not differing, differing
        except Exception:
            wrong.append(f"{where}\n{traceback.format_exc()}\nafter {error}")
    assert not wrong, "\n\n".join(wrong)
    torture.record(
        f"a call fails: {name}",
        rounds,
        f"{failed} ended with an error; bytes as undisturbed",
    )


def different(result_files: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    """Names of files that differ, or that one of the two lacks."""
    names = result_files.keys() | expected.keys()
    return sorted(name for name in names if result_files.get(name) != expected.get(name))
