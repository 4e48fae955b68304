"""What `make demo` runs: a daemon for the length of the demo, a lease of four engines, four games, one picture.

Everything between "lease" and "release" is what a notebook does: the SDK leases, DIAMBRA's own unmodified client plays.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from demo_host import DemoFault, Host, Interrupts, choose_runtime
from demo_picture import save_picture

from client_sdk import Cornerman, CornermanError, Lease

REPOSITORY = Path(__file__).resolve().parents[1]
GAMES = ("doapp", "sfiii3n", "kof98umh", "umk3")
LEASE_WITHIN_S = 180.0
FIRST_FRAME_WITHIN_S = 60.0
SEED = 7


@dataclass
class Player:
    """One environment: what it has done so far, and the last frame it showed."""

    rank: int
    game: str
    steps: int = 0
    episodes: int = 0
    began_at: float | None = None  # of the first step, monotonic
    ended_at: float | None = None
    frame: Any = None
    error: BaseException | None = None

    def rate(self) -> float:
        """Steps per second since its first step."""
        if self.began_at is None:
            return 0.0
        return self.steps / max(1e-3, (self.ended_at or time.monotonic()) - self.began_at)

    def play(self, arena: Any, stop: threading.Event) -> None:
        """Play at random with the stock client until ``stop``; an error is kept, not raised."""
        try:
            settings = arena.EnvironmentSettings()
            settings.splash_screen = False
            env = arena.make(self.game, settings, rank=self.rank, log_level=logging.WARNING)
            try:
                self._steps(env, stop)
            finally:
                self.ended_at = time.monotonic()
                with contextlib.suppress(Exception):  # it closes OpenCV's windows, and OpenCV may have none
                    env.close()
        except Exception as error:  # the thread's edge: the main thread says it
            self.error = error

    def _steps(self, env: Any, stop: threading.Event) -> None:
        env.action_space.seed(SEED + self.rank)
        observation, _ = env.reset(seed=SEED)  # plays seed + rank: each environment has a game of its own
        self.began_at = time.monotonic()
        while not stop.is_set():
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            self.steps += 1
            self.frame = observation["frame"]
            if terminated or truncated:
                self.episodes += 1
                env.reset()


def main() -> int:
    """Run the demo; 0 when all environments were played."""
    options = _options()
    interrupts = Interrupts()
    try:
        with interrupts, ExitStack() as undo:
            try:
                _demo(options, undo, interrupts)
            finally:
                interrupts.ignore()
    except (DemoFault, CornermanError) as fault:
        print(f"\ndemo: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; everything it had started is gone.", file=sys.stderr)
        return 130
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.py", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to play (default: 10)")
    parser.add_argument(
        "--runtime", choices=("auto", "docker", "process"), default="auto", help="what engines run as (default: auto)"
    )
    parser.add_argument("--picture", type=Path, default=REPOSITORY / "out" / "demo.png", help="default: out/demo.png")
    return parser.parse_args()


def _demo(options: argparse.Namespace, undo: ExitStack, interrupts: Interrupts) -> None:
    runtime = choose_runtime(options.runtime, interrupts)
    _say("engines", runtime.why)
    host = Host(runtime, envs=len(GAMES), interrupts=interrupts)
    undo.callback(host.close)
    url = host.start()
    _say("daemon", f"listens on {host.address}; its folder is {host.folder}")

    # ---- from here on: what a notebook does
    asked_at = time.monotonic()
    lease = Cornerman(url, quiet=True).lease(envs=len(GAMES), timeout_s=LEASE_WITHIN_S, ttl_s=30, note="make demo")
    with lease:
        _say("lease", f"{lease.id} after {time.monotonic() - asked_at:.2f} s")
        _say("", f"DIAMBRA_ENVS={lease.diambra_envs}")
        players = _play(lease, host, options.seconds)
    _say("release", f"lease {lease.id} is given back")
    # ---- until here

    print("\n" + _table(players, lease.addresses))
    path = save_picture(
        [(player.frame, f"rank {player.rank}  {player.game}  {player.rate():.1f} steps/s") for player in players],
        options.picture,
    )
    print(f"\nA picture of all {len(players)} environments: {_short(path)}\n")


def _play(lease: Lease, host: Host, seconds: float) -> list[Player]:
    """Play all environments at the same time, and show how fast."""
    import diambra.arena as arena  # only now: it takes a second, and the engines start meanwhile

    players = [Player(rank, game) for rank, game in enumerate(GAMES)]
    stop = threading.Event()
    threads = [threading.Thread(target=player.play, args=(arena, stop), daemon=True) for player in players]
    _say("play", f"{', '.join(GAMES)} with random actions for {seconds:g} s")
    try:
        for thread in threads:
            thread.start()
        _watch(lease, host, players, seconds)
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=5.0)  # one that hangs in a call ends with the program
    _raise_first_error(players, host)
    return players


def _watch(lease: Lease, host: Host, players: list[Player], seconds: float) -> None:
    live = sys.stdout.isatty()
    began_at, shown_at = time.monotonic(), 0.0
    ends_at: float | None = None
    while ends_at is None or time.monotonic() < ends_at:
        host.check()
        _raise_first_error(players, host)
        lease.check()
        now = time.monotonic()
        if ends_at is None and all(player.frame is not None for player in players):
            ends_at = now + seconds
        if ends_at is None and now - began_at > FIRST_FRAME_WITHIN_S:
            waiting = ", ".join(str(player.rank) for player in players if player.frame is None)
            raise DemoFault(f"No frame came from rank {waiting} within {FIRST_FRAME_WITHIN_S:g} s; try again.")
        if ends_at is not None and now - shown_at >= (0.25 if live else 2.5):
            shown_at = now
            print("\r" * live + _speeds(players), end="" if live else "\n", flush=True)
        time.sleep(0.05)
    if live:
        print()


def _raise_first_error(players: list[Player], host: Host) -> None:
    for player in players:
        if player.error is not None:
            host.check(within_s=1.0)  # a daemon that died is the better reason
            raise DemoFault(f"Rank {player.rank} ({player.game}) could not be played: {_sentence(player.error)}")


def _sentence(error: BaseException) -> str:
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        return f"{error.code().name}, {error.details()}"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _speeds(players: list[Player]) -> str:
    each = "  ".join(f"{player.game} {player.rate():5.1f}" for player in players)
    return f"           steps/s:  {each}"


def _table(players: list[Player], addresses: list[str]) -> str:
    lines = ["rank  game      engine             steps  steps/s  episodes"]
    for player in players:
        lines.append(
            f"{player.rank:<6}{player.game:<10}{addresses[player.rank]:<17}{player.steps:7}{player.rate():9.1f}{player.episodes:10}"
        )
    lines.append(f"{'all':<33}{sum(p.steps for p in players):7}{sum(p.rate() for p in players):9.1f}")
    return "\n".join(lines)


def _say(what: str, text: str) -> None:
    print(f"{what:<11}{text}", flush=True)


def _short(path: Path) -> Path:
    with contextlib.suppress(ValueError):
        return path.resolve().relative_to(Path.cwd())
    return path


if __name__ == "__main__":
    sys.exit(main())
