#!/usr/bin/env bash
# Installs the parts of pack.sh on a machine without network, into TARGET alone.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

usage() {
  cat <<END
usage: unpack.sh PARTS TARGET [wheels] [weights] [--python PYTHON]

Checks the parts in the folder PARTS, joins them and installs them into
TARGET/wheels and TARGET/weights, then prints the line of environment that makes
Python find them and this repository. Without network; a second time does
nothing.

  wheels, weights  only these, as soon as their parts are there (default: both)
  --python PYTHON  the Python 3.12 that is to use them (default: python3)
END
}

fail() {
  echo "error: $*" >&2
  exit 1
}

python=python3 paths=() groups=() site=''
while (($#)); do
  case $1 in
    --help | -h)
      usage
      exit
      ;;
    --python)
      (($# > 1)) || fail '--python needs a value; see --help'
      python=$2
      shift
      ;;
    -*) fail "unknown option $1; see --help" ;;
    *) if ((${#paths[@]} < 2)); then paths+=("$1"); else groups+=("$1"); fi ;;
  esac
  shift
done
((${#paths[@]} == 2)) ||
  fail 'the folders PARTS and TARGET are expected; see --help'
((${#groups[@]})) || groups=(wheels weights)
parts=${paths[0]} target=${paths[1]}
[[ -r $parts/SHA256SUMS ]] ||
  fail "$parts/SHA256SUMS: no such file; it comes with the first part"

pip_here() { # the user's own settings and packages play no part
  env -u PYTHONPATH ${site:+PYTHONPATH="$site"} "$python" -m pip --isolated \
    --disable-pip-version-check "$@"
}

pip_here --version >/dev/null 2>&1 ||
  fail "--python $python has no pip; expected a Python 3.12 with pip"
mkdir -p "$target"
target=$(cd "$target" && pwd)

sums() { grep "  $1\.[0-9]*\$" "$parts/SHA256SUMS"; }

check() { # check GROUP: all its parts are there and whole
  local sum name missing=() damaged=()
  sums "$1" >/dev/null ||
    fail "$1: not in SHA256SUMS; expected wheels or weights"
  while read -r sum name; do
    if [[ ! -e $parts/$name ]]; then
      missing+=("$name")
    elif [[ $(sha256sum <"$parts/$name") != "$sum  -" ]]; then
      damaged+=("$name")
    fi
  done < <(sums "$1")
  if ((${#missing[@]} || ${#damaged[@]})); then
    fail "$parts:${missing[*]:+ missing: ${missing[*]}.}${damaged[*]:+ damaged:\
 ${damaged[*]}.} Bring these parts again"
  fi
}

install() { # install GROUP: all of it or, after an interruption, nothing
  local group=$1 new=$target/$1.new
  if [[ -e $target/$group ]]; then
    [[ -e $target/$group/.parts ]] ||
      fail "$target/$group: not made by unpack.sh; name another TARGET"
    if sums "$group" | cmp --quiet - "$target/$group/.parts"; then
      echo "$group: already there"
      return
    fi
  fi
  rm -rf "$new"
  mkdir -p "$new/packed" "$new/site"
  sums "$group" | while read -r _ name; do cat "$parts/$name"; done |
    tar --extract --directory "$new/packed"
  if compgen -G "$new/packed/*.whl" >/dev/null; then # else nothing was lacking
    pip_here install --quiet --no-index --no-deps --no-compile --no-cache-dir \
      --root-user-action ignore --target "$new/site" "$new"/packed/*.whl ||
      fail "$group: pip of $python cannot install it"
  fi
  sums "$group" >"$new/site/.parts"
  rm -rf "${target:?}/$group"
  mv "$new/site" "$target/$group"
  rm -rf "$new"
  echo "$group: installed"
}

# Writes what an installed prm_jax would say about itself. Its code stays in the
# repository: to install it takes setuptools of a version that may not be there.
describe() {
  "$python" - "$root/pyproject.toml" "$target/wheels" <<'END'
import pathlib, shutil, sys, tomllib

project = tomllib.loads(pathlib.Path(sys.argv[1]).read_text())['project']
name, version = project['name'], project['version']
lines = ['Metadata-Version: 2.1', f'Name: {name}', f'Version: {version}']
lines += [f'Requires-Dist: {each}' for each in project['dependencies']]
about = pathlib.Path(sys.argv[2], f'{name}-{version}.dist-info')
for old in about.parent.glob(f'{name}-*.dist-info'):
  shutil.rmtree(old)
about.mkdir()
(about / 'METADATA').write_text('\n'.join(lines) + '\n')
END
}

# Lists what does not fit together; pip's exit code says only if there is any.
misfits() {
  { pip_here check || true; } | sed '/^No broken requirements/d'
}

# Warns of packages here that do not fit ours: pack.sh may not have known
# their versions. What does not fit without ours is no matter of ours.
warn() {
  local alone line
  alone=$(misfits)
  site=$target/wheels misfits | while read -r line; do
    grep -qxF "$line" <<<"$alone" || echo "warning: $line" >&2
  done
}

for group in "${groups[@]}"; do check "$group"; done
for group in "${groups[@]}"; do install "$group"; done
if [[ -d $target/wheels ]]; then
  describe
  warn
fi
echo "export PYTHONPATH=$root:$target/wheels:$target/weights"
