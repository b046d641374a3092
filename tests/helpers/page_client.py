"""A client of `sa1bpack.explore`."""

import http.client
import json
from types import SimpleNamespace
from urllib.parse import quote, urlsplit


class Client:
    """Asks the server of a page, one connection for each request.

    Attributes:
        token: of the page.
        address: host and port that are connected to.
        cookie: what a browser sends once it has opened the page.
    """

    def __init__(self, url: str):
        parts = urlsplit(url)
        self.token = parts.query.removeprefix("token=")
        self.address = parts.netloc
        self.cookie = f"sa1bpack-{parts.port}={self.token}"

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str | None):
        """A request with these headers (`Content_Type` is Content-Type), None for one left out:
        its status, headers and body."""
        sent = {"Cookie": self.cookie, **headers}
        named = {name.replace("_", "-"): value for name, value in sent.items() if value is not None}
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        found = SimpleNamespace(
            status=answer.status, headers=answer.headers, body=answer.read(), record=None
        )
        connection.close()
        if answer.headers["Content-Type"] == "application/json":
            found.record = json.loads(found.body)
        return found

    def get(self, path: str, **headers: str | None):
        """The answer to a GET."""
        return self.send("GET", path, **headers)

    def ask(self, path: str, **query):
        """The record of an answer, which must be a success."""
        fields = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
        answer = self.get(f"{path}?{fields}")
        assert answer.status == 200, answer.body
        return answer.record

    def view(self, **query) -> list[int]:
        """The positions of all samples that meet a filter, once they are found."""
        while not self.ask("/api/rows", start=0, stop=0, **query)["is_done"]:
            pass
        rows = self.ask("/api/rows", start=0, stop=1000, **query)["rows"]
        return [position for position, _, _ in rows]

    def save(self, record: dict, **headers: str | None):
        """The answer to a page that saves a selection."""
        sent = {"Content_Type": "application/json", "Origin": f"http://{self.address}", **headers}
        return self.send("POST", "/api/save", json.dumps(record).encode(), **sent)
