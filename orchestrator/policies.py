"""From the configuration to what the daemon thinks with: one Policy for each pool."""

from __future__ import annotations

from orchestrator.config import Config, PoolConfig
from orchestrator.model import Policy


def policies(config: Config) -> dict[str, Policy]:
    """The policy of every configured pool by its name."""
    return {name: _policy(pool, config.server.public_host) for name, pool in config.pools.items()}


def _policy(pool: PoolConfig, public_host: str) -> Policy:
    return Policy(
        runtime=pool.runtime,
        expose=pool.expose,
        host=pool.host_address,
        advertise=public_host if pool.expose == "direct" else "127.0.0.1",
        max_starting=pool.max_starting,
        start_timeout_s=pool.start_timeout_s,
        probe_interval_s=pool.probe_interval_s,
        probe_timeout_s=pool.probe_timeout_s,
        probe_failures=pool.probe_failures,
        reuse=pool.recycle == "reuse",
        max_uses=pool.max_uses,
        max_age_s=pool.max_age_s,
        max_lease_s=pool.max_lease_s,
        idle_release_s=pool.idle_release_s or None,
        allowed_images=tuple(dict.fromkeys((pool.image, *pool.allowed_images))),
    )
