"""The helper that keeps containers away from a cloud's metadata address."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.left_out import leave_out

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "block-metadata.sh"
RULE = "-A DOCKER-USER -d 169.254.169.254/32 -j REJECT"


def _in_own_network(commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands in a network namespace of their own, with a firewall of its own."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "iptables"))):
        leave_out("firewall rules can be tried only as root, with unshare and iptables")
    return subprocess.run(
        ["unshare", "--net", "bash", "-euc", commands], capture_output=True, text=True, check=False, timeout=60
    )


def test_one_rule_however_often() -> None:
    """The rule is there once however often the helper ran, before the rules that let traffic pass, and can be removed."""
    done = _in_own_network(
        f"iptables -N DOCKER-USER; iptables -A DOCKER-USER -j RETURN; {SCRIPT}; {SCRIPT}; iptables -S DOCKER-USER;"
        f"echo --; {SCRIPT} --remove; iptables -S DOCKER-USER"
    )
    assert done.returncode == 0, done.stderr
    before, _, after = done.stdout.partition("--\n")
    rules = before.splitlines()
    assert sum(rule.startswith(RULE) for rule in rules) == 1
    assert rules.index("-A DOCKER-USER -j RETURN") == 2
    assert RULE not in after


def test_without_docker_it_says_so() -> None:
    """Where Docker has made no chain for its users, the helper changes nothing and says what to do."""
    done = _in_own_network(f"{SCRIPT}")
    assert done.returncode == 1
    assert "start Docker first" in done.stderr
