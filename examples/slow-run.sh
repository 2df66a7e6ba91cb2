#!/bin/sh
# Makes a slow run fast, as docs/tuning.md tells: each run changes what the report of the run before names. Prints the
# second epoch of each run. Fails if the samples of a run differ, or if the last run is not twice as fast as the first.
#
#     cargo build --release --package loader-cli --features formats && examples/slow-run.sh [COPIES]
#
# COPIES is how often the dataset has each of the 9 photographs. LOADER names another `loader` program.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
loader=${LOADER:-$here/../target/release/loader}
case $loader in */*) loader=$(realpath "$loader") ;; esac
copies=${1:-100}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
# A shell may end by a signal without the trap above, as dash does.
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$folder"

mkdir photos
for photo in "$here"/../loader-data/photos/*/*.jpg; do
    name=$(basename "$photo" .jpg)
    for copy in $(seq "$copies"); do
        ln -s "$photo" "photos/$name-$copy.jpg"
        echo "{\"file_name\": \"$name-$copy.jpg\", \"text\": \"$name\"}" >> photos/metadata.jsonl
    done
done

cat > base.toml << 'END'
[loader]
batch_size = 30
shuffle = true
seed = 7
digest = true
END
cat > train.toml << 'END'
extends = "base.toml"

[dataset]
kind = "image-table"
path = "photos"
fields = ["image"]
images = { image = { transform = "eval", dtype = "uint8" } }
END
# The same dataset, whose images are decoded and scaled only once.
cat > cached.toml << 'END'
extends = "base.toml"

[dataset]
kind = "cached"
folder = "cache"

[dataset.dataset]
kind = "image-table"
path = "photos"
fields = ["image"]
images = { image = { transform = "eval", dtype = "uint8" } }
END

# Loads two epochs and prints what is said of the second one. Its digest must be that of the first run.
run() {
    echo "$ loader run $*"
    "$loader" run "$@" --epochs 2 --progress-every 0 > report
    grep '^epoch 1: ' report | grep -v digest
    grep -o '^epoch 1: sample digest .*' report > digest
    [ -e first-digest ] || cp digest first-digest
    cmp digest first-digest
}

# Prints the samples per second of the second epoch.
rate() {
    grep -o '^epoch 1: .* samples in .* ([0-9]* samples/s)' report | grep -o '[0-9]* samples/s' | cut -d ' ' -f 1
}

run train.toml
slow=$(rate)
run train.toml --num-workers 2 --trace trace.json
run cached.toml --num-workers 2
fast=$(rate)
if [ "$fast" -lt $((2 * slow)) ]; then
    echo "the last run has $fast samples/s, less than twice the $slow of the first one" >&2
    exit 1
fi
