"""From what Docker shows to what the daemon understands; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.interfaces import LABEL_ENGINE, HostEvent, Seen

EVENT_KINDS = ("start", "oom", "die", "destroy")
_ALIVE = ("running", "paused", "restarting")


def alive(item: Mapping[str, Any]) -> bool:
    """Whether an entry of Docker's list is a container with a live process."""
    return item["State"] in _ALIVE


def seen_from_list(item: Mapping[str, Any]) -> Seen:
    """A live container as its entry in Docker's list tells it."""
    ports = sorted(published(item.get("Ports") or ()))
    return Seen(
        engine_id=item["Labels"].get(LABEL_ENGINE, ""),
        name=item["Names"][0].lstrip("/") if item.get("Names") else "",
        handle=item["Id"],
        running=True,
        port=ports[0] if ports else None,
    )


def seen_from_inspect(info: Mapping[str, Any]) -> Seen:
    """Any container as its inspection tells it, with exit code, OOM flag and the port it asked for."""
    state = info["State"]
    started = state["Status"] != "created"
    running = state["Status"] in _ALIVE
    ports = sorted(asked_ports(info))
    return Seen(
        engine_id=(info["Config"].get("Labels") or {}).get(LABEL_ENGINE, ""),
        name=info["Name"].lstrip("/"),
        handle=info["Id"],
        running=running,
        # A container whose start failed stays "created" with an exit code of Docker's own making.
        exit_code=state["ExitCode"] if started and not running else None,
        oom_killed=bool(state.get("OOMKilled")),
        started=started,
        port=ports[0] if ports else None,
    )


def published(ports: Iterable[Mapping[str, Any]]) -> set[int]:
    """Host ports of an entry in Docker's list; only running containers have any there."""
    return {int(port["PublicPort"]) for port in ports if port.get("PublicPort")}


def asked_ports(info: Mapping[str, Any]) -> frozenset[int]:
    """Host ports an inspected container asked for by number, whether it runs or not."""
    bindings = (info["HostConfig"].get("PortBindings") or {}).values()
    wanted = (str(binding.get("HostPort") or "") for group in bindings for binding in group or ())
    return frozenset(port for text in wanted for port in _port_range(text))


def _port_range(text: str) -> range:
    """Docker takes "32000" and "32000-32010"; anything else is no number asked for."""
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit():
        return range(0)
    return range(int(first), int(last or first) + 1)


def host_event(raw: Mapping[str, Any]) -> HostEvent | None:
    """The event as the daemon knows it, or None for one it has no use for."""
    kind = raw.get("Action", "")
    attributes = raw.get("Actor", {}).get("Attributes", {})
    engine_id = attributes.get(LABEL_ENGINE)
    if kind not in EVENT_KINDS or not engine_id:
        return None
    code = attributes.get("exitCode", "")
    return HostEvent(engine_id, kind, int(code) if code.lstrip("-").isdigit() else None)


def repository(image: str) -> str:
    """The image's name without tag or digest, as Docker writes it in digests."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    name = head + slash + last.partition(":")[0]
    return name.removeprefix("docker.io/").removeprefix("library/")


def pinned(image: str, info: Mapping[str, Any]) -> str:
    """The immutable reference of an inspected image: its registry digest, or its id when it was built here."""
    digests: list[str] = list(info.get("RepoDigests") or ())
    if image in (info["Id"], *digests):
        return image  # what is pinned stays as it is
    own = [digest for digest in digests if repository(digest) == repository(image)]
    return str((own or digests or [info["Id"]])[0])
