"""`sa1bpack.explore`: a page about a pack, served until it is closed."""

import errno
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from sa1bpack.arguments import whole_number
from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import OptionError, Sa1bpackError
from sa1bpack.exploring.answers import Answers
from sa1bpack.exploring.server import PageServer
from sa1bpack.format.side.manifest import is_side
from sa1bpack.format.side.shards import SIDES_NAME
from sa1bpack.indices import torch_subset
from sa1bpack.keywords import checks_options
from sa1bpack.paths import is_folder, local_path
from sa1bpack.wording import brief

PORT = 8711  # the default, if it is free
_EVERYWHERE = ("0.0.0.0", "::", "")  # addresses that stand for all of a machine


class Explorer:
    """A page that is being served; close it, or use it in a `with` block.

    Attributes:
        url: the address of the page, with the token that lets a browser in.
        folder: where the page saves selections.
        notes: what is not shown, such as features that cannot be opened.
    """

    def __init__(self, server: PageServer, host: str):
        """Made by `sa1bpack.explore`."""
        self._server = server
        self._is_closed = False
        self.folder = server.folder
        self.notes = tuple(server.answers.notes)
        shown = socket.gethostname() if host in _EVERYWHERE else host
        if ":" in shown:
            shown = f"[{shown}]"
        port = server.server_address[1]
        self.url = f"http://{shown}:{port}/?token={server.access.token}"

    def wait(self) -> None:
        """Serve until the page is closed, by another thread or by Ctrl-C, which is raised."""
        while not self._server.wait(1.0):
            pass

    def close(self) -> None:
        """End the server, its connections and their threads."""
        if not self._is_closed:
            self._is_closed = True
            self._server.close()
            self._server.answers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else self.url
        return f"<Explorer of {self._server.answers.dataset.pack.name}: {state}>"


@checks_options
def explore(
    pack: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Dataset,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    folder: str | os.PathLike[str] = ".",
    layouts: str = "equal",
) -> Explorer:
    """Serve a page to look at a pack: images, masks and their numbers, filters, selections.

    The page is at `url`, which has a random token; nobody else is let in. Threads of this process
    answer until `close` is called, or the `with` block ends.

    Args:
        pack: the folder of a pack, several, a glob pattern, or the file of a saved selection. Or a
            dataset, for a pack at a URL, chosen samples, thresholds of masks, or features in other
            places; its transform is not called. Of a path, the features in PACK/side are shown.
        host: address to listen at. That of another interface than loopback lets other machines
            connect, by plain HTTP: an SSH tunnel to loopback is encrypted.
        port: port to listen at; 0 is a free one that the system chooses. None: 8711, or a free one
            if that is in use.
        folder: where the page saves selections, which `sa1bpack.open` and `Dataset.load_selection`
            read.
        layouts: what becomes of packs whose layouts differ, as in `sa1bpack.open`.

    Raises:
        OptionError: a pack without images or that cannot be opened, a folder that does not exist, a
            host or a port that cannot be listened at.
        FormatError: the pack or its index is damaged. Damage of a shard is shown on the page.
        MissingPackage: neither pillow-simd nor Pillow is installed.

    Examples:
        >>> with sa1bpack.explore("packed", port=0) as page:
        ...     print(page.url.partition(":")[0])
        http
    """
    if not isinstance(host, str):
        raise OptionError(f"host is {brief(host)}: give a name or an address")
    if port is not None:
        port = whole_number("port", port, 0, 65535)
    saved_to = local_path("folder", folder).absolute()
    if not is_folder(saved_to):
        raise OptionError(f"folder is {str(folder)!r}, which is no folder: create it first")
    if isinstance(pack, Dataset) or torch_subset(pack)[1]:
        dataset = as_dataset(pack)
        notes: list[str] = []
    else:
        dataset, notes = _with_features(open_pack(pack, duplicates="all", layouts=layouts))
    if not len(dataset):
        raise OptionError(f"{dataset.pack.name}: the dataset has no images to show")
    answers = Answers(dataset, notes)
    try:
        server = _listening(host, port, answers, saved_to)
    except BaseException:
        answers.close()
        raise
    return Explorer(server, host)


def _listening(host: str, port: int | None, answers: Answers, folder: Path) -> PageServer:
    """A server at a port, or at a free one. Raises OptionError if that cannot be."""
    ports = (PORT, 0) if port is None else (port,)
    for tried in ports:
        try:
            return PageServer(host, tried, answers, folder)
        except OSError as error:
            reason = error
            if error.errno != errno.EADDRINUSE:
                break
    if reason.errno == errno.EADDRINUSE:
        raise OptionError(f"port is {port}, which is in use: choose another, or 0 for a free one")
    raise OptionError(f"host is {brief(host)}, port {ports[0]}: cannot listen there: {reason}")


def _with_features(dataset: Dataset) -> tuple[Dataset, list[str]]:
    """A dataset with those features in the folders of its packs that fit, and why others do not."""
    names: set[str] = set()
    for folder in dataset.pack.folders:
        sides = folder.root / SIDES_NAME
        if folder.source is None and is_folder(sides):
            names |= {path.name for path in sides.iterdir() if is_side(path)}
    chosen: list[str] = []
    notes = []
    for name in sorted(names):
        try:
            dataset = dataset.with_options(features=[*chosen, name])
        except (Sa1bpackError, OSError) as error:
            notes.append(f"feature {name} is not shown: {error}")
        else:
            chosen.append(name)
    return dataset, notes
