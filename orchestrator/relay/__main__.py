"""``python -m orchestrator.relay --config PATH``: the relay process, as ``cornerman serve`` starts it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from orchestrator.relay.process import serve


def main() -> int:
    """Run the relay; returns its exit code."""
    parser = argparse.ArgumentParser(prog="cornerman-relay", description="The relay of a Cornerman daemon.")
    parser.add_argument("--config", type=Path, required=True, help="the configuration file")
    parser.add_argument("--child", action="store_true", help="end when standard input does")
    chosen = parser.parse_args()
    return serve(chosen.config, child=chosen.child)


if __name__ == "__main__":
    sys.exit(main())
