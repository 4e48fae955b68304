"""What the daemon relies on, whatever runs the engines."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.interfaces import HostEvent, Seen
from tests.support.engine_hosts import EngineHost, Specs, launch, wait_ended, wait_ready
from tests.support.waiting import wait_until


def _find(host: EngineHost, name: str) -> Seen:
    seen = host.runtime.find(name)
    assert seen is not None
    return seen


def test_a_host_that_answers_passes_its_check(host: EngineHost) -> None:
    """An engine host that answers raises nothing when it is checked."""
    host.runtime.check()


def test_a_created_engine_does_not_run(host: EngineHost, new_spec: Specs) -> None:
    """Creating an engine makes it visible under its name, with its port, and does not start it."""
    spec = new_spec()
    handle = host.runtime.create(spec)
    seen = _find(host, spec.name)
    assert seen == Seen(spec.engine_id, spec.name, handle, running=False, started=False, port=spec.port)
    assert host.runtime.list() == [seen]
    assert not host.probe("127.0.0.1", spec.port, timeout_s=1)


def test_a_started_engine_runs_and_answers(host: EngineHost, new_spec: Specs) -> None:
    """A started engine is shown as running and answers on the port it was given."""
    spec = new_spec()
    handle = launch(host, spec)
    seen = _find(host, spec.name)
    assert seen == Seen(spec.engine_id, spec.name, handle, running=True, port=spec.port)
    assert host.runtime.list() == [seen]


def test_starting_twice_is_success(host: EngineHost, new_spec: Specs) -> None:
    """Starting an engine that runs already changes nothing."""
    spec = new_spec()
    handle = launch(host, spec)
    host.runtime.start(handle)
    assert _find(host, spec.name).running


def test_creating_twice_gives_the_same_engine(host: EngineHost, new_spec: Specs) -> None:
    """Report 12: a create that is repeated, because its answer was lost, gives the engine that is there; there is one."""
    spec = new_spec()
    assert host.runtime.create(spec) == host.runtime.create(spec)
    assert len(host.runtime.list()) == 1


def test_creating_at_once_gives_the_same_engine(host: EngineHost, new_spec: Specs) -> None:
    """Report 12: callers that create one engine at the same moment all get the one there is."""
    spec = new_spec()
    with ThreadPoolExecutor(4) as threads:
        handles = set(threads.map(lambda _: host.runtime.create(spec), range(4)))
    assert len(handles) == len(host.runtime.list()) == 1


def test_a_name_taken_by_another_engine_is_refused(host: EngineHost, new_spec: Specs) -> None:
    """A name that another engine has is a fault that says whose, and that engine is left alone."""
    spec = new_spec()
    host.runtime.create(spec)
    with pytest.raises(RuntimeFault, match="name") as caught:
        host.runtime.create(new_spec(name=spec.name))
    assert caught.value.kind is FaultKind.BAD_SPEC
    assert _find(host, spec.name).engine_id == spec.engine_id


def test_many_engines_at_once(host: EngineHost, new_spec: Specs) -> None:
    """Report 1: engines created and started at the same moment all run, each on its own port."""
    specs = [new_spec() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda spec: host.runtime.start(host.runtime.create(spec)), specs))
    for spec in specs:
        wait_ready(host, spec)
    assert {seen.port for seen in host.runtime.list() if seen.running} == {spec.port for spec in specs}


def test_a_port_race_has_one_winner(host: EngineHost, new_spec: Specs) -> None:
    """Report 1: of two engines started on one port at the same moment one runs, and the other says the port is taken."""
    first = new_spec()
    specs = [first, new_spec(port=first.port)]
    handles = [host.runtime.create(spec) for spec in specs]

    def start(handle: str) -> FaultKind | None:
        try:
            host.runtime.start(handle)
        except RuntimeFault as fault:
            return fault.kind
        return None

    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(start, handles))
    assert sorted(outcomes, key=str) == [FaultKind.PORT_TAKEN, None]
    assert [seen.running for seen in host.runtime.list()].count(True) == 1


def test_a_lost_port_race_leaves_nothing_behind(host: EngineHost, new_spec: Specs) -> None:
    """Report 2: an engine whose port was taken is visible, can be removed, and starts under its name on another port."""
    winner, loser = new_spec(), new_spec()
    launch(host, winner)
    loser = new_spec(port=winner.port)
    handle = host.runtime.create(loser)
    with pytest.raises(RuntimeFault) as caught:
        host.runtime.start(handle)
    assert caught.value.kind is FaultKind.PORT_TAKEN
    seen = _find(host, loser.name)
    assert (seen.running, seen.started, seen.exit_code) == (False, False, None)
    host.runtime.remove(handle)
    launch(host, new_spec(engine_id=loser.engine_id, name=loser.name))
    assert {seen.name for seen in host.runtime.list()} == {winner.name, loser.name}


def test_a_port_held_by_others_is_taken(host: EngineHost, new_spec: Specs) -> None:
    """Report 3: a port held by something that is no engine is said to be taken, and can be used once it is free."""
    spec = new_spec()
    handle = host.runtime.create(spec)
    with host.hold_port(spec.port), pytest.raises(RuntimeFault) as caught:
        host.runtime.start(handle)
    assert caught.value.kind is FaultKind.PORT_TAKEN
    assert str(spec.port) in str(caught.value)
    host.runtime.remove(handle)
    launch(host, spec)


def test_taken_ports_are_those_asked_for(host: EngineHost, new_spec: Specs) -> None:
    """Report 2: ports of engines that were only created, that run, and that have ended all count as taken."""
    created, running, ended = new_spec(), new_spec(), new_spec()
    host.runtime.create(created)
    launch(host, running)
    launch(host, ended)
    host.end(ended, 0)
    wait_ended(host, ended)
    assert host.runtime.taken_ports() >= {created.port, running.port, ended.port}


def test_a_removed_engine_is_gone(host: EngineHost, new_spec: Specs) -> None:
    """A removed engine is neither found nor listed nor answers, and its port is free for the next one."""
    spec = new_spec()
    host.runtime.remove(launch(host, spec))
    assert host.runtime.find(spec.name) is None
    assert host.runtime.list() == []
    assert not host.probe("127.0.0.1", spec.port, timeout_s=1)
    assert spec.port not in host.runtime.taken_ports()
    launch(host, spec)


def test_removing_again_is_success(host: EngineHost, new_spec: Specs) -> None:
    """Report 15: removing an engine that is gone, never started, or never was, is success."""
    handle = host.runtime.create(new_spec())
    host.runtime.remove(handle)
    host.runtime.remove(handle)
    host.runtime.remove("no-such-engine")
    assert host.runtime.list() == []


def test_removing_at_once_is_success(host: EngineHost, new_spec: Specs) -> None:
    """Report 15: removals of one engine by several callers at the same moment all succeed."""
    spec = new_spec()
    handle = launch(host, spec)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: host.runtime.remove(handle), range(4)))
    wait_until(lambda: host.runtime.list() == [], 10)


def test_starting_a_removed_engine_says_so(host: EngineHost, new_spec: Specs) -> None:
    """Starting an engine that was removed is NOT_FOUND, not a crash."""
    handle = host.runtime.create(new_spec())
    host.runtime.remove(handle)
    with pytest.raises(RuntimeFault) as caught:
        host.runtime.start(handle)
    assert caught.value.kind is FaultKind.NOT_FOUND


def test_a_listing_outlives_what_vanishes(host: EngineHost, new_spec: Specs) -> None:
    """Report 7: while engines end and are removed, each listing still shows the others."""
    stays = new_spec()
    launch(host, stays)
    passing = [new_spec() for _ in range(4)]
    handles = [host.runtime.create(spec) for spec in passing]
    listings: list[list[Seen]] = []
    done = threading.Event()

    def keep_listing() -> None:
        while not done.is_set():
            listings.append(host.runtime.list())
            host.runtime.taken_ports()

    with ThreadPoolExecutor(3) as threads:
        lister = threads.submit(keep_listing)
        try:
            list(threads.map(host.runtime.remove, handles))
        finally:
            done.set()
        lister.result(timeout=20)
    assert listings
    assert all(stays.name in {seen.name for seen in listing} for listing in listings)


def test_an_engine_that_ended_keeps_its_exit_code(host: EngineHost, new_spec: Specs) -> None:
    """An engine that ended is listed, with its exit code, until it is removed."""
    spec = new_spec()
    handle = launch(host, spec)
    host.end(spec, 3)
    wait_ended(host, spec)
    seen = _find(host, spec.name)
    assert seen == Seen(spec.engine_id, spec.name, handle, running=False, exit_code=3, port=spec.port)
    assert host.runtime.list() == [seen]
    host.runtime.remove(handle)
    assert host.runtime.list() == []


def test_a_kill_from_outside_is_137(host: EngineHost, new_spec: Specs) -> None:
    """Report 27: an engine killed from outside ends with 137 and is not flagged as out of memory."""
    spec = new_spec()
    launch(host, spec)
    host.kill(spec)
    wait_ended(host, spec)
    seen = _find(host, spec.name)
    assert (seen.exit_code, seen.oom_killed) == (137, False)


def test_logs_are_the_last_lines(host: EngineHost, new_spec: Specs) -> None:
    """An engine's log gives its last lines, oldest first, also after its end, and nothing once it is removed."""
    spec = new_spec()
    handle = launch(host, spec)
    host.say(spec, "one", "two", "three")
    wait_until(lambda: host.runtime.logs(handle, 2) == ["two", "three"], 5)
    assert host.runtime.logs(handle, 100)[-3:] == ["one", "two", "three"]
    assert host.runtime.logs(handle, 0) == []
    host.end(spec, 1)
    wait_ended(host, spec)
    assert host.runtime.logs(handle, 1) == ["three"]
    host.runtime.remove(handle)
    assert host.runtime.logs(handle, 5) == []


def test_stats_of_a_running_engine(host: EngineHost, new_spec: Specs) -> None:
    """A running engine shows memory at once and CPU from the second look on; one that does not run shows neither."""
    spec = new_spec()
    handle = host.runtime.create(spec)
    idle = host.runtime.stats(handle)
    assert (idle.cpu_percent, idle.memory_bytes) == (None, None)
    host.runtime.start(handle)
    wait_ready(host, spec)
    first = host.runtime.stats(handle)
    assert first.memory_bytes is not None
    assert first.memory_bytes > 100_000
    cpu = wait_until(lambda: host.runtime.stats(handle).cpu_percent is not None, 5)
    assert cpu
    host.runtime.remove(handle)
    assert host.runtime.stats(handle).memory_bytes is None


def test_events_tell_what_happens(host: EngineHost, new_spec: Specs) -> None:
    """Whoever follows the events hears of start, end with exit code, and removal, in this order."""
    spec = new_spec()
    heard: list[HostEvent] = []
    events = host.runtime.events()
    follower = threading.Thread(target=lambda: heard.extend(events), daemon=True)
    follower.start()
    handle = launch(host, spec)
    host.end(spec, 4)
    wait_ended(host, spec)
    host.runtime.remove(handle)
    wait_until(lambda: HostEvent(spec.engine_id, "destroy") in heard, 10)
    host.runtime.close()
    follower.join(10)
    assert not follower.is_alive()
    assert heard == [
        HostEvent(spec.engine_id, "start"),
        HostEvent(spec.engine_id, "die", 4),
        HostEvent(spec.engine_id, "destroy"),
    ]


def test_instances_do_not_see_each_other(host: EngineHost, new_spec: Specs) -> None:
    """Engines of another instance on the same host are neither listed nor found, and their events are not heard."""
    heard: list[HostEvent] = []
    events = host.runtime.events()
    follower = threading.Thread(target=lambda: heard.extend(events), daemon=True)
    follower.start()
    other = host.another("somebody-else")
    foreign = new_spec(instance="somebody-else")
    handle = other.create(foreign)
    assert host.runtime.list() == []
    assert host.runtime.find(foreign.name) is None
    other.start(handle)
    other.remove(handle)
    mine = new_spec()
    launch(host, mine)
    wait_until(lambda: bool(heard), 10)
    assert {event.engine_id for event in heard} == {mine.engine_id}
    host.runtime.close()
    follower.join(10)


def test_an_image_resolves_to_what_stays(host: EngineHost, new_spec: Specs) -> None:
    """What an image resolves to can be created from, and resolves to itself."""
    pinned = host.runtime.resolve_image(host.image)
    assert host.runtime.resolve_image(pinned) == pinned
    assert host.runtime.resolve_image(host.image, fresh=True) == pinned  # made here: there is nowhere to fetch it from
    launch(host, new_spec(image=pinned))
