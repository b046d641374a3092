"""`--engine` and `--address`, of the commands that can work on a Ray cluster."""

import argparse

from sa1bpack.errors import OptionError


def add_engine(parser, tasks: str) -> None:
    """Add both options to a parser or a group of it; `tasks` says what is a task."""
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local",
        help=f"where the work is done: on this machine, or on a Ray cluster whose nodes share all "
        f"folders: {tasks} (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="of the Ray cluster (default: RAY_ADDRESS, or this machine alone)",
    )


def on_ray(arguments: argparse.Namespace, *without: str) -> bool:
    """Whether the command runs on a Ray cluster.

    Raises OptionError if so and an option of these names is given, or if only an address is.
    """
    if arguments.engine != "ray":
        if arguments.address is not None:
            raise OptionError("--address is that of a Ray cluster: add --engine ray")
        return False
    given = [name for name in without if getattr(arguments, name) not in (None, False, [])]
    if given:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise OptionError(f"--engine ray does all of the work: leave out {flags}")
    return True
