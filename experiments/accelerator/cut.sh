#!/usr/bin/env bash
# Cuts the folders wheels/ and weights/ of pack.sh into parts for transfers of
# limited size. It stands alone, so packages can be cut again without network.
set -euo pipefail

usage() {
  cat <<END
usage: cut.sh FOLDER MB

Writes FOLDER/parts anew: wheels.00, wheels.01, ... hold FOLDER/wheels, and
weights.00, ... FOLDER/weights, none larger than MB (of 1024*1024 bytes).
SHA256SUMS lists all of them and belongs to every transfer.
END
}

fail() {
  echo "error: $*" >&2
  exit 1
}

[[ ${1:-} != --help ]] || {
  usage
  exit
}
(($# == 2)) || fail 'FOLDER and MB are expected; see --help'
folder=$1 part_size=$2
[[ $part_size =~ ^[1-9][0-9]*$ ]] ||
  fail "$part_size: expected a whole number of MB above 0"
for group in wheels weights; do
  [[ -d $folder/$group ]] ||
    fail "$folder/$group: no such folder; run pack.sh first"
done

mkdir -p "$folder/parts"
rm -f "$folder"/parts/{wheels.*,weights.*,SHA256SUMS}
for group in wheels weights; do
  # Wheels are compressed already. The options make equal folders equal parts.
  tar --create --directory "$folder/$group" --sort=name --mtime=@0 --owner=0 \
    --group=0 --numeric-owner . |
    split --bytes "${part_size}M" --numeric-suffixes - "$folder/parts/$group."
done
cd "$folder/parts"
sha256sum wheels.* weights.* >SHA256SUMS
du -m --apparent-size wheels.* weights.* | awk '{print $2 ": " $1 " MB"}'
