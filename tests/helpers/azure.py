"""As much of Azure's blob storage as packs need: a server that lists, reads, writes and deletes."""

import re
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

import pytest
from fault_server import FaultServer, Handler, send

_BLOB = (
    "<Blob><Name>{name}</Name><Properties><Last-Modified>Sun, 22 Nov 2026 00:00:00 GMT"
    "</Last-Modified><Etag>a</Etag><Content-Length>{nbytes}</Content-Length>"
    "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
)
_LIST = (
    '<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="{container}"><Blobs>'
    "{blobs}</Blobs><NextMarker/></EnumerationResults>"
)


def use_azure(web: FaultServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the server answer as Azure's does, as what the environment names.

    Blobs are the server's files. Returns the URL of a container that no other server has.
    """
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", web.url)
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")

    def answer(handler: Handler, data: bytes | None) -> None:
        path, _, query = handler.path.partition("?")
        asked = parse_qs(query)
        if handler.command in ("PUT", "DELETE"):
            _change(web, handler, unquote(path), asked)
            return
        if asked.get("comp") == ["list"]:
            [prefix] = asked.get("prefix", [""])
            data = _listing(web, unquote(path).strip("/"), prefix)
        if data is None:
            handler.send_head(404, {"x-ms-error-code": "BlobNotFound"})
        else:
            send(handler, data)

    web.always = answer
    return f"az://container-{web.url.rpartition(':')[2]}"


def _change(web: FaultServer, handler: Handler, path: str, asked: dict[str, list[str]]) -> None:
    """Write a blob, whole or in blocks of which a list comes last; or delete one."""
    body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    if handler.command == "DELETE":
        known = web.files.pop(path, None) is not None
        handler.send_head(202 if known else 404, {"x-ms-error-code": "BlobNotFound"})
        return
    kind = asked.get("comp", [""])[0]
    blocks = web.blocks.setdefault(path, {})
    if kind == "block":
        blocks[asked["blockid"][0]] = body
    elif kind == "blocklist":
        names = re.findall("<(?:Uncommitted|Latest)>([^<]*)<", body.decode())
        web.files[path] = b"".join(blocks[name] for name in names)
    else:
        assert handler.headers["x-ms-blob-type"] == "BlockBlob"
        web.files[path] = body
    handler.send_head(201, {"ETag": '"a"', "Last-Modified": "Sun, 22 Nov 2026 00:00:00 GMT"})


def _listing(web: FaultServer, container: str, prefix: str) -> bytes:
    """What a container has below a prefix, in one page."""
    blobs = []
    for path, data in web.files.items():
        name = path.removeprefix(f"/{container}/")
        if name != path and name.startswith(prefix):
            blobs.append(_BLOB.format(name=escape(name), nbytes=len(data)))
    return _LIST.format(container=container, blobs="".join(blobs)).encode()
