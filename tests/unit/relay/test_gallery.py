"""Small pictures for the dashboard's wall, what they tell of the fight, and what they may cost."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from diambra.engine import interface_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from client_sdk.wire import Method
from orchestrator import local_socket
from orchestrator.dashboard import pictures
from orchestrator.relay import gallery, thumbnail
from orchestrator.relay.gallery import Allowance, Gallery
from orchestrator.relay.lane import Lane, Seat
from orchestrator.relay.picture import Unreadable
from tests.support.relay import looped

P1, P2, COMMON = (pb.RamStatesCategories.Value(name) for name in ("P1", "P2", "common"))


def _init(height: int, width: int, channels: int, *, low: int = 0, high: int = 160) -> bytes:
    init = pb.EnvInitResponse(frame_shape=pb.FrameShape(h=height, w=width, c=channels))
    for side in (P1, P2):
        init.ram_states_categories[side].ram_states[pb.RamStates.Value("health")].CopyFrom(
            pb.RamStateInfo(type=1, min=low, max=high)
        )
    return bytes(init.SerializeToString())


def _step(frame: bytes, *, one: int = 80, two: int = 160, stage: int = 3) -> bytes:
    observation = pb.StepResetResponse.Observation(frame=frame)
    for side, health in ((P1, one), (P2, two)):
        observation.ram_states_categories[side].ram_states[pb.RamStates.Value("health")] = health
        observation.ram_states_categories[side].ram_states[pb.RamStates.Value("wins")] = 1
    observation.ram_states_categories[COMMON].ram_states[pb.RamStates.Value("stage")] = stage
    return bytes(pb.StepResetResponse(observation=observation).SerializeToString())


def _shown(height: int, width: int, channels: int, frame: bytes | None = None, **fight: int) -> dict[Method, bytes]:
    frame = bytes(height * width * channels) if frame is None else frame
    return {Method.ENV_INIT: _init(height, width, channels), Method.STEP: _step(frame, **fight)}


@pytest.mark.parametrize(
    ("shape", "width", "size"),
    [
        ((480, 512, 3), 160, (171, 160)),
        ((480, 512, 3), None, (512, 480)),
        ((128, 128, 1), 160, (128, 128)),
        ((10, 800, 1), 160, (160, 2)),
        ((1, 4000, 1), 160, (4000, 1)),
    ],
)
def test_a_large_frame_becomes_a_small_picture(
    shape: tuple[int, int, int], width: int | None, size: tuple[int, int]
) -> None:
    """About as wide as asked for, never wider than it was, and with the frame's colours."""
    colour = (200, 30, 60)[: shape[2]]
    shown = _shown(*shape, frame=bytes(colour) * (shape[0] * shape[1]))
    image = Image.open(io.BytesIO(thumbnail.jpeg(shown, width=width)))
    assert image.size == size
    middle = size[0] // 2, size[1] // 2
    seen = image.crop((*middle, middle[0] + 1, middle[1] + 1)).tobytes()
    assert all(abs(a - b) < 12 for a, b in zip(seen, colour, strict=True))


def test_the_fight_is_read_from_the_reply() -> None:
    """Health as a share of what EnvInit says is full, rounds won and the stage."""
    assert thumbnail.fight(_shown(2, 2, 1)) == thumbnail.Fight((0.5, 1.0), (1, 1), 3)
    below = {Method.ENV_INIT: _init(2, 2, 1, low=-1, high=208), Method.STEP: _step(bytes(4), one=-1, two=208)}
    assert thumbnail.fight(below).health == (0.0, 1.0)


def test_a_fight_that_is_not_told_is_not_known() -> None:
    """A game without health in its replies has no bars."""
    init = pb.EnvInitResponse(frame_shape=pb.FrameShape(h=2, w=2, c=1)).SerializeToString()
    step = pb.StepResetResponse(observation=pb.StepResetResponse.Observation(frame=b"abcd")).SerializeToString()
    assert thumbnail.fight({Method.ENV_INIT: init, Method.STEP: step}) == thumbnail.Fight()
    assert thumbnail.fight({}) == thumbnail.Fight()


def test_the_game_is_named_in_the_request() -> None:
    """Which game an engine plays is known from what its client asked for."""
    assert thumbnail.game_id(pb.EnvSettings(game_id="doapp").SerializeToString()) == "doapp"
    assert thumbnail.game_id(b"\x0a\x7f") is None
    assert thumbnail.game_id(b"") is None


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_reply_breaks_it(init: bytes, step: bytes) -> None:
    """An engine's reply may be anything, and so may a client's request."""
    shown = {Method.ENV_INIT: init, Method.STEP: step}
    thumbnail.fight(shown)
    thumbnail.game_id(init)
    with contextlib.suppress(Unreadable):
        thumbnail.jpeg(shown, width=160)


def test_pictures_have_an_allowance() -> None:
    """However many look, all pictures together cost a fixed share of a core; who asks is told when to ask again."""
    now = 0.0
    allowance = Allowance(lambda: now)
    assert allowance.spend(0.0) == gallery.SOONEST_S
    spent = 0.0
    for _ in range(200):
        spent += 0.016
        now += allowance.spend(0.016)
    assert spent / now <= gallery.SHARE * 1.05
    assert spent / now >= gallery.SHARE * 0.8
    now += 100
    assert allowance.spend(0.0, engines=32) == 0.5
    assert allowance.spend(1e9) == gallery.LATEST_S


# ---------------------------------------------------------------- over its socket


def _lane(engine_id: str, shown: dict[Method, bytes]) -> Lane:
    async def no_call(*_: Any, **__: Any) -> Any:
        raise AssertionError

    seat = Seat(lease_id="l-1", rank=0, generation=1, engine_id=engine_id, address="127.0.0.1:1")
    lane = Lane(seat, call_engine=no_call, trouble=None, deliver=lambda result: None)  # type: ignore[arg-type]
    lane.env_init = pb.EnvSettings(game_id="umk3").SerializeToString()
    lane.shown = shown
    lane.ran = 5
    return lane


@looped
async def test_only_what_has_changed_is_shown(state_dir: Path) -> None:
    """A picture comes once, and again after the next step; an engine that the relay does not know has a reason."""
    lane = _lane("e-1", _shown(480, 512, 3))
    shows = Gallery(lambda: {"e-1": lane})
    await shows.open(state_dir)

    async def ask(engines: dict[str, str], width: int | None = 160) -> dict[str, Any]:
        answer = await asyncio.to_thread(pictures.ask, state_dir, engines, width=width)
        found: dict[str, Any] = json.loads(answer)
        return found

    try:
        found = await ask({"e-1": "", "e-2": ""})
        one, other = found["pictures"]["e-1"], found["pictures"]["e-2"]
        assert (one["game"], one["health"], one["stage"], one["mark"]) == ("umk3", [0.5, 1.0], 3, "1.5")
        assert Image.open(io.BytesIO(base64.b64decode(one["jpeg"]))).size == (171, 160)
        assert "no call of its lease" in other["why"]
        assert found["wait_s"] >= gallery.SOONEST_S
        marks = {engine_id: shown["mark"] for engine_id, shown in found["pictures"].items()}
        assert (await ask(marks))["pictures"] == {}
        lane.ran = 6
        assert set((await ask(marks))["pictures"]) == {"e-1"}
        full = (await ask({"e-1": ""}, None))["pictures"]["e-1"]["jpeg"]
        assert Image.open(io.BytesIO(base64.b64decode(full))).size == (512, 480)
        lane.shown.clear()
        lane.ran = 7
        assert "why" in (await ask(marks))["pictures"]["e-1"]
    finally:
        await shows.close()
    assert "relay does not answer" in (await ask({"e-1": ""}))["why"]


@looped
async def test_two_who_look_share_a_picture(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture is drawn once for all who look at it."""
    drawn = []
    draw = gallery._draw
    monkeypatch.setattr(gallery, "_draw", lambda *given: drawn.append(given) or draw(*given))  # type: ignore[func-returns-value]
    shows = Gallery(lambda: {"e-1": lane})
    lane = _lane("e-1", _shown(8, 8, 1))
    first = await shows.show({"e-1": ""}, width=160)
    assert await shows.show({"e-1": "old"}, width=160) == first
    assert len(drawn) == 1
    await shows.close()


@looped
async def test_the_socket_is_for_this_user_and_for_what_it_understands(tmp_path: Path) -> None:
    """Nobody else can open it, a state folder of any depth will do, and nonsense ends one connection alone."""
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    shows = Gallery(dict)
    await shows.open(folder)
    try:
        assert (folder / local_socket.PICTURES).stat().st_mode & 0o777 == 0o600
        for line in (b"nonsense\n", b"[]\n", b"{}\n", b'{"engines": 5}\n', b"x" * 100_000):
            with local_socket.address(folder, local_socket.PICTURES) as path:
                reader, writer = await asyncio.open_unix_connection(path)
            writer.write(line)
            assert await reader.read() == b""
            writer.close()
        answer = await asyncio.to_thread(pictures.ask, folder, {"e-1": ""}, width=160)
        assert answer.count(b"why") == 1
    finally:
        await shows.close()
