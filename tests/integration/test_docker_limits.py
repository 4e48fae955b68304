"""The limits of an engine container, seen from outside and felt from inside."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.interfaces import EngineSpec
from tests.support.engine_hosts import DockerHost, Specs, launch, tell_stub, wait_ended

STATUS = "pathlib.Path('/proc/self/status').read_text()"
Run = Callable[..., tuple[EngineSpec, Callable[[str], str]]]


@pytest.fixture
def run(host: DockerHost, new_spec: Specs) -> Run:
    """``run(**options)`` starts an engine, and gives its spec and a way to evaluate Python inside it."""

    def start(**options: object) -> tuple[EngineSpec, Callable[[str], str]]:
        spec = new_spec(options=options)
        launch(host, spec)
        return spec, lambda expression: tell_stub(spec.port, f"RUN {expression}")

    return start


def _status(text: str, field: str) -> str:
    found = re.search(rf"{field}:\\t(\w+)", text)
    assert found, text
    return found[1]


def test_no_capability_and_no_way_to_get_one(run: Run) -> None:
    """An engine has no capability at all, cannot gain any, and Docker's seccomp filter is on it."""
    _, inside = run()
    status = inside(STATUS)
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(_status(status, kind), 16) == 0
    assert _status(status, "NoNewPrivs") == "1"
    assert _status(status, "Seccomp") == "2"


def test_the_hardening_can_be_loosened(run: Run) -> None:
    """Every hardening can be taken back in the pool's configuration, down to what the official tool does."""
    spec, inside = run(
        cap_drop=(),
        no_new_privileges=False,
        seccomp="unconfined",
        private_home=False,
        memory_mb=None,
        cpus=None,
        pids=None,
    )
    status = inside(STATUS)
    assert int(_status(status, "CapBnd"), 16) != 0
    assert _status(status, "NoNewPrivs") == "0"
    assert _status(status, "Seccomp") == "0"
    assert "tmpfs /tmp" not in inside("pathlib.Path('/proc/mounts').read_text()")
    assert spec.port


def test_one_capability_can_be_given_back(run: Run) -> None:
    """A capability the image needs can be added while all others stay dropped."""
    _, inside = run(cap_add=("SYS_NICE",))
    assert int(_status(inside(STATUS), "CapBnd"), 16) == 1 << 23


def test_memory_is_limited_without_swap(host: DockerHost, run: Run) -> None:
    """An engine that takes more memory than its limit is ended, instead of pushing the host into swap."""
    spec, _ = run(memory_mb=48, tmpfs_mb=8)
    config = host.inspect(spec)["HostConfig"]
    assert config["Memory"] == config["MemorySwap"] == 48 * 1024 * 1024
    tell_stub(spec.port, "EAT")
    wait_ended(host, spec)
    assert host.inspect(spec)["State"]["OOMKilled"]


def test_processes_are_limited(host: DockerHost, run: Run) -> None:
    """An engine cannot have more processes than its limit."""
    spec, inside = run(pids=16)
    assert host.inspect(spec)["HostConfig"]["PidsLimit"] == 16
    answer = inside("[os.fork() or os.execvp('sleep', ['sleep', '20']) for _ in range(40)]")
    assert "BlockingIOError" in answer


def test_cpu_is_limited(host: DockerHost, run: Run) -> None:
    """An engine that computes without pause gets the CPU time it may have, and not a whole core."""
    spec, inside = run(cpus=0.25)
    assert host.inspect(spec)["HostConfig"]["NanoCpus"] == 250_000_000
    work = "(t := __import__('time'), c := t.process_time(), w := t.monotonic(), [x for x in iter(lambda: t.monotonic() < w + 2, False)] and 0, (t.process_time() - c) / (t.monotonic() - w))[-1]"
    assert float(inside(work)) < 0.4


def test_home_and_tmp_are_private(host: DockerHost, run: Run) -> None:
    """Report 30: each engine has a home and a /tmp of its own, writable, limited in size, never shared with another's."""
    _, first = run()
    _, second = run()
    for place in ("os.environ['HOME']", "'/tmp'"):
        assert first(f"pathlib.Path({place}, 'mine').write_text('x')") == "1"
        assert second(f"pathlib.Path({place}, 'mine').exists()") == "False"
        assert first(f"os.statvfs({place}).f_blocks * os.statvfs({place}).f_frsize") == str(16 * 1024 * 1024)
        assert first(f"oct(os.stat({place}).st_mode)") == "'0o41777'"
    assert "No space left" in first("pathlib.Path('/tmp/big').write_bytes(b'x' * (20 << 20))")


def test_a_configured_home_is_private_too(run: Run) -> None:
    """Report 30: an engine whose HOME is configured has its private folder there."""
    _, inside = run(env={"HOME": "/home/player"})
    assert inside("os.environ['HOME']") == "'/home/player'"
    assert "tmpfs /home/player" in inside("pathlib.Path('/proc/mounts').read_text()")


def test_a_read_only_root(run: Run) -> None:
    """With read_only an engine can write into its private folders and nowhere else."""
    _, inside = run(read_only=True)
    assert "Read-only file system" in inside("pathlib.Path('/opt/x').write_text('x')")
    assert inside("pathlib.Path('/tmp/x').write_text('x')") == "1"


def test_credentials_and_roms_are_there_and_read_only(run: Run, tmp_path: Path) -> None:
    """Credentials inside the private /tmp, and the ROM folder, can be read by an ordinary user and not be written."""
    credentials, roms = tmp_path / "credentials", tmp_path / "roms"
    credentials.write_text("secret")
    roms.mkdir()
    (roms / "doapp.zip").write_text("rom")
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(path.stat().st_mode | 0o055)
    _, inside = run(credentials_path=credentials, roms_path=roms, user="65534:65534")
    assert inside("os.getuid(), os.getgid()") == "(65534, 65534)"
    assert inside("pathlib.Path('/tmp/.diambra/credentials').read_text()") == "'secret'"
    assert inside("os.listdir('/opt/diambraArena/roms')") == "['doapp.zip']"
    assert "Error" in inside("pathlib.Path('/tmp/.diambra/credentials').write_text('x')")
    assert "Error" in inside("pathlib.Path('/opt/diambraArena/roms/x').write_text('x')")
    assert inside("pathlib.Path(os.environ['HOME'], 'x').write_text('x')") == "1"
    assert credentials.read_text() == "secret"


def test_engines_cannot_reach_each_other(host: DockerHost, run: Run) -> None:
    """No engine can connect to another one, neither at its own address nor through the host's loopback."""
    first, inside = run()
    second, _ = run()
    (network,) = host.inspect(second)["NetworkSettings"]["Networks"].values()
    for place in ((network["IPAddress"], 50051), ("127.0.0.1", second.port), (network["Gateway"], second.port)):
        answer = inside(f"socket.create_connection({place!r}, 1)")
        assert "Error" in answer, f"{first.name} reached {place} (was this Docker started with iptables=false?)"


def test_the_container_is_labelled_and_kept(host: DockerHost, run: Run) -> None:
    """A container carries its identity and the official label, is never removed by Docker, and is not restarted by it."""
    spec, _ = run()
    info = host.inspect(spec)
    assert info["Config"]["Labels"] == {**spec.labels(), "diambra": "env"}
    assert info["HostConfig"]["AutoRemove"] is False
    assert info["HostConfig"]["RestartPolicy"]["Name"] in ("", "no")
    assert (info["Config"]["Tty"], info["Config"]["OpenStdin"], info["Config"]["StopSignal"]) == (True, True, "SIGKILL")
    assert info["HostConfig"]["Privileged"] is False


def test_an_init_process_can_be_had(run: Run) -> None:
    """With init a small init process is the first one, for images that leave children behind."""
    _, inside = run(init=True)
    assert "init" in inside("pathlib.Path('/proc/1/cmdline').read_text()")
    _, bare = run()
    assert "stub_engine" in bare("pathlib.Path('/proc/1/cmdline').read_text()")


def test_the_daemons_proxy_settings_stay_outside(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the daemon's environment reaches an engine: what it gets is in the pool's configuration."""
    monkeypatch.setenv("CORNERMAN_URL", "cornerman://secret@host")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    _, inside = run(env={"DIAMBRA": "yes"})
    names = inside("sorted(os.environ)")
    assert "'DIAMBRA'" in names
    assert "CORNERMAN" not in names
    assert "proxy" not in names
