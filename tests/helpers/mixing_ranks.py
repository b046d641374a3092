"""Ranks that train from a Mix of three sources, save its state, and are killed at any moment.

`python tests/helpers/mixing_ranks.py FOLDER WORLD_SIZE AT_END STEPS`: FOLDER has the packs of
`mixing.write_packs`; `state.json` there is the checkpoint, and each rank appends what it sees to
`seen-RANK.jsonl`, before the checkpoint of the same step.
"""

import json
import sys
from pathlib import Path

import torch
from forked_ranks import fork_ranks
from mixing import datasets, mix_of, seen

# Batches of an epoch with at_end="restart".
STEPS_PER_EPOCH = 9
# A checkpoint is saved after so many batches.
EVERY = 2


def main() -> None:
    """Train up to a step of the mix."""
    folder = Path(sys.argv[1])
    world_size = int(sys.argv[2])
    at_end = sys.argv[3]
    last_step = int(sys.argv[4])
    rank = fork_ranks(world_size)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting-{world_size}",
        rank=rank,
        world_size=world_size,
    )
    steps = STEPS_PER_EPOCH if at_end == "restart" else None
    mix = mix_of(datasets(folder), at_end=at_end, steps=steps)
    checkpoint = folder / "state.json"
    if checkpoint.exists():
        mix.load_state_dict(json.loads(checkpoint.read_text()))
    with (folder / f"seen-{rank}.jsonl").open("a") as log:
        step = -1
        while step < last_step:
            for batch in mix:
                step = batch["mix_step"]
                print(json.dumps(seen(batch)), file=log, flush=True)
                torch.distributed.barrier()  # as the step of a training
                if rank == 0 and step % EVERY == 0:
                    save(checkpoint, mix.state_dict())
                torch.distributed.barrier()
                if step == last_step:
                    break
    torch.distributed.destroy_process_group()


def save(path: Path, state: dict) -> None:
    """Write a state in place of the one before, or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(state))
    unfinished.replace(path)


if __name__ == "__main__":
    main()
