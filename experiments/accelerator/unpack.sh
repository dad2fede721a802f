#!/usr/bin/env bash
# Installs the parts of pack.sh on a machine without network. Writes only to TARGET.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

usage() {
  cat <<END
usage: unpack.sh PARTS TARGET [wheels] [weights] [--python PYTHON]

Checks the parts in the folder PARTS, joins them and installs them into TARGET/wheels
and TARGET/weights, then prints the line of environment that makes Python find them
and this repository. Without network; a second time does nothing.

  wheels, weights  only these, as soon as their parts are there (default: both)
  --python PYTHON  the Python 3.12 that is to use them (default: python3)
END
}

fail() {
  echo "error: $*" >&2
  exit 1
}

python=python3 paths=() groups=()
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
((${#paths[@]} == 2)) || fail 'the folders PARTS and TARGET are expected; see --help'
((${#groups[@]})) || groups=(wheels weights)
parts=${paths[0]} target=${paths[1]}
[[ -r $parts/SHA256SUMS ]] ||
  fail "$parts/SHA256SUMS: no such file; it comes with the first part"
"$python" -m pip --version >/dev/null 2>&1 ||
  fail "--python $python has no pip; expected a Python 3.12 with pip"
mkdir -p "$target"
target=$(cd "$target" && pwd)

sums() { grep "  $1\.[0-9]*\$" "$parts/SHA256SUMS"; }

check() { # check GROUP: all its parts are there and whole
  local sum name missing=() damaged=()
  sums "$1" >/dev/null || fail "$1: not in SHA256SUMS; expected wheels or weights"
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
  local new=$target/$1.new
  if sums "$1" | cmp --quiet - "$target/$1/.parts"; then
    echo "$1: already there"
    return
  fi
  rm -rf "$new"
  mkdir -p "$new/packed"
  sums "$1" | while read -r _ name; do cat "$parts/$name"; done |
    tar --extract --directory "$new/packed"
  "$python" -m pip --isolated --disable-pip-version-check install --quiet \
    --no-index --no-deps --no-compile --no-cache-dir --root-user-action ignore \
    --target "$new/site" "$new"/packed/*.whl || fail "$1: pip cannot install it"
  sums "$1" >"$new/site/.parts"
  rm -rf "${target:?}/$1"
  mv "$new/site" "$target/$1"
  rm -rf "$new"
  echo "$1: installed"
}

for group in "${groups[@]}"; do check "$group"; done
for group in "${groups[@]}"; do install "$group"; done

# The description of prm_jax that an installation would leave. Its code is found in the
# repository: installing it needs setuptools of a version that may not be there.
if [[ -d $target/wheels ]]; then
  "$python" - "$root/pyproject.toml" "$target/wheels" <<'END'
import pathlib, sys, tomllib

project = tomllib.loads(pathlib.Path(sys.argv[1]).read_text())['project']
lines = ['Metadata-Version: 2.1', 'Name: prm_jax', f'Version: {project["version"]}']
lines += [f'Requires-Dist: {each}' for each in project['dependencies']]
about = pathlib.Path(sys.argv[2], 'prm_jax.dist-info')
about.mkdir(exist_ok=True)
(about / 'METADATA').write_text('\n'.join(lines) + '\n')
END
  # The machine's own packages, whose versions pack.sh may not have known, may not fit.
  PYTHONPATH=$target/wheels "$python" -m pip --isolated --disable-pip-version-check \
    check 2>&1 | while read -r name problem; do
    if compgen -G "$target/wheels/${name//-/_}*.dist-info" >/dev/null; then
      echo "warning: $name $problem" >&2
    fi
  done
fi
echo "export PYTHONPATH=$root:$target/wheels:$target/weights"
