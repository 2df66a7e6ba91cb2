#!/bin/sh
# Loads an epoch of augmented photographs four times: undisturbed, with a worker killed every second, stopped and resumed
# with other workers, and stopped and resumed with other numbers of ranks. Prints the digest of the samples of each run,
# and fails if they differ.
#
#     cargo build --release --package loader-cli && examples/same-digest.sh [COPIES [SECONDS_BETWEEN_KILLS]]
#
# COPIES is how often the dataset has each of the 9 photographs. LOADER names another `loader` program.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
loader=${LOADER:-$here/../target/release/loader}
copies=${1:-222}
pause=${2:-1}
folder=$(mktemp -d)
main=
clean() {
    if [ -n "$main" ]; then
        kill "$main" 2> /dev/null && wait "$main" || true
    fi
    rm -r "$folder"
}
trap clean EXIT
# A shell may end by a signal without the trap above, as dash does.
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir "$folder/photos"
for class in "$here"/../loader-data/photos/*/; do
    for copy in $(seq "$copies"); do
        ln -s "$class" "$folder/photos/$(basename "$class")-$copy"
    done
done

# Becomes the loader, so call it in a subshell: the process id of the subshell is then that of main.
run() {
    exec "$loader" run "$folder/photos" --batch-size 4 --shuffle --seed 7 --prefetch-factor 4 --progress-every 0 \
        --digest "$@"
}

# Prints the digest in the output of a run.
digest() {
    grep -o 'sample digest .*' "$1"
}

line() {
    printf '%-38s %s\n' "$1:" "$(digest "$2")"
}

(run --num-workers 2) > "$folder/undisturbed"
line "undisturbed, 2 workers" "$folder/undisturbed"

(run --num-workers 4) > "$folder/killed" 2> "$folder/warnings" &
main=$!
while sleep "$pause" && kill -0 $main 2> /dev/null; do
    # The kernel lists the children of main: its workers.
    worker=$(tr ' ' '\n' < /proc/$main/task/$main/children | shuf -n 1)
    [ -z "$worker" ] || kill -KILL "$worker" 2> /dev/null || true
done
wait $main
main=
kills=$(grep -c 'killed by SIGKILL' "$folder/warnings" || true)
line "4 workers, killed $kills times" "$folder/killed"

(run --num-workers 1 --save-state "$folder/state" --stop-after "$copies") > "$folder/stopped"
(run --num-workers 3 --resume "$folder/state") > "$folder/resumed" 2> "$folder/warnings"
line "stopped with 1 worker, resumed with 3" "$folder/resumed"

# Each rank stops after another number of batches: the first of two ranks has fewer than the second, and so on.
for rank in 0 1; do
    (run --num-workers 1 --rank $rank --world-size 2 --save-state "$folder/two-{rank}" \
        --stop-after $((copies * (rank + 1) / 4 + 1))) > "$folder/stopped"
done
for rank in 0 1 2; do
    (run --num-workers 1 --rank $rank --world-size 3 --resume "$folder"/two-* --save-state "$folder/three-{rank}" \
        --stop-after $((copies * (rank + 1) / 20 + 1))) > "$folder/stopped"
done
(run --num-workers 2 --resume "$folder"/three-*) > "$folder/elastic"
line "stopped with 2, 3 ranks, ended with 1" "$folder/elastic"

for other in killed resumed elastic; do
    [ "$(digest "$folder/undisturbed")" = "$(digest "$folder/$other")" ]
done
