#!/usr/bin/env bash
# Builds the practice engine's image on the engine host that $DOCKER_HOST names; does nothing when it is up to date.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: deploy/build-practice-image.sh [--tag TAG] [--force]

  --tag TAG   name of the image                          (default: cornerman/practice-engine:latest)
  --force     build even when the image is up to date

Environment:
  BASE_IMAGE  image with Python 3.11 to build on         (default: python:3.11-slim)
  PYTHON      a Python with pip, which fetches the wheels (default: the repository's .venv, else python3)

When the base cannot be pulled, a Debian 12 base is made with debootstrap (about a minute and a half, once; needs root)
and kept as cornerman-base:bookworm.
USAGE
}

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tag=cornerman/practice-engine:latest
base=${BASE_IMAGE:-python:3.11-slim}
own_base=cornerman-base:bookworm
requirements='grpcio>=1.66
numpy>=1.26
opencv-python-headless>=4.9
protobuf>=5'
diambra_engine='diambra-engine==2.2.4'
force=''

say() { printf 'practice image: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

while [ $# -gt 0 ]; do
  case $1 in
    --tag) [ $# -ge 2 ] || die "--tag needs a name"; tag=$2; shift 2 ;;
    --force) force=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

command -v docker >/dev/null || die "the docker command is missing; install docker.io or Docker's own packages"
machine=$(timeout 30 docker info --format '{{.Architecture}}' 2>/dev/null) ||
  die "no Docker Engine answers at ${DOCKER_HOST:-the default socket}; start one or set DOCKER_HOST"

sources() { (cd "$repo" && find practice_engine -type f ! -path '*/__pycache__/*' -print0 | sort -z); }
fingerprint() {
  {
    (cd "$repo" && sources | xargs -0 sha256sum)
    sha256sum <"${BASH_SOURCE[0]}"
    printf '%s' "${BASE_IMAGE:-}"
  } | sha256sum | cut -c1-32
}
have_image() { docker image inspect "$1" >/dev/null 2>&1; }
up_to_date() {
  [ "$(docker image inspect --format '{{index .Config.Labels "cornerman.sources"}}' "$tag" 2>/dev/null)" = "$wanted" ]
}

wanted=$(fingerprint)
if [ -z "$force" ] && up_to_date; then
  say "$tag is up to date"
  exit 0
fi
# One build at a time: two test runs at once would both make the base.
mkdir -p "$repo/.cache"
exec 9>"$repo/.cache/practice-image.lock"
flock 9
if [ -z "$force" ] && up_to_date; then
  say "$tag is up to date"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

make_own_base() {
  say "making $own_base with debootstrap, which takes a minute or two"
  [ "$(id -u)" = 0 ] || die "cannot pull $base, and making a base needs root; pull one, or set BASE_IMAGE to one that is there"
  command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq debootstrap; } >/dev/null ||
    die "cannot pull $base and debootstrap is missing; install it, or set BASE_IMAGE to an image with Python 3.11"
  debootstrap --variant=minbase --include=python3 bookworm "$work/tree" >"$work/debootstrap.log" 2>&1 || {
    tail -n 5 "$work/debootstrap.log" >&2
    die "debootstrap failed; its last lines are above"
  }
  (cd "$work/tree" && rm -rf var/cache/apt/archives var/lib/apt/lists/* usr/share/doc usr/share/locale usr/share/man)
  tar -C "$work/tree" --numeric-owner -c . |
    docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$own_base" >/dev/null
  rm -rf --one-file-system "$work/tree"
}

if ! have_image "$base"; then
  if have_image "$own_base" && [ -z "${BASE_IMAGE:-}" ]; then
    base=$own_base
  elif ! timeout 120 docker pull --quiet "$base" >"$work/pull.log" 2>&1; then
    say "cannot pull $base: $(tail -n 1 "$work/pull.log")"
    have_image "$own_base" || make_own_base
    base=$own_base
  fi
fi

# Wheels for the base's Python 3.11, whatever Python fetches them; kept, because they are 100 MB.
python=${PYTHON:-$repo/.venv/bin/python}
[ -x "$python" ] && "$python" -m pip --version >/dev/null 2>&1 || python=python3
wheels=$repo/.cache/practice-wheels-$machine-$(printf '%s' "$requirements $diambra_engine" | sha256sum | cut -c1-12)
if [ ! -e "$wheels/complete" ]; then
  say "fetching wheels"
  rm -rf "$wheels"
  mkdir -p "$wheels"
  platforms=()
  for libc in manylinux_2_17 manylinux2014 manylinux_2_24 manylinux_2_26 manylinux_2_27 manylinux_2_28; do
    platforms+=(--platform "${libc}_$machine")
  done
  printf '%s\n' "$requirements" >"$wheels/requirements.txt"
  fetch() {
    "$python" -m pip download --quiet --disable-pip-version-check --dest "$wheels" --only-binary=:all: \
      --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none "${platforms[@]}" "$@" 2>"$work/pip.log" || {
      tail -n 5 "$work/pip.log" >&2
      die "pip cannot fetch the wheels; its last lines are above"
    }
  }
  fetch -r "$wheels/requirements.txt"
  fetch --no-deps "$diambra_engine" pip
  : >"$wheels/complete"
fi

say "building $tag on $base"
context=$work/context
mkdir -p "$context/wheels"
cp "$wheels"/*.whl "$wheels/requirements.txt" "$context/wheels/"
mv "$context"/wheels/pip-*.whl "$context/wheels/pip.whl"
(cd "$repo" && sources | xargs -0 cp --parents -t "$context")
docker build --quiet --network none --build-arg BASE_IMAGE="$base" --build-arg SOURCES="$wanted" \
  --tag "$tag" --file "$context/practice_engine/Dockerfile" "$context" >"$work/build.log" 2>&1 || {
  tail -n 20 "$work/build.log" >&2
  die "the build failed; its last lines are above"
}
say "$tag is ready ($(docker image inspect --format '{{.Size}}' "$tag" | awk '{printf "%.0f MB", $1 / 1e6}'))"
