"""URLs are shown without what may be secret in them."""

import pickle

import pytest

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.urls import parse_address

SIGNED = "https://cdn.example.org/m1/An9f.tar?_nc_ohc=SECRET&oh=SECRET&oe=66#SECRET"


def open_pack(url: str):
    return sa1bpack.open(url)


def read_tar(url: str):
    return sa1bpack.estimate(url, "out")


@pytest.mark.parametrize("name", [None, "sa_000000.tar"])
def test_text_of_an_address_holds_no_secret_and_its_pickle_all(name):
    address = parse_address("source", SIGNED, name)
    assert "SECRET" not in f"{address} {address!r}"
    assert str(address) == (
        "https://cdn.example.org/m1/An9f.tar" if name is None
        else "sa_000000.tar (from cdn.example.org)"
    )  # fmt: skip
    assert address.name == (name or "An9f.tar")
    assert pickle.loads(pickle.dumps(address)).url == SIGNED


def test_the_key_of_an_address_is_as_it_is_written_and_its_name_is_that_of_a_file():
    address = parse_address("source", "s3://bucket/a/b%20c.tar")
    assert (address.scheme, address.bucket, address.key) == ("s3", "bucket", "a/b%20c.tar")
    assert address.name == "b%20c.tar"  # a key is what it is
    assert parse_address("source", "https://host/a/b%20c.tar").name == "b c.tar"


@pytest.mark.parametrize(
    ("read", "url", "fault"),
    [
        (read_tar, "https://host?next=https://a@b/SECRET", "'https://host': .* no file"),
        (read_tar, "ftp://h/a.tar", "ftp URLs are not supported"),
        (read_tar, "https:///a.tar?SECRET", "names no host"),
        (read_tar, "https://host:SECRET/a.tar?SECRET", "names no host"),
        (read_tar, "s3:///SECRET", "names no bucket"),
        (read_tar, "GS:///a", "names no bucket"),
        (read_tar, "https://host/?SECRET", "names no file"),
        (read_tar, "https://host", "names no file"),
        (read_tar, "https://host/a/%2F?SECRET#SECRET", "names no file"),
        (read_tar, "https://me:SECRET@host/a.tar", "with a user name before the host"),
        (read_tar, "https://host/a.tar?SECRET\r\nX: y", "white space or a control character"),
        (read_tar, "https://host/a b.tar?SECRET", "white space or a control character"),
        (open_pack, "s3://bucket/one?X-Amz-Signature=SECRET", "with a query or a fragment"),
        (open_pack, "s3://bucket#SECRET", "with a query or a fragment"),
        (open_pack, "s3://key:SECRET@bucket/one", "with a user name before the bucket"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_secrets(read, url, fault):
    with pytest.raises(OptionError, match=f"^(source|path) is .*{fault}") as caught:
        read(url)
    if "names no" not in fault:
        assert "SECRET" not in str(caught.value)
    assert "?" not in str(caught.value)
