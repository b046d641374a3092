"""The HTTP server: one thread per connection, and none is left when it closes."""

import logging
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec

from sa1bpack.errors import OptionError, OutputRefused, Sa1bpackError
from sa1bpack.exploring.access import Access
from sa1bpack.exploring.answers import MOST_ROWS, THUMBNAIL_SIDES, Answers, NotReady
from sa1bpack.exploring.filters import Filter
from sa1bpack.paths import exists
from sa1bpack.threads import start_thread
from sa1bpack.wording import brief, printable

_log = logging.getLogger("sa1bpack")

_IDLE = 60  # seconds until a connection on which nothing is asked is closed
_POLL = 0.2  # seconds until the thread that accepts connections sees that it should end
_MOST_CONNECTIONS = 100
_MOST_FIELDS = 40  # of a query
MOST_BODY = 1 << 25  # bytes of what is posted: 2 million picked images
_LONGEST_NAME = 40  # of a page
_NAME_BYTES = 200  # of the file of a selection

_PAGE = {
    "/": ("explore.html", "text/html; charset=utf-8"),
    "/explore.css": ("explore.css", "text/css; charset=utf-8"),
    "/explore.js": ("explore.js", "text/javascript; charset=utf-8"),
}
_JSON = "application/json"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_FOR_A_WHILE = "private, max-age=3600"  # the page names what never changes while this server runs


class Refused(Exception):
    """A request that is not answered: its status, and a text that says why."""

    def __init__(self, status: HTTPStatus, text: str):
        super().__init__(text)
        self.status = status


class Saving(msgspec.Struct, forbid_unknown_fields=True):
    """What the page posts to save a selection.

    Attributes:
        name: of the file, in the folder of the server.
        overwrite: replace an earlier selection of that name.
        positions: the images that were picked; None: those that meet the filter.
        filter: as in a query.
    """

    name: str
    overwrite: bool = False
    positions: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]] | None = None
    filter: dict[str, str] = {}


class PageServer(socketserver.TCPServer):
    """The server of one page.

    Attributes:
        answers: what the page learns.
        access: who is let in.
        folder: where selections are saved.
        saving: held while one is.
    """

    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, answers: Answers, folder: Path):
        """Raises OSError if nothing can listen there."""
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), Handler)
        self.answers = answers
        self.folder = folder
        self.access = Access(host, self.server_address[1])
        self.saving = threading.Lock()
        folder_of_page = files("sa1bpack.exploring") / "page"
        self.page = {
            path: (kind, (folder_of_page / name).read_bytes())
            for path, (name, kind) in _PAGE.items()
        }
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread | None] = {}
        self._is_closing = False
        self._accepting = start_thread(partial(self.serve_forever, _POLL), "page server")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        with self._lock:
            is_refused = self._is_closing or len(self._connections) >= _MOST_CONNECTIONS
            if not is_refused:
                self._connections[request] = None
        if is_refused:
            self.shutdown_request(request)
            return
        try:
            thread = start_thread(partial(self._serve, request, client_address), "page connection")
        except Sa1bpackError:
            self._forget(request)
            raise
        with self._lock:
            if request in self._connections:
                self._connections[request] = thread

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        """Answer what is asked on a connection, until it ends; in a thread of its own."""
        try:
            with suppress(ConnectionError, TimeoutError):  # the client went away
                self.finish_request(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._connections.pop(request, None)
        self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong in accepting a connection."""
        _log.warning("a connection could not be served", exc_info=True)

    def wait(self, seconds: float) -> bool:
        """True if the server has ended within some seconds."""
        self._accepting.join(seconds)
        return not self._accepting.is_alive()

    def close(self) -> None:
        """End the server and all connections, and wait for their threads."""
        with suppress(OSError):  # of systems on which this does not wake who accepts connections
            self.socket.shutdown(socket.SHUT_RDWR)
        self.shutdown()
        self._accepting.join()
        with self._lock:
            self._is_closing = True
            connections = dict(self._connections)
        for request in connections:
            with suppress(OSError):  # it has ended meanwhile
                request.shutdown(socket.SHUT_RDWR)
        for thread in connections.values():
            if thread is not None:
                thread.join()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version = "sa1bpack"
    sys_version = ""
    timeout = _IDLE
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the first address has the token."""

    def do_GET(self) -> None:
        """Answer a request that reads."""
        self._answer(self._read)

    def do_POST(self) -> None:
        """Answer a request that saves."""
        self._answer(self._save)

    def _answer(self, make: Callable[[str, dict[str, str]], None]) -> None:
        """Let a request in, and answer it, or say why not."""
        path, _, fields = self.path.partition("?")
        try:
            query = self._query(fields)
            self._let_in(path, query)
            make(path, query)
        except Refused as refused:
            self._send_error(refused.status, str(refused))
        except OptionError as error:
            self._send_error(HTTPStatus.BAD_REQUEST, str(error))
        except OutputRefused as error:
            self._send_error(HTTPStatus.CONFLICT, str(error))
        except NotReady as error:
            self._send_error(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except ConnectionError:
            raise
        except (Sa1bpackError, OSError) as error:
            self._send_error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except Exception as error:
            _log.exception("%s could not be answered", printable(path))
            self._send_error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    def _query(self, text: str) -> dict[str, str]:
        """The fields of a query. Raises Refused if one is there twice."""
        try:
            pairs = parse_qsl(text, max_num_fields=_MOST_FIELDS)
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST, "the query has too many fields") from None
        query = dict(pairs)
        if len(query) < len(pairs):
            raise Refused(HTTPStatus.BAD_REQUEST, "a field of the query is there twice")
        return query

    def _let_in(self, path: str, query: dict[str, str]) -> None:
        """Raise Refused unless a request has the cookie, or the page is opened with the token."""
        access = self.server.access
        if not access.is_host_allowed(self.headers.get("Host")):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"the host {brief(self.headers.get('Host'))} is not that of this server, which is "
                "for this machine alone: open localhost or 127.0.0.1",
            )
        if access.has_cookie(self.headers.get("Cookie")):
            return
        if path == "/" and self.command == "GET" and access.is_token(query.get("token")):
            return
        raise Refused(
            HTTPStatus.FORBIDDEN,
            "open the address that `sa1bpack explore` has printed, with its token",
        )

    # ------------------------------------------------------------------------------------- reading

    def _read(self, path: str, query: dict[str, str]) -> None:
        """Answer a GET."""
        if path == "/" and "token" in query:
            self._open_page(query["token"])
        elif path in self.server.page:
            kind, body = self.server.page[path]
            self._send(kind, body)
        elif path in _READERS:
            _READERS[path](self, query)
        else:
            raise Refused(HTTPStatus.NOT_FOUND, f"there is no {brief(path)} here")

    def _open_page(self, token: str) -> None:
        """Set the cookie, and lead to the address without the token, which histories then keep."""
        if not self.server.access.is_token(token):
            raise Refused(HTTPStatus.FORBIDDEN, "the token is not that of this server")
        cookie = self.server.access.cookie()
        self._send("text/plain", b"", HTTPStatus.SEE_OTHER, Location="/", Set_Cookie=cookie)

    def _about(self, query: dict[str, str]) -> None:
        record = self.server.answers.about()
        self._send_json({**record, "folder": str(self.server.folder)})

    def _axes(self, query: dict[str, str]) -> None:
        self._send_json(self.server.answers.axes())

    def _histograms(self, query: dict[str, str]) -> None:
        answers = self.server.answers
        self._send_json(answers.histograms(Filter.parse(query, answers.dataset)))

    def _rows(self, query: dict[str, str]) -> None:
        answers = self.server.answers
        start = self._number(query, "start", 0, 1 << 40)
        stop = self._number(query, "stop", start, start + MOST_ROWS)
        page = query.pop("page", "")[:_LONGEST_NAME]
        del query["start"], query["stop"]
        chosen = Filter.parse(query, answers.dataset)
        self._send_json(answers.rows(chosen, start, stop, page))

    def _sample(self, query: dict[str, str]) -> None:
        self._send_json(self.server.answers.sample(self._index(query)), _FOR_A_WHILE)

    def _image(self, query: dict[str, str]) -> None:
        self._send("image/jpeg", self.server.answers.image(self._index(query)), cache=_FOR_A_WHILE)

    def _thumbnail(self, query: dict[str, str]) -> None:
        side = self._number(query, "side", 1, max(THUMBNAIL_SIDES))
        if side not in THUMBNAIL_SIDES:
            raise Refused(HTTPStatus.BAD_REQUEST, f"side is {side}: choose of {THUMBNAIL_SIDES}")
        with_masks = query.get("masks") == "1"
        jpeg = self.server.answers.thumbnail(self._index(query), side, with_masks)
        self._send("image/jpeg", jpeg, cache=_FOR_A_WHILE)

    def _feature(self, query: dict[str, str]) -> None:
        picture = self.server.answers.feature_map(self._index(query), query.get("name", ""))
        self._send("image/png", picture, cache=_FOR_A_WHILE)

    def _index(self, query: dict[str, str]) -> int:
        """The position of a sample in the dataset."""
        return self._number(query, "index", 0, len(self.server.answers.dataset) - 1)

    def _number(self, query: dict[str, str], name: str, low: int, high: int) -> int:
        """A whole number of the query. Raises Refused if it is missing or out of range."""
        text = query.get(name, "")
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise Refused(HTTPStatus.BAD_REQUEST, f"{name} is {brief(text)}: give a whole number")
        if not low <= int(text) <= high:
            raise Refused(HTTPStatus.NOT_FOUND, f"{name} is {text}: give one from {low} to {high}")
        return int(text)

    # -------------------------------------------------------------------------------------- saving

    def _save(self, path: str, query: dict[str, str]) -> None:
        """Answer a POST: save a selection in the folder of the server."""
        headers = self.headers
        if path != "/api/save":
            raise Refused(HTTPStatus.NOT_FOUND, f"nothing can be saved at {brief(path)}")
        if not self.server.access.is_own_origin(headers.get("Origin"), headers.get("Host")):
            raise Refused(HTTPStatus.FORBIDDEN, "only the page of this server may save")
        if headers.get_content_type() != _JSON:
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"post {_JSON}")
        try:
            saving = msgspec.json.decode(self._body(), type=Saving)
        except msgspec.MsgspecError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, f"not what is saved: {error}") from None
        check_file_name(saving.name)
        answers = self.server.answers
        file = self.server.folder / saving.name
        chosen: list[int] | Filter = Filter.parse(saving.filter, answers.dataset)
        if saving.positions is not None:
            chosen = saving.positions
        with self.server.saving:
            if file.is_symlink() or (exists(file) and not saving.overwrite):
                raise Refused(HTTPStatus.CONFLICT, f"{file} exists")
            self._send_json(answers.save(file, chosen))

    def _body(self) -> bytes:
        """What was posted. Raises Refused if that is too long, or its length is unknown."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
        if len(length) > 12 or int(length) > MOST_BODY:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {MOST_BODY:,} bytes were posted"
            )
        return self.rfile.read(int(length))

    # ------------------------------------------------------------------------------------- sending

    def _send_json(self, record: Any, cache: str = "no-store") -> None:
        body = msgspec.json.encode(record, enc_hook=lambda array: array.tolist())
        self._send(_JSON, body, cache=cache)

    def _send_error(self, status: HTTPStatus, text: str) -> None:
        self.close_connection = True  # what was posted may not have been read
        body = msgspec.json.encode({"error": text})
        self._send(_JSON, body, status, Connection="close")

    def _send(
        self,
        kind: str,
        body: bytes,
        status: HTTPStatus = HTTPStatus.OK,
        cache: str = "no-store",
        **headers: str,
    ) -> None:
        """Send an answer; `Set_Cookie` is the header "Set-Cookie"."""
        self.send_response(status)
        all_headers = {"Content-Type": kind, "Cache-Control": cache, **_HEADERS, **headers}
        for name, value in all_headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


# Path → the method of Handler that answers.
_READERS: dict[str, Callable[[Handler, dict[str, str]], None]] = {
    "/api/pack": Handler._about,
    "/api/axes": Handler._axes,
    "/api/histograms": Handler._histograms,
    "/api/rows": Handler._rows,
    "/api/sample": Handler._sample,
    "/image": Handler._image,
    "/thumbnail": Handler._thumbnail,
    "/feature": Handler._feature,
}


def check_file_name(name: str) -> None:
    """Raise OptionError unless a text is the plain name of a file: no folder, and not hidden."""
    is_plain = bool(name) and name == Path(name).name and name[0] != "." and name.isprintable()
    if not is_plain or "\\" in name or len(name.encode(errors="replace")) > _NAME_BYTES:
        raise OptionError(
            f"name is {brief(name)}: give the name of a file without a folder, of at most "
            f"{_NAME_BYTES} bytes, that does not begin with a dot"
        )
