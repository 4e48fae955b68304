"""All environments of a lease as one: gymnasium's ``VectorEnv``, and PettingZoo's ``ParallelEnv`` for two players.

    from client_sdk import Cornerman, make_vec

    with Cornerman().lease(envs=12) as lease:
        vec = make_vec(lease, "doapp", env_settings, wrappers_settings, seed=7)
        observations, infos = vec.reset()
        observations, rewards, terminations, truncations, infos = vec.step(vec.action_space.sample())

Needs what the extra ``diambra`` installs. A step of all environments costs one round trip. An engine that dies or hangs
truncates the episode of its environment (``infos["engine_replaced"]``), which goes on with a fresh one.
"""

from __future__ import annotations

try:
    import greenlet  # noqa: F401
    from diambra.arena import EnvironmentSettings  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"The vector environment needs DIAMBRA's client and what the extra 'diambra' installs ({error}): see the README's first lines."
    ) from error

from client_sdk.vector._batching import AutoresetMode
from client_sdk.vector._making import make_parallel, make_vec
from client_sdk.vector._vector_env import LaneVectorEnv

__all__ = ["AutoresetMode", "LaneVectorEnv", "make_parallel", "make_vec"]
