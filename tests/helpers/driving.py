"""Somebody else's loop over a loader, stopped and resumed: is it where it would be, had it run on?

A case is drawn from its seed: who drives the loop, what it does meanwhile, and where it is stopped.
What it sees, (epoch, image ids, masks of each image) by step, is compared with the batches that
plain Loaders have in these epochs, each begun by `set_epoch`.

`python tests/helpers/driving.py SEED...` runs cases; the first that is not right is named.
"""

import argparse
import dataclasses
import logging
import os
import random
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fault_server import fault_server
from forked_ranks import fork_ranks
from frameworks import has_torchvision
from small_tars import members, pack_small, write_tar

import sa1bpack

EPOCHS = 3
IMAGES = 20
SPLIT = {"val_fraction": 0.25, "seed": 3}
Step = list  # of a run: epoch of the driver, epoch of the batch, image ids, masks of each image


class Stopped(Exception):
    """Ends a run after its checkpoint was saved."""


@dataclass(frozen=True)
class Stop:
    """Where a run is stopped, after a checkpoint was saved there.

    Attributes:
        kind: "step", after that many steps; "failed step", in the step after them; "epoch", after
            an epoch and what follows it; "validation", after a validation.
        number: of steps, epochs or validations in the run that is stopped, 1 or more.
    """

    kind: str
    number: int


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        driver, mode: who drives the loop, and how it has the loader.
        ranks: processes.
        workers: worker processes of a DataLoader; threads - 1 of a Loader.
        size: images per batch of a rank.
        options: of the loaders.
        stops: of the first run, and of the run that resumes it if there are two.
        limit: batches of an epoch that are used; None: all.
        ahead: a schedule asks for the number of steps before the run.
        reload: the loader is made anew for each epoch.
        accumulate: batches whose gradients are summed.
        sanity: batches that are validated before the run.
        validate: "": never; "epoch": after each epoch; "steps": after every two batches.
        by_steps: the run ends by its number of steps, not by epochs.
        mix: at_end of a Mix of three Loaders in place of one; "": no Mix.
        place: where the pack is: "folder"; or at a URL, of which rows are fetched: "file", "http".
    """

    seed: int
    driver: str
    mode: str
    ranks: int
    workers: int
    size: int
    options: dict[str, Any]
    stops: tuple[Stop, ...]
    limit: int | None = None
    ahead: bool = False
    reload: bool = False
    accumulate: int = 1
    sanity: int = 0
    validate: str = ""
    by_steps: bool = False
    mix: str = ""
    place: str = "folder"


MODES = {
    "plain": ("Loader", "make_dataloader", "DataLoader"),
    "lightning": ("DataModule", "DataModule", "Loader", "make_dataloader", "Loader of fit"),
    "accelerate": ("default", "split", "dispatch", "registered"),
    "trainer": ("make_dataloader",),
    "torchdata": ("StatefulDataLoader",),
}
# Those in which a program has a Mix.
MIX_MODES = {
    "plain": ("Mix",),
    "lightning": ("Loader", "Loader of fit"),
    "accelerate": ("registered",),
    "trainer": ("Mix",),
}


def case_of(seed: int, driver: str | None = None) -> Case:
    """The case of a seed; without a driver, of one of those that are always installed."""
    rng = random.Random(f"driving {seed}")
    if driver is None:
        driver = rng.choice(("plain", "lightning", "lightning", "lightning", "accelerate"))
    mode = rng.choice(MODES[driver])
    ranks = 1 if driver == "trainer" else rng.choice((1, 1, 1, 2))
    size = rng.choice((2, 3, 4))
    options = {
        "seed": rng.randrange(100),
        "max_masks": 2,
        "mask_select": rng.choice(("random", "random", "largest")),
        **rng.choice(({"shuffle": True}, {"shuffle": True}, {"order": "local"}, {})),
        **rng.choice(({}, {"drop_last": True}, {"pad_last": True}, {"pad_last": "ranks"})),
    }
    if ranks == 2 and not {"drop_last", "pad_last"} & options.keys():
        options["pad_last"] = "ranks"
    if driver == "accelerate" and mode != "registered" and ranks == 2:
        options.pop("pad_last", None)  # Accelerate fills up the end by its own rules
        options["drop_last"] = True
    if driver == "torchdata":
        options.pop("order", None)
    if mode in ("DataLoader", "StatefulDataLoader") and "pad_last" in options:
        # A Collate of the program's own does not know which samples repeat.
        options["mask_select"] = "largest"
    case = Case(
        seed=seed,
        driver=driver,
        mode=mode,
        ranks=ranks,
        workers=rng.choice((0, 0, 1, 2)),
        size=size,
        options=options,
        stops=(),
        limit=rng.choice((None, None, 1, 2, 3)),
        accumulate=rng.choice((1, 1, 2)),
    )
    if driver == "lightning":
        case = dataclasses.replace(
            case,
            ahead=rng.random() < 0.4,
            reload=rng.random() < 0.3,
            sanity=rng.choice((0, 2)),
            validate=rng.choice(("", "epoch", "steps")),
            by_steps=rng.random() < 0.2,
        )
    if driver == "trainer":
        case = dataclasses.replace(case, limit=None)
    return dataclasses.replace(case, stops=_stops_of(case, rng), place=_place_of(case))


def _place_of(case: Case) -> str:
    """Where the pack of a case is: of two thirds of them, at a URL.

    Connections to a server do not survive a fork, and workers that are spawned take seconds.
    """
    place = random.Random(f"place {case.seed}").choice(("folder", "file", "http"))
    if case.workers and case.mode in ("DataLoader", "StatefulDataLoader", "make_dataloader"):
        return place.replace("http", "file")
    if case.driver in ("accelerate", "trainer") and case.workers and not case.mix:
        return place.replace("http", "file")
    return place


def mix_case_of(seed: int, driver: str | None = None) -> Case:
    """The case of a seed in which a Mix is driven, as `case_of`."""
    rng = random.Random(f"driving a mix {seed}")
    usual = rng.choice(("plain", "lightning", "lightning", "accelerate"))
    driver = driver or usual
    ends = ["restart", "skip", "stop"]
    if driver in ("lightning", "trainer"):
        # With "stop", epochs differ in length, of which these ask for that of the first alone.
        ends.remove("stop")
    case = dataclasses.replace(
        case_of(seed, driver),
        mode=rng.choice(MIX_MODES[driver]),
        workers=rng.choice((0, 1)),
        mix=rng.choice(ends),
    )
    options = {"seed": case.options["seed"], "max_masks": 2, "mask_select": "random"}
    options |= {"shuffle": True, "pad_last": "ranks"}
    by_steps = case.by_steps and case.mix == "restart"
    case = dataclasses.replace(case, options=options, by_steps=by_steps)
    if driver == "trainer":
        # It takes the rest of an epoch for a whole one, and so does not count the step that has
        # fewer batches than the others at its end.
        case = dataclasses.replace(case, accumulate=1)
    return dataclasses.replace(case, stops=_stops_of(case, rng))


def _stops_of(case: Case, rng: random.Random) -> tuple[Stop, ...]:
    kinds = ["step", "step", "epoch"]
    if case.by_steps and case.validate != "epoch":
        # Lightning resumes such a run with one batch of the epoch, and then the next, with any
        # loader.
        kinds.remove("epoch")
    if case.driver == "lightning":
        kinds.append("failed step")
    if case.validate:
        kinds.append("validation")
    stops: list[Stop] = []
    steps = case.limit or 2
    for _ in range(rng.choice((1, 1, 2))):
        if stops and stops[-1].kind == "failed step":
            # Lightning counts the failed step among all steps for good. A run that has resumed
            # after it, and then after another stop, may train a batch too many, with any loader.
            break
        if stops and case.driver == "lightning" and case.limit and stops[-1].kind == "step":
            # Nor does Lightning count right after a stop at the last batch of an epoch, and then
            # another one: it uses as many batches of the second epoch as if none had been used.
            break
        kind = rng.choice(kinds)
        number = rng.randint(1, 2 * steps) if "step" in kind else 1
        stops.append(Stop(kind, number))
    return tuple(stops)


# ------------------------------------------------------------------------------------ what is right


def write_pack(folder: Path) -> None:
    """Pack small photographs with 0 to 4 masks into `packed` in a folder."""
    tar = write_tar(folder / "sa_000000.tar", members(range(IMAGES), lambda n: n % 5))
    pack_small(tar, folder / "packed")


@contextmanager
def place_of(case: Case, root: Path) -> Iterator[Path | str]:
    """The pack in `root`, where a case has it; what is kept of one at a URL is removed at the end.

    It is not kept below the folder of the test: processes of a case have sockets beside it, and the
    path of a socket has at most 107 bytes.
    """
    if case.place == "folder":
        yield root
        return
    before = tempfile.tempdir
    # A thread of a run that was stopped may still be fetching a shard's small arrays.
    with tempfile.TemporaryDirectory(prefix="kept-", ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = folder
        try:
            if case.place == "file":
                yield root.as_uri()
                return
            os.environ["NO_PROXY"] = "127.0.0.1"
            with fault_server() as server:
                for path in root.rglob("*"):
                    if path.is_file():
                        server.files[f"/packed/{path.relative_to(root)}"] = path.read_bytes()
                yield f"{server.url}/packed"
                assert server.requests
        finally:
            tempfile.tempdir = before


def parts_of(root: Path | str) -> tuple[sa1bpack.Dataset, sa1bpack.Dataset]:
    """The images of training, and those of validation."""
    return sa1bpack.open(root).split(**SPLIT)


def content(batch: dict, epoch: int) -> Step:
    """What a driver in an epoch saw in a step."""
    of_batch = batch.get("mix_epoch", batch.get("epoch", epoch))
    if isinstance(of_batch, torch.Tensor):
        of_batch = int(of_batch.max())
    counts = batch["mask_counts"].tolist()
    rows = batch["annotation_ids"].tolist()
    masks = [row[:count] for row, count in zip(rows, counts, strict=True)]
    return [epoch, of_batch, batch["image_ids"].tolist(), masks, batch.get("source")]


def expected(case: Case, root: Path | str, rank: int) -> list[Step]:
    """All steps of a rank that was never stopped."""
    train, _ = parts_of(root)
    seen = []
    for epoch in range(EPOCHS):
        ranks = {"rank": rank, "world_size": case.ranks}
        alone = dataclasses.replace(case, workers=0, options=case.options | ranks)
        with loader_of(alone, train, "Loader") as loader:
            loader.set_epoch(epoch)
            steps = [content(batch, epoch) for batch in loader]
        seen += steps[: case.limit]
    return seen


class Recorder:
    """What a run sees, and where it stops."""

    def __init__(self, stop: Stop | None):
        self.seen: list[Step] = []
        self.validated: list[list] = []  # by validation
        self.stop = stop

    def reached(self, kind: str, number: int) -> bool:
        """True where the run stops."""
        return self.stop == Stop(kind, number)


# ------------------------------------------------------------------------------------------ drivers


def loader_of(case: Case, ds: Any, kind: str) -> Any:
    """A loader of the program's own."""
    if case.mix:
        return mix_of(case, ds)
    if kind == "Loader":
        return sa1bpack.Loader(ds, case.size, threads=case.workers + 1, **case.options)
    workers = {"num_workers": case.workers, "pin_memory": False}
    return sa1bpack.make_dataloader(ds, case.size, **workers, **case.options)


def mix_of(case: Case, ds: sa1bpack.Dataset) -> sa1bpack.Mix:
    """A Mix of three parts of a dataset."""
    parts = {"a": ds[: len(ds) // 2], "b": ds[len(ds) // 2 : -3], "c": ds[-3:]}
    loaders = {}
    for name, part in parts.items():
        loaders[name] = sa1bpack.Loader(part, case.size, threads=case.workers + 1, **case.options)
    weights = {"a": 3, "b": [1, 3], "c": 1}
    steps = 5 if case.mix == "restart" else None
    seed = case.options["seed"]
    return sa1bpack.Mix(loaders, weights, seed=seed, at_end=case.mix, steps=steps)


def own_loader(kind: type, case: Case, ds: sa1bpack.Dataset) -> Any:
    """A DataLoader of a kind, with a sampler and a Collate of the program's own."""
    sampler = sa1bpack.ReadingOptions(**case.options).batches(ds, case.size)
    names = ("max_masks", "mask_select", "seed")
    collate = sa1bpack.Collate(**{name: case.options[name] for name in names})
    return kind(ds, batch_sampler=sampler, collate_fn=collate, num_workers=case.workers)


def plain(case: Case, root: Path | str, folder: Path, record: Recorder, saved: Any) -> Any:
    """A loop of the program's own, which saves the state of its loader."""
    train, _ = parts_of(root)
    sampler = None
    if case.mode == "DataLoader":
        loader = own_loader(torch.utils.data.DataLoader, case, train)
        sampler = loader.batch_sampler
    else:
        loader = loader_of(case, train, case.mode)
    state = sampler or loader
    first = 0
    done = 0  # batches of the first epoch
    if saved is not None:
        saved_state, first, done = saved
        state.load_state_dict(saved_state)
    steps_taken = 0
    for epoch in range(first, EPOCHS):
        if case.seed % 2 or case.limit:
            state.set_epoch(epoch)  # which a program need not call
        if sampler is not None:
            loader.collate_fn.set_epoch(epoch)
        for batch_count, batch in enumerate(loader, 1):
            record.seen.append(content(batch, epoch))
            steps_taken += 1
            number = batch_count + (done if epoch == first else 0)
            if record.reached("step", steps_taken):
                saved = state.state_dict() if sampler is None else sampler.state_after(batch_count)
                if number in (case.limit, len(state)):  # the program knows that the epoch has ended
                    return saved, epoch + 1, 0
                return saved, epoch, number
            if number == case.limit:
                break
        if record.reached("epoch", epoch - first + 1):
            saved = state.state_dict() if sampler is None else sampler.state_after(batch_count)
            return saved, epoch + 1, 0
    return None


def lightning(case: Case, root: Path | str, folder: Path, record: Recorder, saved: Any) -> Any:
    """Lightning's Trainer."""
    import pytorch_lightning
    from pytorch_lightning import callbacks

    from sa1bpack.adapters import lightning_places
    from sa1bpack.adapters.lightning import DataModule

    train, val = parts_of(root)
    path = folder / "checkpoint.ckpt"

    class Model(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.steps = 0

        def training_step(self, batch, _):
            if record.reached("failed step", self.steps):
                raise Stopped
            self.steps += 1
            # With max_steps Lightning's own number of the epoch is not right after a resume.
            epoch = self.current_epoch
            if case.by_steps:
                epoch = batch.get("mix_epoch", batch["epoch"])
            record.seen.append(content(batch, epoch))
            return self.layer(batch["images"].float().mean((1, 2)) / 255).mean()

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 0.01)
            if not case.ahead:
                return optimizer
            total = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=int(total))
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    class Own(Model):
        def train_dataloader(self):
            return loader_of(case, train, case.mode)

    def validation_step(self, batch, number):
        if not self.trainer.sanity_checking:
            if number == 0:
                record.validated.append([])
            record.validated[-1].append(content(batch, 0))

    def val_dataloader(self):
        options = {"max_masks": 2, "pad_last": "ranks"}
        return loader_of(dataclasses.replace(case, options=options, mix=""), val, "Loader")

    kind = Own if case.mode in ("Loader", "make_dataloader") else Model
    if case.validate:
        kind.validation_step = validation_step
        if kind is Own:
            kind.val_dataloader = val_dataloader
    model = kind()

    class Stopping(callbacks.Callback):
        epochs = validations = 0

        def save(self, trainer):
            trainer.save_checkpoint(path)
            raise Stopped

        def on_train_batch_end(self, trainer, *_):
            if record.reached("step", model.steps):
                self.save(trainer)

        def on_train_epoch_end(self, trainer, _):
            self.epochs += 1
            if record.reached("epoch", self.epochs):
                self.save(trainer)

        def on_validation_end(self, trainer, _):
            if trainer.sanity_checking:
                return
            self.validations += 1
            if record.reached("validation", self.validations):
                self.save(trainer)

        def on_exception(self, trainer, _, error):
            if record.stop is not None and record.stop.kind == "failed step":
                trainer.save_checkpoint(path)

    per_epoch = len(expected(case, root, 0)) // EPOCHS
    steps = EPOCHS * -(-per_epoch // case.accumulate)
    trainer = pytorch_lightning.Trainer(
        accelerator="cpu",
        devices=case.ranks,
        strategy="ddp" if case.ranks > 1 else "auto",
        max_epochs=-1 if case.by_steps else EPOCHS,
        max_steps=steps if case.by_steps else -1,
        limit_train_batches=case.limit or 1.0,
        accumulate_grad_batches=case.accumulate,
        num_sanity_val_steps=case.sanity,
        reload_dataloaders_every_n_epochs=int(case.reload),
        val_check_interval=2 if case.validate == "steps" and per_epoch > 1 else 1.0,
        use_distributed_sampler=False,
        callbacks=[Stopping()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    (places,) = lightning_places.for_pytorch_lightning()
    names = [type(callback).__name__ for callback in trainer.callbacks]
    if type(places).__name__ not in names:  # the package is not installed, but on the path
        trainer.callbacks.append(places)
    data = {}
    module = None
    if case.mode == "DataModule":
        split = {"val": SPLIT["val_fraction"], "split_seed": SPLIT["seed"]}
        module = DataModule(root, case.size, threads=case.workers + 1, **split, **case.options)
        data = {"datamodule": module}
    elif case.mode == "Loader of fit":
        data = {"train_dataloaders": loader_of(case, train, "Loader")}
        if case.validate:
            data["val_dataloaders"] = val_dataloader(model)
    resumed = {} if saved is None else {"ckpt_path": saved, "weights_only": False}
    try:
        trainer.fit(model, **data, **resumed)
    except Stopped:
        if module is not None:
            module.teardown()
        return path
    return None


def accelerate(case: Case, root: Path | str, folder: Path, record: Recorder, saved: Any) -> Any:
    """A loop with Accelerate, as its documentation has it."""
    from accelerate import Accelerator, skip_first_batches
    from accelerate.utils import DataLoaderConfiguration

    train, _ = parts_of(root)
    config = DataLoaderConfiguration(
        split_batches=case.mode == "split", dispatch_batches=case.mode == "dispatch"
    )
    accelerator = Accelerator(
        cpu=True, dataloader_config=config, gradient_accumulation_steps=case.accumulate
    )
    batch_count = 0
    if case.mode == "registered":
        loader = accelerator.prepare(loader_of(case, train, "Loader"))
        accelerator.register_for_checkpointing(loader)
        if saved is not None:
            accelerator.load_state(folder / "state")
            accelerator.wait_for_everyone()  # before anybody writes there again
    else:
        of_mode = case
        if case.mode == "split":  # batches are cut for the processes by Accelerate
            ranks = {"rank": 0, "world_size": 1}
            options = case.options | ranks
            of_mode = dataclasses.replace(case, size=case.size * case.ranks, options=options)
        if case.mode == "dispatch":
            of_mode = dataclasses.replace(case, options=case.options | {"pad_to_max": True})
        loader = accelerator.prepare(loader_of(of_mode, train, "make_dataloader"))
    first, batch_count = (0, 0) if saved is None else saved
    steps_taken = 0
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        rest = loader
        if batch_count and epoch == first and case.mode != "registered":
            # Where Accelerate joins the batches of all processes, it counts these.
            parts = case.ranks if case.mode == "dispatch" else 1
            rest = skip_first_batches(loader, batch_count * parts)
        for number, batch in enumerate(rest, 1 + (batch_count if epoch == first else 0)):
            record.seen.append(content(batch, epoch))
            steps_taken += 1
            at_limit = number == case.limit
            if record.reached("step", steps_taken):
                accelerator.save_state(folder / "state")
                accelerator.wait_for_everyone()
                ended = at_limit or number == len(loader)
                return (epoch + 1, 0) if ended else (epoch, number)
            if at_limit:
                break
        if record.reached("epoch", epoch - first + 1):
            accelerator.save_state(folder / "state")
            accelerator.wait_for_everyone()
            return epoch + 1, 0
    return None


def trainer(case: Case, root: Path | str, folder: Path, record: Recorder, saved: Any) -> Any:
    """The Trainer of transformers."""
    has_torchvision()  # before transformers imports it
    import transformers

    train, _ = parts_of(root)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, images, **rest):
            epoch = rest["mix_epoch"] if mix is not None else int(rest["epoch"].max())
            record.seen.append(content(rest, epoch))
            return {"loss": self.layer(images.float().mean((1, 2)) / 255).mean()}

    mix = mix_of(case, train) if case.mix else None
    if mix is not None and saved is not None:
        mix.load_state_dict(torch.load(Path(saved) / "mix.pt"))

    class PackTrainer(transformers.Trainer):
        def get_train_dataloader(self):
            if mix is not None:
                return mix
            return self.accelerator.prepare(loader_of(case, train, "make_dataloader"))

    class Stopping(transformers.TrainerCallback):
        def __init__(self):
            self.steps = self.epochs = 0

        def on_step_end(self, args, state, control, **_):
            self.steps += 1
            if record.reached("step", self.steps):
                control.should_save = control.should_training_stop = True

        def on_epoch_end(self, args, state, control, **_):
            self.epochs += 1
            if record.reached("epoch", self.epochs):
                control.should_save = control.should_training_stop = True

        def on_save(self, args, state, control, **_):
            if mix is not None:
                checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
                torch.save(mix.state_dict(), checkpoint / "mix.pt")

    arguments = transformers.TrainingArguments(
        str(folder / "trainer"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=case.size,
        gradient_accumulation_steps=case.accumulate,
        save_strategy="no",
        use_cpu=True,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        ignore_data_skip=mix is not None,
    )
    model = Model()
    hugging_face = PackTrainer(model, arguments, train_dataset=train, callbacks=[Stopping()])
    hugging_face.train(resume_from_checkpoint=saved)
    if hugging_face.state.global_step >= hugging_face.state.max_steps:
        return None
    return str(folder / "trainer" / f"checkpoint-{hugging_face.state.global_step}")


def torchdata(case: Case, root: Path | str, folder: Path, record: Recorder, saved: Any) -> Any:
    """A loop over torchdata's StatefulDataLoader, which saves its state."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    train, _ = parts_of(root)
    loader = own_loader(StatefulDataLoader, case, train)
    first = number = 0
    state = None
    if saved is not None:
        first, number, state = saved
    if state is not None:
        loader.load_state_dict(state)
    steps_taken = 0
    for epoch in range(first, EPOCHS):
        if state is None:  # otherwise the state has the epoch
            loader.batch_sampler.set_epoch(epoch)
        state = None
        loader.collate_fn.set_epoch(epoch)
        for batch in loader:
            record.seen.append(content(batch, epoch))
            steps_taken += 1
            number += 1
            at_limit = number == case.limit
            if record.reached("step", steps_taken):
                return (epoch + 1, 0, None) if at_limit else (epoch, number, loader.state_dict())
            if at_limit:
                break
        number = 0
        if record.reached("epoch", epoch - first + 1):
            return epoch + 1, 0, None if case.limit else loader.state_dict()
    return None


DRIVERS: dict[str, Callable] = {
    "plain": plain,
    "lightning": lightning,
    "accelerate": accelerate,
    "trainer": trainer,
    "torchdata": torchdata,
}


# ---------------------------------------------------------------------------------------- one case


def check(case: Case, root: Path, folder: Path, rank: int = 0) -> None:
    """Run a case in this process, the only one or one of several.

    Raises AssertionError if a run is not where it should be.
    """
    right = expected(case, root, rank)
    drive = DRIVERS[case.driver]
    saved = None
    trained: list[Step] = []
    validated: list[list] = []
    with place_of(case, root) as place:
        for stop in (*case.stops, None):
            record = Recorder(stop)
            saved = drive(case, place, folder, record, saved)
            trained += record.seen
            validated += record.validated
            if saved is None:
                break
    for number, (step, expected_step) in enumerate(zip(trained, right, strict=False)):
        assert step == expected_step, (
            f"step {number} was {step}, but is {expected_step} in a run without stops"
        )
    assert len(trained) == len(right), f"{len(trained)} steps in place of {len(right)}"
    whole = [batches for batches in validated if len(batches) == max(map(len, validated))]
    if case.mode == "DataModule":
        assert all(batches == whole[0] for batches in whole), "validations differ"


@contextmanager
def undisturbed() -> Iterator[None]:
    """Silence what libraries say about themselves, and restore the random numbers of torch."""
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        yield


def check_all(cases: Iterable[Case], folder: Path, rank: int = 0) -> None:
    """Run cases in this process, the only one or one of several, with what they save in a folder.

    Raises:
        AssertionError: a case is not right; a note says which it is.
    """
    root = folder / "packed"
    for case in cases:
        of_case = folder / str(case.seed)
        if case.ranks > 1 and case.driver not in ("lightning", "accelerate"):
            of_case = folder / f"{case.seed} {rank}"  # with those, rank 0 saves for all
        of_case.mkdir(exist_ok=True)
        try:
            with undisturbed():
                check(case, root, of_case, rank)
        except Exception as error:
            error.add_note(f"rank {rank} of python tests/helpers/driving.py {case.seed}: {case}")
            raise


def check_in_two_processes(cases: list[Case], folder: Path) -> None:
    """Fork this process into two, which run cases of two ranks."""
    rank = fork_ranks(2)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    try:
        for case in cases:
            check_all([case], folder, rank)
            torch.distributed.barrier()
    except Exception:
        traceback.print_exc()
        os._exit(1)  # the other process may wait for this one
    torch.distributed.destroy_process_group()
    if rank:
        os._exit(0)  # the folder is removed by rank 0


def main() -> None:
    """Run the cases of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("seeds", nargs="+", type=int, metavar="SEED")
    parser.add_argument("--mix", action="store_true", help="of a Mix")
    parser.add_argument("--driver", choices=DRIVERS, help="default: drawn of those that are usual")
    arguments = parser.parse_args()
    has_torchvision()  # before Lightning imports it
    cases = [case_of(seed, arguments.driver) for seed in arguments.seeds]
    if arguments.mix:
        cases = [mix_case_of(seed, arguments.driver) for seed in arguments.seeds]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pack(folder)
        check_all([case for case in cases if case.ranks == 1], folder)
        together = [case for case in cases if case.ranks == 2]
        if together:
            check_in_two_processes(together, folder)


if __name__ == "__main__":
    main()
