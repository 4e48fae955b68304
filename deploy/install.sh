#!/usr/bin/env bash
# Installs a Cornerman host, or upgrades it in place; see usage().
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: deploy/install.sh [options] [-- options of 'cornerman init']
       deploy/install.sh --uninstall [--purge]

Makes this machine a Cornerman host: Docker from the distribution, a user of its own, Cornerman in /opt/cornerman, its
configuration, kernel settings and systemd units. Run it again to upgrade: the new version is built beside the old one and
takes over in a restart of a few seconds; leases and their games in Docker go on. Run it again also after a failure.

  --source WHAT      what pip shall install: a folder, a wheel, or a requirement  (default: the clone this script is in)
  --idle-after TIME  turn the machine off when nobody has leased for so long, e.g. 45m        (default: never)
  --url-file FILE    write the connection string there, for root alone            (default: print it, once)
  --ec2              also install what 'cornerman ec2' needs on the instance
  --uninstall        remove all of it but the configuration and the data, which are named
  --purge            with --uninstall: remove those too

Options of 'cornerman init' that matter most: --public-host, --min-ready, --max-engines, --credentials, --roms, --image.
Systems: Amazon Linux 2023, Debian 12 and 13, Ubuntu 22.04 and later.
USAGE
}

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly home=/opt/cornerman config=/etc/cornerman state=/var/lib/cornerman url=/etc/cornerman/notebook.url
readonly link=/usr/local/bin/cornerman sysctl_file=/etc/sysctl.d/60-cornerman.conf unit_dir=/etc/systemd/system
readonly services=(cornerman.service cornerman-relay.service)
readonly started_too=(cornerman-poweroff.path cornerman-prune.timer)
readonly units=("${services[@]}" "${started_too[@]}" cornerman-poweroff.service cornerman-prune.service)
readonly disk_mb=4096 own_disk_mb=600
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 LC_ALL=C.UTF-8 PIP_DISABLE_PIP_VERSION_CHECK=1
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
umask 022

say() { printf 'cornerman: %s\n' "$*" >&2; }
told=''
die() { say "$*"; told=yes; exit 1; }

source='' idle_after='' url_file='' uninstall='' purge='' ec2='' runtime=docker port=8443 relay_port=''
init_options=()
while [ $# -gt 0 ]; do
  case $1 in
    --source | --idle-after | --url-file) [ $# -ge 2 ] || die "option $1 needs a value" ;;&
    --source) source=$2; shift 2 ;;
    --idle-after) idle_after=$2; shift 2 ;;
    --url-file) url_file=$2; shift 2 ;;
    --ec2) ec2=yes; shift ;;
    --uninstall) uninstall=yes; shift ;;
    --purge) purge=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    --)
      shift
      for word; do
        if [[ $word =~ ^(--[a-z-]+)=(.*)$ ]]; then init_options+=("${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"); else init_options+=("$word"); fi
      done
      break
      ;;
    *) usage >&2; exit 2 ;;
  esac
done
for ((i = 0; i + 1 < ${#init_options[@]}; i++)); do
  case ${init_options[i]} in
    --port) port=${init_options[i + 1]} ;;
    --relay-port) relay_port=${init_options[i + 1]} ;;
    --runtime) runtime=${init_options[i + 1]} ;;
  esac
done
[ -z "$idle_after" ] || [[ $idle_after =~ ^([1-9][0-9]+s|[1-9][0-9]*[mhd])$ ]] ||
  die "--idle-after $idle_after is no time of 10 s or more: say for example 45m"
[ -z "$purge" ] || [ -n "$uninstall" ] || die "--purge goes with --uninstall"

# -- looking, before anything is changed -------------------------------------------------------------------------------

need_root() { [ "$(id -u)" = 0 ] || die "run it as root: it installs packages, a user and services"; }

need_systemd() {
  { [ -d /run/systemd/system ] && command -v systemctl >/dev/null; } ||
    die "systemd does not run this machine, and Cornerman's services need it; without it see 'cornerman serve --help'"
}

# Sets $family (apt or dnf), and $python_packages for a Python that has venv.
read_system() {
  local id='' version='' name='this system'
  if [ -r /etc/os-release ]; then
    # shellcheck source=/dev/null
    { read -r id; read -r version; read -r name; } < <(. /etc/os-release; printf '%s\n' "${ID:-}" "${VERSION_ID:-}" "${PRETTY_NAME:-}")
  fi
  family=apt python_packages=(python3-venv)
  case $id:$version in
    debian:1[23]) ;;
    ubuntu:22.04) python_packages=(python3.11 python3.11-venv) ;; # its python3 is 3.10, and the daemon needs 3.11
    ubuntu:2[3-9].* | ubuntu:[3-9][0-9].*) ;;
    amzn:2023*) family=dnf python_packages=(python3.11) ;;
    *) die "$name is not supported: take Amazon Linux 2023, Debian 12 or 13, or Ubuntu 22.04 or later" ;;
  esac
  case $(uname -m) in
    x86_64 | amd64) ;;
    *) [ "$runtime" != docker ] || die "DIAMBRA's engine runs on x86-64 only, and this machine is $(uname -m)" ;;
  esac
}

upgrading() { [ -e "$config/cornerman.toml" ]; }

# The configuration says how engines run, once there is one.
read_runtime() {
  upgrading || return 0
  if grep -q '^runtime = "docker"' "$config/cornerman.toml"; then runtime=docker; else runtime=process; fi
}

need_disk() {
  local free wanted=$disk_mb
  # Docker's packages and an engine image are the most of it; an upgrade has them.
  if upgrading || [ "$runtime" != docker ]; then wanted=$own_disk_mb; fi
  mkdir -p "$home" 2>/dev/null || die "$home cannot be made: is the disk full or read-only?"
  free=$(df -Pm "$home" | awk 'NR == 2 { print $4 }')
  rmdir --ignore-fail-on-non-empty "$home" 2>/dev/null || true
  [ "$free" -ge "$wanted" ] || die "only $free MB are free below /opt and $wanted MB are needed: make room or enlarge the volume"
}

# Succeeds when something listens on this TCP port.
listened_to() {
  local wanted
  wanted=$(printf ':%04X' "$1")
  { cat /proc/net/tcp /proc/net/tcp6 2>/dev/null || true; } |
    awk -v end="$wanted" '$4 == "0A" && substr($2, length($2) - 4) == end { found = 1 } END { exit !found }'
}

need_ports() {
  local wanted
  # The ports of an installation are in its configuration, and its services may hold them.
  upgrading && return
  for wanted in "$port" "${relay_port:-$((port + 1))}"; do
    ! listened_to "$wanted" ||
      die "port $wanted is taken by another program: stop that one, or choose others with -- --port N --relay-port M"
  done
}

find_python() {
  local candidate
  for candidate in python3.13 python3.12 python3.11 python3; do
    "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    command -v "$candidate"
    return
  done
  return 1
}

docker_answers() { timeout 20 docker info >/dev/null 2>&1; }

# Two at once would take each other's work back.
take_lock() {
  exec 9>/run/cornerman-install.lock
  flock -n 9 || die "another run of this installer is at work: wait for it"
}

# -- installing --------------------------------------------------------------------------------------------------------

undo=()
# Takes back, last first, what this run has made and not finished.
take_back() {
  local status=$? i
  trap - EXIT
  [ "$status" = 0 ] || [ -n "$told" ] || say "stopped before its end${undo[*]:+; what it had made is taken back}: run this again"
  for ((i = ${#undo[@]} - 1; i >= 0; i--)); do eval "${undo[i]}" >/dev/null 2>&1 || true; done
  rm -rf "$work"
  exit "$status"
}

missing_packages() {
  missing=()
  find_python >/dev/null || missing+=("${python_packages[@]}")
  if [ "$runtime" = docker ] && ! { command -v docker && { command -v dockerd || docker_answers; }; } >/dev/null 2>&1; then
    if [ $family = dnf ]; then missing+=(docker); else missing+=(docker.io iptables); fi
    # From Debian 13 on the command is a package of its own.
    if [ $family = apt ] && apt-cache show docker-cli >/dev/null 2>&1; then missing+=(docker-cli); fi
  fi
  [ -e /etc/ssl/certs/ca-certificates.crt ] || [ $family = dnf ] || missing+=(ca-certificates)
}

install_packages() {
  local missing
  missing_packages
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ $family = apt ]; then
    say "fetching the lists of packages"
    update_lists || die "the lists of packages cannot be fetched ($(last_line packages)): check the network and run this again"
    missing_packages
    say "installing ${missing[*]}"
    apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}" >"$work/packages.log" 2>&1 || packages_failed
  else
    say "installing ${missing[*]}"
    dnf install -y -q "${missing[@]}" >"$work/packages.log" 2>&1 || packages_failed
  fi
}

# A new machine updates itself at its first boot: its lock on the lists is waited for.
update_lists() {
  local i
  for ((i = 0; i < 30; i++)); do
    apt-get update -q -o APT::Update::Error-Mode=any >"$work/packages.log" 2>&1 && return
    grep -q 'Could not get lock' "$work/packages.log" || return 1
    sleep 10
  done
  return 1
}

last_line() {
  { grep -E '^(E:|Err:|Error|ERROR|error)' "$work/$1.log" || cat "$work/$1.log"; } | tail -n 1 | cut -c1-200
}

packages_failed() {
  die "the packages ${missing[*]} cannot be installed ($(last_line packages)): check network and disk and run this again"
}

need_docker() {
  local i
  [ "$runtime" = docker ] || return 0
  if docker_answers; then
    # One that somebody started by hand would be missing after the idle stop. What is not systemd's is none of ours.
    systemctl enable --quiet docker 2>/dev/null || true
    return
  fi
  systemctl enable --now docker >/dev/null 2>&1 ||
    die "Docker is here and does not start: see 'systemctl status docker', then run this again"
  for ((i = 0; i < 15; i++)); do
    docker_answers && return
    sleep 2
  done
  die "Docker runs and does not answer: see 'systemctl status docker', then run this again"
}

make_user() {
  getent group docker >/dev/null || groupadd --system docker
  if ! id cornerman >/dev/null 2>&1; then
    useradd --system --user-group --home-dir "$state" --no-create-home --shell "$(command -v nologin)" cornerman
    undo+=("userdel cornerman")
  fi
  # The daemon's unit has Docker's group, and the relay, which is the same user, must not.
  if id -nG cornerman | grep -qw docker; then gpasswd --delete cornerman docker >/dev/null; fi
  # After an --uninstall the data belongs to root.
  if [ -d "$state" ]; then chown -R cornerman:cornerman "$state"; fi
  if upgrading; then chgrp cornerman "$config/cornerman.toml"; fi
}

# Copies what pip needs, because building leaves files beside the source.
copy_source() {
  mkdir -p "$work/source"
  (cd "$repo" && cp -RL client_sdk orchestrator practice_engine setup.cfg pyproject.toml README.md LICENSE "$work/source/")
}

# Builds the version in a folder of its own; $release names it.
build_release() {
  local python extras=orchestrator what
  python=$(find_python) || die "no Python 3.11 or newer with venv is here: install one, then run this again"
  # An upgrade keeps what was chosen before.
  if [ -n "$ec2" ] || "$home/bin/python" -c 'import boto3' 2>/dev/null; then extras+=,ec2; fi
  [ "$runtime" = docker ] || extras+=,practice
  if [ -z "$source" ]; then
    [ -e "$repo/setup.cfg" ] || die "$repo is no clone of Cornerman: name what to install with --source"
    copy_source
    source=$work/source
  fi
  if [ -e "$source" ]; then
    what="cornerman[$extras] @ file://$(realpath "$source")"
  else
    case $source in
      *://*) what="cornerman[$extras] @ $source" ;;
      cornerman*) what="cornerman[$extras]${source#cornerman}" ;;
      *) die "there is no $source to install" ;;
    esac
  fi
  mkdir -p "$home/releases"
  release=$home/releases/$(date -u +%Y%m%dT%H%M%S)-$$
  undo+=("rm -rf '$release'; rmdir --ignore-fail-on-non-empty $home/releases $home")
  say "building Cornerman in $release"
  "$python" -m venv "$release" >"$work/pip.log" 2>&1 || die "a virtual environment cannot be made ($(last_line pip))"
  "$release/bin/pip" install --quiet --no-input "$what" >"$work/pip.log" 2>&1 ||
    die "pip cannot install Cornerman ($(last_line pip)): check network and disk and run this again"
  "$release/bin/cornerman" --version >"$work/version" 2>"$work/pip.log" || die "what was installed does not run ($(last_line pip))"
  "$release/bin/python" -c 'import orchestrator.daemon, orchestrator.relay.process' 2>"$work/pip.log" || die "what was installed has no daemon ($(last_line pip))"
}

# The address that this machine goes out by.
own_address() { hostname -I 2>/dev/null | awk '{ print $1; found = 1 } END { if (!found) print "127.0.0.1" }'; }

# Lets engines, which run as the daemon's user, read DIAMBRA's credentials: a copy in place of a file in somebody's home.
take_credentials() {
  local i file
  for ((i = 0; i + 1 < ${#init_options[@]}; i++)); do
    [ "${init_options[i]}" = --credentials ] || continue
    file=${init_options[i + 1]}
    [ -f "$file" ] || die "there is no file $file: name the one that 'diambra user login' wrote with --credentials"
    [ "$(dirname "$(realpath "$file")")" != "$config" ] || continue
    undo+=("rm -f '$config/diambra-credentials'")
    install -m 0640 -g cornerman "$file" "$config/diambra-credentials"
    init_options[i + 1]=$config/diambra-credentials
  done
}

# Sets up with the new version, unless it was done before.
set_up() {
  if upgrading; then
    [ ${#init_options[@]} = 0 ] ||
      say "this host is set up already, so what follows -- changes nothing: edit $config/cornerman.toml, then 'systemctl restart cornerman cornerman-relay'"
    return
  fi
  say "setting up $config and $state"
  if [ ! -d "$config" ]; then
    undo+=("rmdir '$config'")
    install -d -m 0755 "$config"
  fi
  [ -d "$state" ] || undo+=("rm -rf '$state'")
  take_credentials
  if [[ " ${init_options[*]-} " != *" --public-host"[\ =]* ]]; then init_options+=(--public-host "$(own_address)"); fi
  undo+=("rm -f '$config/cornerman.toml' '$config/admin.url' '$url'")
  # init writes its configuration last; a CA made by a try before is used again.
  (umask 077 && "$release/bin/cornerman" init "${init_options[@]}" >"$url" 2>"$work/init.log") ||
    die "cornerman init: $(tail -n 1 "$work/init.log" | sed 's/^Error: //')"
}

set_idle() {
  local file=$config/cornerman.toml
  [ -n "$idle_after" ] || return 0
  if grep -q '^\[idle\]' "$file"; then
    sed -i -E -e "/^\[idle\]/,/^\[[^i]/ { /^#?[[:space:]]*after[[:space:]]*=/d }" -e "/^\[idle\]/a after = \"$idle_after\"" "$file"
  else
    printf '\n\n[idle]\nafter = "%s"\n' "$idle_after" >>"$file"
  fi
}

# Engines' ports are not handed to outgoing connections, and a line that was idle for a moment keeps its speed.
set_kernel() {
  local reserved
  [ -e "$sysctl_file" ] || undo+=("rm -f '$sysctl_file'")
  reserved=$(sed -n 's/^net.ipv4.ip_local_reserved_ports *= *//p' /etc/sysctl.d/*.conf 2>/dev/null | grep -v '32000-32999' | tail -n 1 || true)
  mkdir -p "$(dirname "$sysctl_file")"
  cat >"$sysctl_file" <<SYSCTL
# Cornerman: engines listen on 127.0.0.1 at these ports; steps travel on connections that are idle between them.
net.ipv4.ip_local_reserved_ports = ${reserved:+$reserved,}32000-32999
net.ipv4.tcp_slow_start_after_idle = 0
SYSCTL
  sysctl -q -p "$sysctl_file" >/dev/null 2>&1 || systemctl restart systemd-sysctl >/dev/null 2>&1 || true
}

set_units() {
  local unit
  mkdir -p "$work/units"
  undo+=("systemctl daemon-reload")
  for unit in "${units[@]}"; do
    if [ -e "$unit_dir/$unit" ]; then
      cp -p "$unit_dir/$unit" "$work/units/"
      undo+=("cp -p '$work/units/$unit' '$unit_dir/'")
    else
      undo+=("rm -f '$unit_dir/$unit'")
    fi
    install -m 0644 "$repo/systemd/$unit" "$unit_dir/$unit"
  done
  systemctl daemon-reload
}

# Lets $home be the given release's virtual environment, in one step.
switch_to() {
  local part
  # What was made by hand, as README had it once, has these for itself.
  for part in bin lib lib64 include share pyvenv.cfg; do
    [ ! -e "$home/$part" ] || [ -L "$home/$part" ] || mv -T "$home/$part" "$home/$part.before"
  done
  ln -sfn "$1" "$home/current.new"
  mv -T "$home/current.new" "$home/current"
  for part in bin lib pyvenv.cfg; do ln -sfn "current/$part" "$home/$part"; done
}

start() {
  systemctl enable --quiet "${services[@]}" "${started_too[@]}"
  systemctl restart "${started_too[@]}"
  # Together, because the daemon's unit starts the relay's; it returns when both have said that they are ready.
  systemctl restart "${services[@]}"
}

# Lets the former release run again, with its units, and with the database that it knows if the new one has changed that.
roll_back() {
  local unit knows
  say "the new version does not start: going back to the former one"
  systemctl stop "${services[@]}" || true
  for unit in "${units[@]}"; do
    if [ -e "$work/units/$unit" ]; then cp -p "$work/units/$unit" "$unit_dir/"; fi
  done
  systemctl daemon-reload
  switch_to "$1"
  knows=$("$1/bin/python" -c 'from orchestrator.store import migrating; print(migrating.latest())') || return 1
  "$release/bin/python" -m orchestrator.going_back "$state/cornerman.db" "$knows" || return 1
  start
}

remove_other_releases() {
  local old
  for old in "$home"/releases/*; do
    [ "$old" = "$release" ] || rm -rf "$old"
  done
  rm -rf "${home:?}"/*.before
}

install_host() {
  local before='' was_there=''
  need_root
  need_systemd
  read_runtime
  read_system
  need_disk
  need_ports
  work=$(mktemp -d)
  trap take_back EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  take_lock
  if upgrading; then was_there=yes; fi
  before=$(readlink -f "$home/current" 2>/dev/null || true)
  install_packages
  need_docker
  build_release
  make_user
  set_up
  set_idle
  set_kernel
  set_units
  switch_to "$release"
  mkdir -p "$(dirname "$link")"
  ln -sfn "$home/bin/cornerman" "$link"
  undo=()
  say "starting $(cat "$work/version")"
  if ! start; then
    if [ -n "$was_there" ] && [ -x "$before/bin/cornerman" ]; then
      if roll_back "$before"; then
        rm -rf "$release"
        die "the new version does not start, so the former one runs again: see 'journalctl -u cornerman'"
      fi
    fi
    give_url
    die "it is installed and does not start: see 'journalctl -u cornerman -u cornerman-relay', then run this again"
  fi
  remove_other_releases
  give_url
  if "$home/bin/cornerman" doctor --help >/dev/null 2>&1; then
    "$home/bin/cornerman" doctor >&2 || say "doctor has found something: see above"
  fi
  say "$(cat "$work/version") runs: see 'cornerman status'; configuration in $config, data in $state"
}

# The string lies in $url from init until it is given, so that a run that was ended before costs nobody the string.
give_url() {
  [ -e "$url" ] || return 0
  if [ ! -s "$url" ]; then
    (umask 077 && env -u CORNERMAN_URL "$home/bin/cornerman" token create notebook >"$url" 2>/dev/null) || return 0
  fi
  if [ -n "$url_file" ]; then
    install -m 0600 "$url" "$url_file"
  else
    say "a notebook's connection string, as secret as a password and shown this once:"
    cat "$url"
  fi
  rm -f "$url"
}

# -- removing ----------------------------------------------------------------------------------------------------------

# Prints what this host's containers carry in their label; another daemon's on the same Docker are not ours.
instance() {
  local python
  # Of half an installation the program may be gone, and the system's own Python is enough.
  for python in "$home/bin/python" python3; do
    "$python" -c 'import sqlite3, sys
db = sqlite3.connect(f"file:{sys.argv[1]}?mode=rw", uri=True)
print(db.execute("SELECT value FROM meta WHERE key = ?", ("instance",)).fetchone()[0])' \
      "$state/cornerman.db" 2>/dev/null && return
  done
  return 1
}

remove_engines() {
  local engines=() ours
  docker_answers || return 0
  if ours=$(instance); then
    mapfile -t engines < <(docker ps -aq --filter "label=cornerman.instance=$ours")
    [ ${#engines[@]} -eq 0 ] || docker rm -f "${engines[@]}" >/dev/null || true
  elif [ -n "$(docker ps -aq --filter label=cornerman.instance)" ]; then
    say "engines are left, and whose they are is not known without the state: see 'docker ps --filter label=cornerman.instance'"
  fi
  # The network is that of all daemons on this Docker.
  [ -n "$(docker ps -aq --filter label=cornerman.instance)" ] || docker network rm cornerman >/dev/null 2>&1 || true
}

uninstall_host() {
  local unit kept=()
  need_root
  take_lock
  if [ -d /run/systemd/system ]; then
    for unit in "${units[@]}"; do
      [ ! -e "$unit_dir/$unit" ] || systemctl disable --now --quiet "$unit" 2>/dev/null || true
    done
  fi
  remove_engines
  for unit in "${units[@]}"; do rm -rf "${unit_dir:?}/$unit" "${unit_dir:?}/$unit.d"; done
  if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
  rm -rf "$home" "$link" "$sysctl_file" /run/cornerman-install.lock /var/lib/systemd/timers/stamp-cornerman-prune.timer
  if [ -n "$purge" ]; then rm -rf "$config" "$state"; fi
  if id cornerman >/dev/null 2>&1; then
    # What stays must not belong to a number that the next new user gets.
    [ ! -d "$state" ] || chown -R root:root "$state"
    [ ! -d "$config" ] || chgrp -R root "$config"
    userdel cornerman
  fi
  if getent group cornerman >/dev/null; then groupdel cornerman; fi
  for unit in "$config" "$state"; do [ ! -e "$unit" ] || kept+=("$unit"); done
  say "removed; ${kept[*]:+what stays is ${kept[*]} (--purge removes it), }Docker with its images, and the ROMs where you put them"
}

if [ -n "$uninstall" ]; then uninstall_host; else install_host; fi
