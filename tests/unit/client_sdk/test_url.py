"""The connection string."""

from __future__ import annotations

import pytest

from client_sdk import Cornerman, CornermanError, WrongConnectionString
from client_sdk._url import from_environment, parse

HASH = "ab" * 32
TOKEN = "s3cr3t-Token_x"


def test_reads_every_part() -> None:
    """Host, port, token and the CA's hash come out as they went in."""
    target = parse(f"cornerman://{TOKEN}@ec2.example.org:9443?ca=sha256:{HASH.upper()}")
    assert (target.host, target.port, target.ca_sha256, target.tls) == ("ec2.example.org", 9443, HASH, True)
    assert target.token.get_secret_value() == TOKEN
    assert target.base_url == "https://ec2.example.org:9443"


def test_port_has_a_default() -> None:
    """Without a port it is 8443, and without a hash the system's roots decide."""
    target = parse(f"cornerman://{TOKEN}@host")
    assert (target.port, target.ca_sha256) == (8443, None)


def test_pasted_string_may_have_space_and_quotes_around_it() -> None:
    """What a paste brings along does no harm."""
    assert parse(f' "cornerman://{TOKEN}@host:1" \n').host == "host"


def test_ipv6_address_keeps_its_brackets() -> None:
    """An IPv6 address makes a URL that works."""
    assert parse(f"cornerman://{TOKEN}@[2001:db8::7]:8443").base_url == "https://[2001:db8::7]:8443"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("https://{}@host", "cornerman://"),
        ("{}", "cornerman://"),
        ("cornerman://{}", "token"),
        ("cornerman://@host:8443/{}", "token"),
        ("cornerman://{}@", "host"),
        ("cornerman://{}@ho st", "host"),
        ("cornerman://{}@[::1", "host"),
        ("cornerman://{}:pw@host", "token"),
        ("cornerman://{}@host:99999", "port"),
        ("cornerman://{}@host:0", "port"),
        ("cornerman://{}@host:x", "port"),
        ("cornerman://{}@host/path", "port"),
        ("cornerman://{}@host#x", "port"),
        ("cornerman://{}@host?ca=sha256:abcd", "64"),
        ("cornerman://{}@host?ca=", "64"),
        ("cornerman://{}@host?ca", "64"),
        ("cornerman://{}@host?;", "ca"),
        ("cornerman://{}@host?cb=sha256:" + HASH, "ca"),
        ("cornerman://{}@host?ca=sha256:" + HASH + "&x=1", "ca"),
        ("cornerman+http://{}@example.org:80", "this machine only"),
        ("cornerman+http://{}@127.0.0.1:80?ca=sha256:" + HASH, "this machine only"),
    ],
)
def test_wrong_string_gets_one_sentence_without_the_token(text: str, what: str) -> None:
    """Every wrong string says what is wrong with it and never repeats the token."""
    with pytest.raises(WrongConnectionString) as caught:
        parse(text.format(TOKEN))
    assert what in str(caught.value)
    assert TOKEN not in repr(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
def test_plain_http_works_on_this_machine(host: str) -> None:
    """Development needs no certificate."""
    assert parse(f"cornerman+http://{TOKEN}@{host}:80").base_url == f"http://{host}:80"


def test_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """CORNERMAN_URL is used when nothing is passed, and its absence says where to get one."""
    with pytest.raises(WrongConnectionString, match="CORNERMAN_URL"):
        from_environment(None)
    monkeypatch.setenv("CORNERMAN_URL", f"cornerman://{TOKEN}@host:1")
    assert from_environment(None).host == "host"
    assert from_environment(f"cornerman://{TOKEN}@other").host == "other"


def test_token_is_never_shown() -> None:
    """No representation of what holds the token shows it, and it cannot be pickled by accident."""
    target = parse(f"cornerman://{TOKEN}@host")
    host = Cornerman(f"cornerman://{TOKEN}@host")
    for thing in (target, host, host._api.session, vars(host), vars(host._api.session)):
        assert TOKEN not in repr(thing)
        assert TOKEN not in str(thing)
    with pytest.raises(TypeError, match="token"):
        host.__reduce__()


def test_error_tree_has_one_root() -> None:
    """Everything the SDK raises on purpose can be caught at once."""
    import client_sdk

    errors = [thing for name in client_sdk.__all__ if isinstance(thing := getattr(client_sdk, name), type)]
    for error in errors:
        if issubclass(error, Exception):
            assert issubclass(error, CornermanError)
            assert error.__name__ in (client_sdk._errors.__doc__ or "")
