"""Clean roots of distributions, made once and kept, and machines that really boot systemd in a copy of one.

A machine has namespaces of its own for everything but the network, so that what runs in it reaches this machine's Docker Engine and
package registries, and a test reaches what listens in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.left_out import leave_out
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".cache" / "roots"
OWN_BASE = "cornerman-base:bookworm"  # what deploy/build-practice-image.sh keeps
TOOLS = ("debootstrap", "unshare", "nsenter", "chroot")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PIP_CACHE = "/var/cache/pip"  # inside a machine
BOOT_S, STOP_S = 60, 30
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Distribution:
    """What debootstrap needs to make the root of one."""

    suite: str
    script: str | None = None
    options: tuple[str, ...] = ()


_UBUNTU = ("--no-check-gpg", "--components=main,universe")  # its keys are in no package of Debian that is always there
DISTRIBUTIONS = {
    "debian-12": Distribution("bookworm"),
    "debian-13": Distribution("trixie"),
    "ubuntu-22.04": Distribution("jammy", "gutsy", _UBUNTU),
    "ubuntu-24.04": Distribution("noble", "gutsy", _UBUNTU),
}


def need_root() -> None:
    """Leave the test out where roots cannot be made or booted."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        leave_out(f"a clean root needs root rights and {', '.join(missing or TOOLS)}")


def base(name: str) -> Path:
    """The root of a distribution with systemd and nothing else; made by the first who asks, then kept."""
    need_root()
    KEPT.mkdir(parents=True, exist_ok=True)
    where = KEPT / name
    with (KEPT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (where / "complete").exists():
            shutil.rmtree(where, ignore_errors=True)
            tree = where / "tree"
            tree.mkdir(parents=True)
            _fill(DISTRIBUTIONS[name], tree)
            _prepare(tree)
            (where / "complete").touch()
    return where / "tree"


def _fill(distribution: Distribution, tree: Path) -> None:
    if distribution.suite == "bookworm" and _from_image(tree):
        return
    script = () if distribution.script is None else ("", distribution.script)  # from the distribution's own mirror
    _run(
        "debootstrap",
        "--variant=minbase",
        *distribution.options,
        distribution.suite,
        tree,
        *script,
        timeout_s=500,
    )
    if distribution.options == _UBUNTU:  # as every machine of Ubuntu has it; Python 3.11 of 22.04 is there alone
        sources = tree / "etc/apt/sources.list"
        mirror = sources.read_text().split()[1]
        sources.write_text(sources.read_text() + f"deb {mirror} {distribution.suite}-updates main universe\n")


def _from_image(tree: Path) -> bool:
    """Take the root out of the base of the practice engine's image, if that is one of ours."""
    if shutil.which("docker") is None:
        return False
    made = subprocess.run(["docker", "create", OWN_BASE, "true"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return False
    container = made.stdout.strip()
    try:
        _run("sh", "-c", f"docker export {container} | tar -C {tree} --numeric-owner -x", timeout_s=120)
    finally:
        _run("docker", "rm", container)
    return True


def _prepare(tree: Path) -> None:
    """Give it systemd, and this machine's way to the network."""
    adopt_network(tree)
    mounts = "mount --make-rprivate /; mount -t proc proc proc; mount --rbind /dev dev"
    install = (
        "apt-get update -q && apt-get install -y -q --no-install-recommends systemd systemd-sysv dbus && apt-get clean"
    )
    script = f"cd {tree}; {mounts}; exec chroot . env -i PATH={_PATH} DEBIAN_FRONTEND=noninteractive sh -c '{install}'"
    _run("unshare", "--mount", "sh", "-ec", script, timeout_s=400)
    # Ubuntu's systemd brings a resolver that knows no server here.
    (tree / "etc/systemd/system/systemd-resolved.service").symlink_to("/dev/null")
    adopt_network(tree)


def adopt_network(tree: Path) -> None:
    """Let it find names as this machine does, and trust the same authorities."""
    (tree / "etc/resolv.conf").unlink(missing_ok=True)
    shutil.copy("/etc/resolv.conf", tree / "etc/resolv.conf")
    if CERTIFICATES.exists():
        kept = tree / "etc/ssl/tests-ca.crt"
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CERTIFICATES, kept)


def _run(*command: str | Path, timeout_s: float = 60) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@dataclass
class Machine:
    """A copy of a root that can be booted; what was changed stays in ``folder`` until it is closed."""

    lower: Path
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="cm-root-")))
    binds: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    init: int | None = None

    @property
    def console(self) -> str:
        """What systemd said while it booted and went down."""
        return (self.folder / "console").read_text(errors="replace")

    def boot(self) -> None:
        """Boot it; it is up, with all units settled, when this returns."""
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(exist_ok=True)
        with (self.folder / "console").open("ab") as console:
            self.process = subprocess.Popen(
                [
                    "unshare",
                    "--mount",
                    "--fork",
                    "--pid",
                    "--kill-child",
                    "--uts",
                    "--ipc",
                    "sh",
                    "-euc",
                    self._script(),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        self.init = wait_until(self._find_init, 20, what="the first process of the machine")
        wait_until(self._settled, BOOT_S, what="the end of the boot", poll_s=0.2)

    def _find_init(self) -> int | None:
        assert self.process is not None
        assert self.process.poll() is None, f"the machine does not boot:\n{self.console}"
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        if not children or Path(f"/proc/{children[0]}/comm").read_text().strip() != "systemd":
            return None
        return int(children[0])

    def _settled(self) -> bool:
        state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return state in ("running", "degraded")

    def _script(self) -> str:
        """Mounts in the machine's own namespace, then systemd as its first process, in a control group of its own."""
        root = self.folder / "root"
        binds = "".join(
            f"{'mkdir -p' if Path(of).is_dir() else 'touch'} .{to}; mount --bind {of} .{to}\n"
            for to, of in self.binds.items()
        )
        return f"""
mount --make-rprivate /
groups=$(awk '$3 == "cgroup2" {{ print $2; exit }}' /proc/mounts)
[ -n "$groups" ] || {{ groups=/sys/fs/cgroup/unified; mkdir -p $groups; mount -t cgroup2 cgroup2 $groups; }}
mkdir -p $groups/{self.folder.name}
echo 0 > $groups/{self.folder.name}/cgroup.procs
mount -t overlay overlay -o lowerdir={self.lower},upperdir={self.folder}/upper,workdir={self.folder}/work {root}
cd {root}
mount -t proc proc proc
mount -o bind,ro proc/sys proc/sys
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mkdir dev/shm dev/pts
mount -t tmpfs tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd; ln -s /proc/self/fd/0 dev/stdin; ln -s /proc/self/fd/1 dev/stdout; ln -s /proc/self/fd/2 dev/stderr
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mkdir -p run/lock
{binds}
exec unshare --cgroup sh -euc 'mount -t cgroup2 cgroup2 sys/fs/cgroup; exec chroot . env -i container=test PATH={_PATH} /sbin/init'
"""

    def run(
        self, *command: str, check: bool = True, timeout_s: float = 60, environ: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the running machine as root."""
        assert self.init is not None, "the machine does not run"
        known = {"PATH": _PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", **(environ or {})}
        done = subprocess.run(
            ["nsenter", "-t", str(self.init), "-m", "-p", "-u", "-i", "-C", "-r", "-w", "env", "-i"]
            + [f"{name}={value}" for name, value in known.items()]
            + list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Make a file in the running machine."""
        assert self.init is not None, "the machine does not run"
        there = Path(f"/proc/{self.init}/root{path}")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text)
        there.chmod(mode)

    def off(self) -> bool:
        """Whether it has turned itself off."""
        return self.process is not None and self.process.poll() is not None

    def stop(self) -> None:
        """Cut its power."""
        if self.process is not None:
            if self.init is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.init, signal.SIGKILL)
            self.process.wait(STOP_S)
        self.process = self.init = None
        for groups in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            self._remove_group(Path(groups) / self.folder.name)

    def _remove_group(self, group: Path) -> None:
        if not (group / "cgroup.procs").exists():
            return
        for below in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                below.rmdir()
        with contextlib.suppress(OSError):
            wait_until(lambda: not (group / "cgroup.procs").read_text(), 10, what="the end of all its processes")
            group.rmdir()

    def close(self) -> None:
        """End it and remove what it had changed."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def machine(lower: Path, *, binds: dict[str, str] | None = None) -> Iterator[Machine]:
    """A machine on that root, with files of ours bound into it; it is not booted yet."""
    made = Machine(lower, binds=binds or {})
    try:
        yield made
    finally:
        made.close()


def pip_environment() -> dict[str, str]:
    """What pip in a machine needs to reach the registry as this machine does."""
    kept = {name: value for name, value in os.environ.items() if name in ("PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT")}
    if pip_cache():
        kept["PIP_CACHE_DIR"] = PIP_CACHE
    return {**kept, "PIP_CERT": "/etc/ssl/tests-ca.crt"} if CERTIFICATES.exists() else kept


def pip_cache() -> dict[str, str]:
    """A bind that saves a machine from fetching what this one has fetched."""
    found = Path("~/.cache/pip").expanduser()
    return {PIP_CACHE: str(found)} if found.is_dir() else {}
