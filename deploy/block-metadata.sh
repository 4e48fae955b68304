#!/usr/bin/env bash
# Keeps containers away from a cloud's metadata address, where the host's own credentials can be had.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: deploy/block-metadata.sh [--remove]

Adds a rule to the host's firewall (chain DOCKER-USER, which Docker keeps for its users): no container on this host reaches
169.254.169.254 or fd00:ec2::254; the host itself still does. Run it again as often as you like: there is one rule.
Rules are gone after a reboot, so run it whenever Docker has started (ExecStartPost= in a drop-in of docker.service).

On EC2 the instance setting HttpTokens=required with HttpPutResponseHopLimit=1 does the same without any rule, because the
bridge between container and host is a hop more. Docker alone cannot: engines must reach the internet to be authorised.
USAGE
}

remove=''
case ${1:-} in
  '') ;;
  --remove) remove=yes ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

say() { printf 'block-metadata: %s\n' "$*" >&2; }
[ "$(id -u)" = 0 ] || { say 'run it as root: it changes the firewall'; exit 1; }
command -v iptables >/dev/null || { say 'iptables is missing: install the package iptables'; exit 1; }
iptables -w -n -L DOCKER-USER >/dev/null 2>&1 || {
  say 'there is no chain DOCKER-USER: start Docker first, with its firewall rules on'
  exit 1
}

block() {
  local tool=$1 address=$2
  local rule=(DOCKER-USER -d "$address" -j REJECT)
  if [ -n "$remove" ]; then
    while "$tool" -w -C "${rule[@]}" 2>/dev/null; do "$tool" -w -D "${rule[@]}"; done
  elif ! "$tool" -w -C "${rule[@]}" 2>/dev/null; then
    "$tool" -w -I "${rule[@]}"
  fi
}

block iptables 169.254.169.254/32
# Docker makes this chain only where it does IPv6 at all.
if command -v ip6tables >/dev/null && ip6tables -w -n -L DOCKER-USER >/dev/null 2>&1; then
  block ip6tables fd00:ec2::254/128
fi
