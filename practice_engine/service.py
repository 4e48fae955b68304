"""The gRPC face: interface.EnvServer with EnvInit, Reset, Step, Close and Shutdown."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from diambra.engine import interface_pb2 as pb

from practice_engine import wire
from practice_engine.faults import Faults
from practice_engine.games import Game, all_games
from practice_engine.options import Options
from practice_engine.pacing import Pacer

if TYPE_CHECKING:  # at run time EnvInit brings it in: an idle engine has no use for numpy and OpenCV
    from practice_engine.canned import CannedSession
    from practice_engine.session import Session

_LARGEST_FRAME_SIDE = 512
_LARGEST_STEP_RATIO = 6
_EMPTY: bytes = pb.Empty().SerializeToString()


class EnvServer:
    """Answers one client at a time, as the real engine does; calls wait for each other."""

    def __init__(self, options: Options, *, log: Callable[[str], None], exit_process: Callable[[], None]) -> None:
        self._options, self._log, self._exit_process = options, log, exit_process
        self._faults = Faults(options.crash_after, options.hang_after, options.eat_memory_after)
        self._lock = threading.Lock()
        self._session: Session | CannedSession | None = None
        self._game: Game | None = None
        self._pacer = Pacer(None)
        self._n_players = self._step_ratio = 1
        self._steps = self._resets = 0

    def env_init(self, request: pb.EnvSettings, context: grpc.ServicerContext) -> bytes:
        """Load a game and tell the client its interface."""
        with self._lock:
            time.sleep(self._options.init_seconds)
            game = all_games().get(request.game_id)
            if game is None:
                _refuse(context, f"Game {request.game_id!r} is unknown; choose one of {', '.join(all_games())}.")
            self._check_rom(game, context)
            if not 1 <= request.step_ratio <= _LARGEST_STEP_RATIO:
                _refuse(context, f"step_ratio is {request.step_ratio}; it must be from 1 to {_LARGEST_STEP_RATIO}.")
            if request.n_players not in (1, 2):
                _refuse(context, f"n_players is {request.n_players}; it must be 1 or 2.")
            asked = (request.frame_shape.h, request.frame_shape.w, request.frame_shape.c)
            if not all(0 <= side <= _LARGEST_FRAME_SIDE for side in asked[:2]) or asked[2] not in (0, 1, 3):
                _refuse(
                    context, f"frame_shape is {asked}; sides go to {_LARGEST_FRAME_SIDE} and channels are 0, 1 or 3."
                )
            return self._load(game, asked, request)

    def _load(self, game: Game, asked: tuple[int, int, int], request: pb.EnvSettings) -> bytes:
        from practice_engine.canned import CannedSession
        from practice_engine.session import Session, frame_shape_for

        shape, ratio, players = frame_shape_for(game, asked), request.step_ratio, request.n_players
        self._n_players, self._step_ratio, self._game = players, ratio, game
        self._session = (
            CannedSession(game, frame_shape=shape, step_ratio=ratio, n_players=players)
            if self._options.canned
            else Session(game, frame_shape=shape, step_ratio=ratio)
        )
        self._pacer = Pacer(self._options.speed.frames_per_s(game))
        self._log(f"Environment initialized: {game.game_id}, {request.n_players}P, frame {shape}.")
        return wire.init_response(game, shape)

    def _check_rom(self, game: Game, context: grpc.ServicerContext) -> None:
        folder = self._options.roms
        if folder is not None and not (folder / game.rom_name).is_file():
            text = f"ROM file not found: {folder / game.rom_name}. Put {game.rom_name}, zipped, into the ROM folder."
            self._log(text)
            context.abort(grpc.StatusCode.NOT_FOUND, text)

    def reset(self, request: pb.EnvSettings.EpisodeSettings, context: grpc.ServicerContext) -> bytes:
        """Begin a new episode."""
        with self._lock:
            if self._session is None or self._game is None:
                _refuse(context, "Reset came before EnvInit; call EnvInit first.", grpc.StatusCode.FAILED_PRECONDITION)
            time.sleep(self._options.reset_seconds)
            self._resets += 1
            spare_seed = self._options.random_seed + self._resets
            setup = wire.setup_of(self._game, request, n_players=self._n_players, spare_seed=spare_seed)
            return self._session.reset(setup, steps=self._steps)

    def step(self, request: pb.Actions, context: grpc.ServicerContext) -> bytes:
        """Play `step_ratio` frames with each agent's action."""
        with self._lock:
            started = self._pacer.start()
            session, game = self._session, self._game
            if session is None or game is None or not session.started:
                _refuse(context, "Step came before Reset; call Reset first.", grpc.StatusCode.FAILED_PRECONDITION)
            actions = wire.actions_of(request)
            if len(actions) != self._n_players:
                _refuse(context, f"Step carries {len(actions)} actions; {self._n_players} agents play.")
            for move, attack in actions:
                if not (0 <= move < game.n_moves and 0 <= attack < game.n_attacks):
                    _refuse(
                        context,
                        f"Action ({move}, {attack}) is unknown; moves go to {game.n_moves - 1}, "
                        f"attacks to {game.n_attacks - 1}.",
                    )
            self._faults.strike(self._steps + 1)
            self._steps += 1
            answer = session.step(actions, steps=self._steps)
            self._pacer.finish(started, self._step_ratio)
            return answer

    def close(self, _request: pb.Empty, _context: grpc.ServicerContext) -> bytes:
        """End the game; the engine stays and takes the next EnvInit."""
        with self._lock:
            self._session = None
            self._log(f"Environment closed after {self._steps} steps.")
            return _EMPTY

    def shutdown(self, _request: pb.Empty, context: grpc.ServicerContext) -> bytes:
        """Answer, then end the process."""
        self._log("Shutdown requested.")
        context.add_callback(self._exit_process)
        return _EMPTY


def _refuse(
    context: grpc.ServicerContext, text: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT
) -> NoReturn:
    context.abort(code, text)
    raise AssertionError("abort() raises")


def serve(servicer: EnvServer, *, host: str, port: int) -> tuple[grpc.Server, int]:
    """Start a server on host:port (port 0 takes a free one) and give it back with its port; RuntimeError if taken."""
    # Two threads: one plays, so that a hanging Step does not keep Shutdown from being heard.
    server = grpc.server(
        ThreadPoolExecutor(max_workers=2, thread_name_prefix="rpc"),
        options=(("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)),
    )
    # Answers are bytes already: no serializer.
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(method, request_deserializer=message.FromString)
        for name, method, message in (
            ("EnvInit", servicer.env_init, pb.EnvSettings),
            ("Reset", servicer.reset, pb.EnvSettings.EpisodeSettings),
            ("Step", servicer.step, pb.Actions),
            ("Close", servicer.close, pb.Empty),
            ("Shutdown", servicer.shutdown, pb.Empty),
        )
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("interface.EnvServer", handlers),))
    bound = server.add_insecure_port(f"{host}:{port}")
    server.start()
    return server, bound


def exit_soon(delay_s: float = 0.1) -> None:
    """End this process once the answer under way has had time to leave."""
    threading.Timer(delay_s, os._exit, args=(0,)).start()
