"""What ``cornerman init`` makes, and that nothing of it is ever half made."""

from __future__ import annotations

import datetime
import os
import pwd
import re
import sys
from contextlib import suppress
from importlib import import_module, resources
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from client_sdk import _local, _url
from orchestrator import auth, config, places, setup, tls
from orchestrator.config import Config
from orchestrator.errors import ConfigError
from orchestrator.model import Scope
from orchestrator.places import Places
from orchestrator.setup import Choices
from orchestrator.store import principals
from orchestrator.store.database import Database
from tests.support.left_out import leave_out

WRITES = 14  # files, and their folders
NOW = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.timezone.utc)


def _init(folder: Path, **choices: Any) -> setup.Made:
    return setup.init(places.places(folder), Choices(**choices), now=NOW)


def _scope_of(made_config: Path, url: str) -> tuple[str, Scope]:
    database = Database.open(config.load(made_config).database)
    try:
        with database.read() as db:
            found = principals.find_token(db, auth.digest(_url.parse(url).token.get_secret_value()))
    finally:
        database.close()
    assert found is not None
    return found[0].principal, found[0].scope


def test_both_strings_lead_to_the_host_and_let_in_whom_they_should(tmp_path: Path) -> None:
    """The printed string has lease scope, the one in the root-only file admin scope; both name the host and its CA."""
    made = _init(tmp_path / "d", public_host="host.example", port=9443)
    admin_url = made.admin_url.read_text().strip()
    assert _scope_of(made.config, made.url) == ("notebook", Scope.LEASE)
    assert _scope_of(made.config, admin_url) == ("admin", Scope.ADMIN)
    ca = tls.fingerprint(tls.files(made.state_dir).ca)
    for url in (made.url, admin_url):
        target = _url.parse(url)
        assert (target.host, target.port, target.ca_sha256) == ("host.example", 9443, ca)


def test_an_ipv6_host_is_understood(tmp_path: Path) -> None:
    """A host known by an IPv6 address gets a string that the SDK reads."""
    assert _url.parse(_init(tmp_path / "d", public_host="2001:db8::1").url).host == "2001:db8::1"


def test_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Nobody else can look into the state, the admin's string or a key."""
    made = _init(tmp_path / "d")
    assert made.state_dir.stat().st_mode & 0o777 == 0o700
    assert made.admin_url.stat().st_mode & 0o777 == 0o600
    for path in made.state_dir.rglob("*.key"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_second_run_changes_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    """An existing installation is never overwritten."""
    _init(tmp_path / "d")
    before = {path: path.read_bytes() for path in (tmp_path / "d").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"there already, and nothing was changed: start it with 'cornerman serve"):
        _init(tmp_path / "d", public_host="other.example")
    assert {path: path.read_bytes() for path in (tmp_path / "d").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("call", range(1, WRITES + 2))
def test_an_interrupted_init_can_be_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Whichever file could not be written, there is no configuration then, and the next run completes with the same CA."""
    count = 0
    real = os.fsync

    def failing(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == call:
            raise OSError(28, "No space left on device")
        real(descriptor)

    folder = tmp_path / "d"
    monkeypatch.setattr(os, "fsync", failing)
    with suppress(ConfigError):
        _init(folder)
    assert count >= call or call > WRITES
    complete = (folder / "cornerman.toml").exists()
    monkeypatch.setattr(os, "fsync", real)
    ca = folder / "state/tls/ca.pem"
    before = ca.read_bytes() if ca.exists() else None
    if not complete:
        made = _init(folder)
        assert _scope_of(made.config, made.url)[1] is Scope.LEASE
    assert before is None or ca.read_bytes() == before
    assert not [path for path in folder.rglob(".*")]


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"public_host": "https://host"}, "no name or address of a host"),
        ({"public_host": "300.1.2.3"}, "no name or address of a host"),
        ({"public_host": "0.0.0.0"}, "no name or address of a host"),
        ({"public_host": ""}, "no name or address of a host"),
        ({"pool": "No Such"}, "no name of a pool"),
        ({"max_engines": 1001}, "max_engines"),
        ({"min_ready": 5, "max_engines": 2}, r"min_ready \(5\) is above max_engines \(2\)"),
        ({"port": 70000}, "server.port"),
        ({"credentials": Path("/nonexistent/credentials")}, "log in with 'diambra user login'"),
        ({"credentials": Path("/etc")}, "is a folder"),
        ({"roms": Path("/nonexistent")}, "name the folder that holds the ROM archives"),
        ({"roms": Path("/etc/passwd")}, "is a file"),
    ],
)
def test_a_wrong_choice_is_one_sentence_and_leaves_nothing(tmp_path: Path, choices: dict[str, Any], words: str) -> None:
    """What cannot be is refused before anything is written. Report 33: credentials that do not exist, or are a folder."""
    with pytest.raises(ConfigError, match=words) as caught:
        _init(tmp_path / "d", **choices)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "d").exists()


def test_the_choices_arrive_in_the_configuration(tmp_path: Path) -> None:
    """What was chosen is what the daemon reads, whatever characters it has."""
    roms = tmp_path / 'ro"ms\\ ü'
    roms.mkdir()
    credentials = tmp_path / "credentials"
    credentials.touch()
    made = _init(
        tmp_path / "d",
        public_host="192.0.2.7",
        port=9443,
        pool="games",
        image="diambra/engine:v2.2",
        min_ready=3,
        max_engines=8,
        expose="direct",
        roms=roms,
        credentials=credentials,
    )
    loaded = config.load(made.config)
    pool = loaded.pools["games"]
    assert loaded.state_dir == tmp_path / "d/state"
    assert (loaded.server.public_host, loaded.server.port) == ("192.0.2.7", 9443)
    assert (pool.image, pool.min_ready, pool.max_engines, pool.expose) == ("diambra/engine:v2.2", 3, 8, "direct")
    assert (pool.docker.roms_path, pool.docker.credentials_path) == (roms, credentials)


def _leaves(model: type[BaseModel], place: str = "") -> dict[str, Any]:
    """Every setting of a section by its dotted name, with its default."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind = field.default.__class__
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= _leaves(kind, f"{place}{name}.")
        else:
            found[f"{place}{name}"] = field.default
    return found


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without space is said with what to do."""

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"cannot be written \(No space left on device\): check owner and free space"):
        _init(tmp_path / "d")


def _template() -> str:
    text = resources.files("orchestrator").joinpath("template.toml").read_text("utf-8")
    return (
        text.replace("$credentials_path", "#credentials_path = ''")
        .replace("$roms_path", "#roms_path = ''")
        .replace("$bind", "#bind = ''")
        .replace("$idle_after", "#after = ''")
    )


def _named_in(text: str) -> set[str]:
    """The settings that a configuration file names, in comments too."""
    section, named = "", set()
    for line in text.splitlines():
        if header := re.fullmatch(r"\[(.+)\]", line):
            section = f"{header[1]}."
        elif setting := re.match(r"#?([a-z_]+) = ", line):
            named.add(section + setting[1])
    return named


def test_the_file_names_every_setting() -> None:
    """Whoever reads the configuration file sees all there is to set, and nothing that there is not."""
    wanted = {name for name in _leaves(Config) if name != "pools"}
    wanted |= {f"pools.$pool.{name}" for name in _leaves(config.PoolConfig)}
    assert _named_in(_template()) == wanted


def test_the_commented_defaults_are_the_defaults(tmp_path: Path) -> None:
    """Removing the # before a default that has a fixed value changes nothing."""
    shown_as_example = {
        "default_pool",
        "certificate",
        "key",
        "url",
        "max_age_s",
        "max_lease_s",
        "credentials_path",
        "roms_path",
        "random_seed",
        "user",
        "network",
        "command",
        "after",
    }
    made = _init(tmp_path / "d")
    text = made.config.read_text()
    plain = config.load(made.config)
    assert any(line.startswith("#tick_s = ") for line in text.splitlines())
    text = text.replace('#bind = "0.0.0.0"\nport = 8444', "port = 8444")  # the relay's default is the API's
    lines = [
        line[1:] if (found := re.match(r"#([a-z_]+) = ", line)) and found[1] not in shown_as_example else line
        for line in text.splitlines()
    ]
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    assert config.build(cast(dict[str, Any], toml.loads("\n".join(lines)))) == plain


def test_the_idle_stop_can_be_chosen(tmp_path: Path) -> None:
    """Whoever sets up a rented machine says when it stops; a duration that is none is refused, and nothing is made."""
    assert config.load(_init(tmp_path / "off").config).idle.after is None
    assert config.load(_init(tmp_path / "on", idle_after="45m").config).idle.after == 2700
    with pytest.raises(ConfigError, match=r"idle\.after.*is no duration"):
        _init(tmp_path / "wrong", idle_after="soon")
    assert not (tmp_path / "wrong").exists()


def test_the_certificate_is_renewed_without_new_strings(tmp_path: Path) -> None:
    """A renewal on request leaves both connection strings valid."""
    made = _init(tmp_path / "d")
    later = NOW + datetime.timedelta(days=100)
    until = setup.renew_certificate(config.load(made.config), now=later)
    assert until > later + datetime.timedelta(days=700)
    assert _url.parse(made.url).ca_sha256 == tls.fingerprint(tls.files(made.state_dir).ca)


def test_sdk_and_daemon_know_the_same_places() -> None:
    """The commands find the admin's string where init leaves it."""
    assert (_local.ADMIN_URL_NAME, _local.SYSTEM_FOLDER) == (places.ADMIN_URL_NAME, places.SYSTEM_FOLDER)


def test_a_system_and_a_user_have_their_usual_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root's installation is the system's; a user's is below the user's own folders."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert places.places() == Places(Path("/etc/cornerman"), Path("/var/lib/cornerman"), shared=True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert places.places() == Places(tmp_path / ".config/cornerman", tmp_path / ".local/state/cornerman")


def test_engines_for_this_machine_alone_listen_to_it_alone(tmp_path: Path) -> None:
    """Direct engines whose clients are on this machine are not open to others; those of a named host are."""
    local = config.load(_init(tmp_path / "local", expose="direct").config)
    named = config.load(_init(tmp_path / "named", expose="direct", public_host="host.example").config)
    assert local.pools["default"].host_address == "127.0.0.1"
    assert named.pools["default"].host_address == "0.0.0.0"


def test_a_lost_admin_string_can_be_made_anew(tmp_path: Path) -> None:
    """Whoever owns the state gets a new administrator's string; the lost one, wherever it is now, ends."""
    where = places.places(tmp_path / "d")
    made = setup.init(where, Choices(), now=NOW)
    old = made.admin_url.read_text().strip()
    made.admin_url.unlink()
    new = setup.renew_admin(where, config.load(made.config), now=NOW).read_text().strip()
    assert made.admin_url.stat().st_mode & 0o777 == 0o600
    assert _scope_of(made.config, new) == ("admin", Scope.ADMIN)
    assert _scope_of(made.config, made.url) == ("notebook", Scope.LEASE)
    with pytest.raises(AssertionError):
        _scope_of(made.config, old)


def test_what_root_sets_up_belongs_to_the_daemons_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state belongs to the user the unit runs as, who may read the configuration and not the admin's string."""
    if os.geteuid() != 0:
        leave_out("only root can give files away")
    monkeypatch.setattr(setup, "SERVICE_USER", "nobody")
    user = pwd.getpwnam("nobody")
    made = _init(tmp_path / "d")
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in (made.state_dir, *made.state_dir.rglob("*"))}
    assert owners == {(user.pw_uid, user.pw_gid)}
    assert (made.config.stat().st_uid, made.config.stat().st_gid) == (0, user.pw_gid)
    assert made.config.stat().st_mode & 0o777 == 0o640
    assert (made.admin_url.stat().st_uid, made.admin_url.stat().st_mode & 0o777) == (0, 0o600)


def test_giving_the_state_away_follows_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that the daemon's user left in its folder gives away no file of somebody else, and one to nowhere hinders nothing."""
    made = _init(tmp_path / "d")
    monkeypatch.setattr(setup, "_service_user", lambda: pwd.getpwuid(os.geteuid()))
    mine = tmp_path / "mine"
    mine.write_text("")
    before = mine.stat().st_ctime_ns
    (made.state_dir / "link").symlink_to(mine)
    (made.state_dir / "nowhere").symlink_to(tmp_path / "absent")
    setup.hand_over_all(made.config, made.state_dir)
    assert mine.stat().st_ctime_ns == before
