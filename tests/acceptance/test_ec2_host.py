"""A host as CloudFormation makes one: the template's user data in a clean Debian that really boots systemd, then its whole life.

The tests are one story and run in their order.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from client_sdk import models
from client_sdk._admin_api import AdminApi
from client_sdk._api import Api
from client_sdk._http import Session
from client_sdk._url import parse
from tests.support import roots
from tests.support.cloud import Cloud, cloud, user_data
from tests.support.docker_engine import engines_of, remove_engines
from tests.support.ports import free_port
from tests.support.source import archive
from tests.support.waiting import wait_until
from tests.unit.ec2.conftest import read_template

pytestmark = pytest.mark.timeout(600)
SERVICES = ("cornerman.service", "cornerman-relay.service")
PARAMETER = "/cornerman/cornerman/connection-string"
STATE = "/var/lib/cornerman"
CONFIG = "/etc/cornerman/cornerman.toml"


@dataclass
class Host:
    """The machine, what its first boot said and made, and how to talk to its daemon."""

    machine: roots.Machine
    said: str
    url: str
    config: str
    cloud: Cloud
    docker_host: str
    environ: dict[str, str]

    def show(self, unit: str, what: str) -> str:
        """A property that systemd knows of a unit."""
        return self.machine.run("systemctl", "show", unit, f"--property={what}", "--value").stdout.strip()

    def session(self) -> closing[Session]:
        """A session with its daemon, from outside."""
        return closing(Session(parse(self.url)))

    def pool(self) -> models.Pool:
        """Its pool."""
        with self.session() as session:
            return AdminApi(session).pools()[0]

    def override(self, unit: str, *lines: str) -> None:
        """Change a unit's settings for a test."""
        self.machine.write(f"/run/systemd/system/{unit}.d/test.conf", "[Service]\n" + "\n".join(lines) + "\n")
        self.machine.run("systemctl", "daemon-reload")

    @property
    def instance(self) -> str:
        """What its containers carry."""
        code = f"import sqlite3; print(*sqlite3.connect('{STATE}/cornerman.db').execute(\"SELECT value FROM meta WHERE key = 'instance'\").fetchone())"
        return self.machine.run("/opt/cornerman/bin/python", "-c", code).stdout.strip()


@pytest.fixture(scope="module")
def host(docker_host: str, practice_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """What the user data makes of a clean Debian 12, with Docker's command and engine of this machine."""
    lower = roots.base("debian-12")
    files = tmp_path_factory.mktemp("cloud")
    archive(files)
    port, relay = free_port(), free_port()
    with ExitStack() as undo:
        aws = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        aws.start()
        undo.callback(aws.stop)
        environ = {
            "AWS_ENDPOINT_URL": "http://{}:{}".format(*aws.get_host_and_port()),
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            **roots.pip_environment(),
        }
        _fill(environ["AWS_ENDPOINT_URL"])
        there = undo.enter_context(cloud(files))
        listening = docker_host.removeprefix("unix://")
        binds = {"/usr/bin/docker": _docker_command(), "/run/docker.sock": listening, **roots.pip_cache()}
        machine = undo.enter_context(roots.machine(lower, binds=binds))
        machine.boot()
        machine.run("groupadd", "--gid", str(os.stat(listening).st_gid or 990), "docker")
        script = _script(there, image=practice_image, port=port, relay_port=relay)
        machine.write("/tmp/user-data", script, mode=0o700)
        done = machine.run("/tmp/user-data", check=False, timeout_s=400, environ=environ)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        ssm = boto3.client("ssm", endpoint_url=environ["AWS_ENDPOINT_URL"], region_name="eu-central-1",
                           aws_access_key_id="testing", aws_secret_access_key="testing")  # fmt: skip
        url = ssm.get_parameter(Name=PARAMETER, WithDecryption=True)["Parameter"]["Value"]
        config = machine.run("cat", CONFIG).stdout
        made = Host(machine, said, url, config, there, docker_host, environ)
        undo.callback(remove_engines, docker_host, made.instance)
        # Docker looks for mounts on this machine, where they are not: the practice engine needs neither.
        machine.write(CONFIG, re.sub(r"(?m)^(credentials|roms)_path", r"#\1_path", config))
        machine.run("systemctl", "restart", "cornerman.service")
        yield made


def _script(there: Cloud, *, image: str, port: int, relay_port: int) -> str:
    """The user data of a host with these ports."""
    return user_data(
        read_template(),
        {
            "AWS::Region": "eu-central-1",
            "AWS::StackName": "cornerman",
            "Source": f"{there.address}/cornerman.tar.gz",
            "RomsUri": "s3://my-roms/diambra",
            "WithCredentials": "yes",
            "EngineImage": image,
            "MinReady": "1",
            "MaxEngines": "2",
        },
        cloud=there,
        init_options=f"--port {port} --relay-port {relay_port}",
    )


def _docker_command() -> str:
    import shutil

    found = shutil.which("docker")
    assert found is not None, "the docker command is missing: install docker.io"
    return str(Path(found).resolve())


def _fill(endpoint: str) -> None:
    """What ``cornerman ec2 up`` and the user have put into the account before."""
    known: dict[str, Any] = {"endpoint_url": endpoint, "region_name": "eu-central-1"}
    known |= {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    boto3.client("ssm", **known).put_parameter(
        Name="/cornerman/cornerman/diambra-credentials", Value="SECRET-OF-DIAMBRA", Type="SecureString"
    )
    s3 = boto3.client("s3", **known)
    s3.create_bucket(Bucket="my-roms", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    s3.put_object(Bucket="my-roms", Key="diambra/doapp.zip", Body=b"an archive")
    s3.put_object(Bucket="my-roms", Key="other/private.txt", Body=b"not ours")


@pytest.fixture
def lease(host: Host) -> Iterator[models.Lease]:
    """A lease of one engine, held from outside."""
    with host.session() as session:
        api = Api(session)
        # Nobody renews it, and an upgrade may take minutes on a busy machine.
        made = api.create(models.LeaseRequest(envs=1, wait=True, ttl_s=600), key=os.urandom(8).hex())
        active = wait_until(lambda: _if_active(api.show(made.id)), 60, what="an engine for the lease")
        assert active is not None
        yield active
        api.release(active.id)


def _if_active(lease: models.Lease) -> models.Lease | None:
    return lease if lease.state is models.LeaseState.ACTIVE else None


def _engines(host: Host) -> list[str]:
    return engines_of(host.docker_host, host.instance)


def _same_game(host: Host, lease: models.Lease) -> bool:
    """Whether the daemon answers and the lease has the engine that it had."""
    with host.session() as session:
        now = Api(session).show(lease.id)
    return now.state is models.LeaseState.ACTIVE and [env.generation for env in now.envs] == [
        env.generation for env in lease.envs
    ]


def test_the_host_is_up(host: Host) -> None:
    """When the user data has ended, both services run and start at each boot, and CloudFormation is told so."""
    assert [signal["Status"] for signal in host.cloud.signals] == ["SUCCESS"]
    for unit in (*SERVICES, "cornerman-poweroff.path", "cornerman-prune.timer"):
        assert (host.show(unit, "ActiveState"), host.show(unit, "UnitFileState")) == ("active", "enabled"), unit
    wait_until(lambda: host.pool().counts.get(models.EngineState.READY), 90, what="the first engine")


def test_no_secret_is_said(host: Host) -> None:
    """Neither connection string nor credentials are in what the first boot says, which goes to a log."""
    token = parse(host.url).token.get_secret_value()
    for secret in (token, "SECRET-OF-DIAMBRA"):
        assert secret not in host.said
        assert secret not in str(host.cloud.signals)
    journal = host.machine.run("journalctl", "--no-pager").stdout
    assert token not in journal
    assert host.machine.run("sh", "-c", "ls /tmp /run/cornerman* | grep url", check=False).stdout == ""


def test_credentials_and_roms_are_there(host: Host) -> None:
    """DIAMBRA's credentials are on the host for the daemon and nobody else, and the ROMs of the bucket's folder alone."""
    about = host.machine.run("stat", "-c", "%a %U %G", "/etc/cornerman/diambra-credentials").stdout.strip()
    assert about == "640 root cornerman"
    assert host.machine.run("cat", "/etc/cornerman/diambra-credentials").stdout == "SECRET-OF-DIAMBRA"
    assert host.machine.run("ls", "/srv/roms").stdout.split() == ["doapp.zip"]
    assert 'roms_path = "/srv/roms"' in host.config
    assert re.search(r'(?m)^after = "45m"', host.config)


def test_the_kernel_is_told(host: Host) -> None:
    """The ports of engines are kept from outgoing connections, and a line that paused keeps its speed."""
    settings = host.machine.run("cat", "/etc/sysctl.d/60-cornerman.conf").stdout
    assert "net.ipv4.ip_local_reserved_ports = 32000-32999" in settings
    assert "net.ipv4.tcp_slow_start_after_idle = 0" in settings


def test_the_daemon_is_nobody_else(host: Host) -> None:
    """The daemon runs as its own user with Docker's group, the relay without it."""
    groups = {}
    for unit in SERVICES:
        status = host.machine.run("cat", f"/proc/{host.show(unit, 'MainPID')}/status").stdout
        groups[unit] = re.search(r"(?m)^Groups:\t(.*?) *$", status)[1].split()  # type: ignore[index]
        uid = re.search(r"(?m)^Uid:\t(\d+)", status)
        assert uid is not None
        assert uid[1] == host.machine.run("id", "-u", "cornerman").stdout.strip()
    docker = host.machine.run("getent", "group", "docker").stdout.split(":")[2]
    assert docker in groups["cornerman.service"]
    assert docker not in groups["cornerman-relay.service"]


def test_a_killed_daemon_comes_back(host: Host, lease: models.Lease) -> None:
    """kill -9 of the daemon costs a few seconds: systemd starts it again, and lease and game go on."""
    before = host.show("cornerman.service", "MainPID")
    host.machine.run("sh", "-c", f"kill -KILL {before}")
    wait_until(lambda: host.show("cornerman.service", "MainPID") not in ("0", before), 30, what="another daemon")
    wait_until(lambda: host.show("cornerman.service", "ActiveState") == "active", 60, what="READY of the next daemon")
    assert _same_game(host, lease)


def test_a_hanging_daemon_is_replaced(host: Host, lease: models.Lease) -> None:
    """A daemon whose pool loop gives no more life signs is killed by the watchdog and started again; the lease goes on."""
    # The same watchdog with a shorter patience: the process is stopped, so that its loop hangs for good.
    host.override("cornerman.service", "WatchdogSec=4", "TimeoutStopSec=1", "TimeoutAbortSec=1")
    host.machine.run("systemctl", "restart", "cornerman.service")
    before = host.show("cornerman.service", "MainPID")
    host.machine.run("sh", "-c", f"kill -STOP {before}")
    wait_until(lambda: host.show("cornerman.service", "MainPID") not in ("0", before), 60, what="another daemon")
    wait_until(lambda: host.show("cornerman.service", "ActiveState") == "active", 60, what="READY of the next daemon")
    assert "watchdog" in host.machine.run("journalctl", "--no-pager", "-u", "cornerman.service").stdout.lower()
    assert _same_game(host, lease)
    host.machine.run("rm", "/run/systemd/system/cornerman.service.d/test.conf")
    host.machine.run("systemctl", "daemon-reload")


def test_an_upgrade_ends_no_lease(host: Host, lease: models.Lease) -> None:
    """Running the installer again puts another build in place while a game runs: same lease, same engine, new processes."""
    pids = [host.show(unit, "MainPID") for unit in SERVICES]
    release = host.machine.run("readlink", "-f", "/opt/cornerman/bin").stdout
    games = set(_engines(host))
    tar = f"cd /srv && rm -rf new && mkdir new && curl -fsS {host.cloud.address}/cornerman.tar.gz | tar -xz --strip-components=1 -C new"
    host.machine.run("sh", "-c", tar)
    done = host.machine.run("/srv/new/deploy/install.sh", timeout_s=300, environ=host.environ)
    assert done.stdout == "", "an upgrade prints no connection string"
    assert host.machine.run("readlink", "-f", "/opt/cornerman/bin").stdout != release
    assert len(host.machine.run("ls", "/opt/cornerman/releases").stdout.split()) == 1
    assert host.machine.run("/opt/cornerman/bin/python", "-c", "import boto3").returncode == 0
    assert not set(pids) & {host.show(unit, "MainPID") for unit in SERVICES}
    assert _same_game(host, lease)
    assert games & set(_engines(host))
    assert re.search(r'(?m)^after = "45m"', host.machine.run("cat", CONFIG).stdout)


def test_an_upgrade_that_does_not_start_is_taken_back(host: Host, lease: models.Lease) -> None:
    """A new version that does not come up leaves the former one running, with its units and the database that it knows."""
    release = host.machine.run("readlink", "-f", "/opt/cornerman/bin").stdout
    migrations = len(list((roots.ROOT / "orchestrator/store/migrations").glob("*.sql")))
    host.machine.run("cp", "-r", "/srv/new", "/srv/broken")
    newer = f"/srv/broken/orchestrator/store/migrations/{migrations + 1:04}.sql"
    host.machine.write(newer, "CREATE TABLE more (a TEXT) STRICT;\n")
    # After the daemon has said that it is ready, so that the database has its new schema.
    unit = "/srv/broken/systemd/cornerman.service"
    host.machine.run("sed", "-i", "s|^ExecStart=|ExecStartPost=/bin/false\\n&|", unit)
    done = host.machine.run("/srv/broken/deploy/install.sh", check=False, timeout_s=300, environ=host.environ)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("cornerman: the new version does not start, so the former one runs")
    assert "the database is again as it was before" in done.stderr
    assert host.machine.run("readlink", "-f", "/opt/cornerman/bin").stdout == release
    assert "ExecStartPost" not in host.machine.run("cat", "/etc/systemd/system/cornerman.service").stdout
    for service in SERVICES:
        assert host.show(service, "ActiveState") == "active"
    assert _same_game(host, lease)


def test_old_images_and_logs_go(host: Host) -> None:
    """The daily job runs to its end in its sandbox."""
    host.override(
        "cornerman-prune.service", "ExecStart=", "ExecStart=/usr/bin/journalctl --vacuum-time=8weeks --vacuum-size=1G"
    )
    host.machine.run("systemctl", "start", "cornerman-prune.service")
    assert host.show("cornerman-prune.service", "Result") == "success"
    assert host.show("cornerman-prune.timer", "NextElapseUSecRealtime")


def test_nobody_else_turns_the_machine_off(host: Host) -> None:
    """The relay, whose user is the same, cannot ask for the power-off, nor can another user, nor the daemon's user by systemctl."""
    relay = host.show("cornerman-relay.service", "MainPID")
    as_user = ("setpriv", "--reuid", "cornerman", "--regid", "cornerman", "--clear-groups")
    inside = ("nsenter", "-t", relay, "-m", "-r", *as_user, "touch", "/run/cornerman/idle-poweroff")
    assert "Read-only file system" in host.machine.run(*inside, check=False).stderr
    nobody = ("setpriv", "--reuid", "nobody", "--clear-groups", "touch", "/run/cornerman/idle-poweroff")
    assert "Permission denied" in host.machine.run(*nobody, check=False).stderr
    for unit in ("cornerman-poweroff.service", "poweroff.target"):
        assert host.machine.run(*as_user, "systemctl", "start", unit, check=False).returncode != 0
    assert not host.machine.off()
    assert host.show("cornerman-poweroff.service", "ActiveState") == "inactive"


def test_it_turns_itself_off(host: Host) -> None:
    """When nobody leases for the time that was chosen, the daemon has the machine turned off, in good order."""
    host.override("cornerman.service", "Environment=CORNERMAN_IDLE__AFTER=10")
    host.machine.run("systemctl", "restart", "cornerman.service")
    wait_until(host.machine.off, 90, what="the end of the idle machine", poll_s=0.2)
    assert host.machine.process is not None
    # So the kernel tells the parent of a machine in a namespace: SIGINT for a power-off, SIGHUP for a reboot.
    assert host.machine.process.returncode == -signal.SIGINT


def test_it_comes_up_by_itself(host: Host) -> None:
    """Turned on again, the host leases without anybody's help, by the same connection string."""
    host.machine.stop()
    host.machine.boot()
    wait_until(lambda: host.show("cornerman.service", "ActiveState") == "active", 60, what="the daemon after the boot")
    wait_until(lambda: host.pool().counts.get(models.EngineState.READY), 90, what="an engine after the boot")
    assert not host.machine.off()


def test_removing_leaves_the_data_it_names(host: Host) -> None:
    """--uninstall takes services, program, user, kernel settings and engines away, and leaves configuration and state, named."""
    instance = host.instance
    done = host.machine.run("/srv/new/deploy/install.sh", "--uninstall", timeout_s=120)
    assert "/etc/cornerman /var/lib/cornerman" in done.stderr
    assert engines_of(host.docker_host, instance) == []
    assert host.machine.run("id", "cornerman", check=False).returncode != 0
    found = host.machine.run(
        "find", "/etc", "/opt", "/usr", "/var", "/run", "-xdev", "-name", "*cornerman*", "-not", "-path", "/var/lib/cornerman/*"
    ).stdout.split()  # fmt: skip
    assert sorted(found) == ["/etc/cornerman", "/etc/cornerman/cornerman.toml", "/var/lib/cornerman"], found
    again = host.machine.run("/srv/new/deploy/install.sh", "--uninstall", "--purge")
    assert "what stays is" not in again.stderr
    assert host.machine.run("sh", "-c", "ls -d /etc/cornerman /var/lib/cornerman", check=False).stdout == ""


def test_what_the_installer_refuses_reaches_the_user(host: Host) -> None:
    """When the installer refuses, CloudFormation is told its very sentence, which ``cornerman ec2 up`` shows, and takes the stack back."""
    port = free_port()
    with closing(socket.create_server(("127.0.0.1", port))):
        script = _script(host.cloud, image="unused", port=port, relay_port=free_port())
        host.machine.write("/tmp/user-data", script, mode=0o700)
        done = host.machine.run("/tmp/user-data", check=False, environ=host.environ)
    assert done.returncode == 1
    told = host.cloud.signals[-1]
    assert (told["Status"], told["Reason"].partition(":")[0]) == ("FAILURE", f"port {port} is taken by another program")
