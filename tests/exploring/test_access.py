"""Nobody gets in without the token; no other site can ask; nothing leads out of pack and folder."""

import re
from urllib.parse import quote

import pytest

import sa1bpack

EVERYTHING = ("/", "/explore.js", "/explore.css", "/api/pack", "/api/axes", "/api/histograms",
              "/api/rows?start=0&stop=1", "/api/sample?index=0", "/image?index=0",
              "/thumbnail?index=0&side=200", "/nothing")  # fmt: skip


def test_the_address_with_the_token_sets_a_cookie_that_only_this_server_gets(client):
    answer = client.get(f"/?token={client.token}", Cookie=None)
    assert answer.status == 303 and answer.headers["Location"] == "/"  # without the token
    cookie = answer.headers["Set-Cookie"].split("; ")
    assert cookie == [client.cookie, "Path=/", "HttpOnly", "SameSite=Strict"]
    page = client.get("/", Cookie=cookie[0])
    assert page.status == 200 and b"<!DOCTYPE html>" in page.body
    assert client.token.encode() not in page.body


def test_tokens_are_long_and_random(served, pack):
    tokens = {served(pack).token for _ in range(3)}
    assert len(tokens) == 3 and all(len(token) >= 32 for token in tokens)


@pytest.mark.parametrize("path", EVERYTHING)
def test_without_the_token_nothing_is_answered(client, path):
    other = client.cookie[:-1] + ("a" if client.cookie[-1] != "a" else "b")
    name = client.cookie.partition("=")[0]
    for cookie in (None, "", "x=y", other, f"{name}=", f"sa1bpack-1={client.token}", "\x00;=;"):
        answer = client.get(path, Cookie=cookie)
        assert answer.status == 403 and "printed" in answer.record["error"]
        assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("token", ["", "x", "é", "%00", "x" * 1000])
def test_another_token_is_refused_also_with_the_cookie(client, token):
    assert client.get(f"/?token={quote(token)}", Cookie=None).status == 403
    if token:
        assert client.get(f"/?token={quote(token)}").status == 403
    assert client.get(f"/api/pack?token={client.token}", Cookie=None).status == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "",
             "evil.example:80", "[::2]", "0.0.0.0", "x@127.0.0.1@evil.example", "["],
)  # fmt: skip
def test_on_loopback_a_foreign_host_is_refused(client, host):
    """A page of another site may give its name the address of this machine."""
    for path in ("/", f"/?token={client.token}", "/api/rows?start=0&stop=1"):
        assert client.get(path, Host=host).status == 403
    saved = client.save({"name": "a.sel"}, Host=host, Origin=f"http://{host}")
    assert saved.status == 403


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1", "[::1]:8711", "LOCALHOST"])
def test_names_of_loopback_are_answered_as_through_an_ssh_tunnel(client, host):
    assert client.get("/api/pack", Host=host).status == 200


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://localhost:1", "http://", "http://["]
)
def test_only_the_page_itself_saves(saver, tmp_path, origin):
    answer = saver.save({"name": "a.sel", "positions": [1]}, Origin=origin)
    assert answer.status == 403 and "only the page" in answer.record["error"]
    assert list((tmp_path / "saved").iterdir()) == []


def test_saving_needs_the_cookie_json_and_a_length(saver, tmp_path):
    record = {"name": "a.sel", "positions": [1]}
    assert saver.save(record, Cookie=None).status == 403
    assert saver.save(record, Content_Type="text/plain").status == 415
    assert saver.save(record, Content_Length=str(1 << 40)).status == 413
    assert saver.save(record, Content_Length="-1").status == 411
    sent = {"Origin": f"http://{saver.address}", "Content_Type": "application/json"}
    assert saver.send("POST", "/api/pack", b"{}", **sent).status == 404
    assert saver.send("POST", "/api/save", b"{", **sent).status == 400
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert saver.send(method, "/api/save", b"{}", **sent).status == 501
    assert list((tmp_path / "saved").iterdir()) == []


NAMES = ["../a.sel", "/tmp/a.sel", "a/b.sel", "..", ".", "", ".hidden", "a\\b", "a\0b", "a\nb"]
NAMES.append("x" * 201)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leads_out_of_the_folder_is_refused(saver, tmp_path, name):
    answer = saver.save({"name": name, "positions": [1]})
    assert answer.status == 400 and "name is" in answer.record["error"]
    assert {path.name for path in tmp_path.iterdir()} == {"saved"}
    assert list((tmp_path / "saved").iterdir()) == []


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/explore.js/../../x",
             "/page/explore.js", "/server.py", "/%2e%2e/server.py", "/manifest.json", "//[",
             "http://127.0.0.1/api/pack", "/api/pack#x", "*"],
)  # fmt: skip
def test_paths_lead_to_nothing_but_the_page(client, path):
    assert client.get(path).status == 404


def test_a_selection_is_not_saved_into_a_pack(served, pack):
    answer = served(pack, folder=pack).save({"name": "a.sel", "positions": [1]})
    assert answer.status == 400 and not (pack / "a.sel").exists()


def test_the_page_loads_nothing_from_elsewhere_and_runs_no_script_of_others(client):
    for path in ("/", "/explore.css", "/explore.js"):
        answer = client.get(path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in answer.headers
        urls = set(re.findall(r"https?://[^\s\"')]+", answer.body.decode()))
        assert urls <= {"http://www.w3.org/2000/svg"}  # a name, not an address
        assert not re.search(r"\son\w+=|style=|javascript:", answer.body.decode())
        assert "innerHTML" not in answer.body.decode()


def test_with_a_host_of_its_own_the_token_is_needed_and_any_name_is_answered(served, pack):
    client = served(pack, host="0.0.0.0")
    client.address = f"127.0.0.1:{client.address.rpartition(':')[2]}"
    assert client.get("/api/pack", Host="node17.cluster:8711").status == 200
    assert client.get("/api/pack", Host="node17.cluster:8711", Cookie=None).status == 403


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"port": 70000}, "port is 70000"), ({"port": "x"}, "port is 'x'"), ({"hosts": 3}, "host"),
        ({"host": "a.host.invalid"}, "cannot listen there"), ({"host": 3}, "host is 3"),
        ({"folder": "/nowhere"}, "create it"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_an_option_error(pack, options, text):
    with pytest.raises(sa1bpack.OptionError, match=text):
        sa1bpack.explore(pack, **options)


def test_a_port_in_use_is_named_and_without_one_another_is_taken(served, pack):
    port = int(served(pack).address.rpartition(":")[2])
    with pytest.raises(sa1bpack.OptionError, match=f"port is {port}, which is in use"):
        sa1bpack.explore(pack, port=port)
    assert {served(pack, port=None).get("/api/pack").status for _ in range(2)} == {200}
