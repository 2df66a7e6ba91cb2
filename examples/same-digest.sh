#!/bin/sh
# Loads an epoch of augmented photographs three times: undisturbed, with a worker killed every second, and stopped and
# resumed with other workers. Prints the digest of the samples of each run, and fails if they differ.
#
#     cargo build --release --package loader-cli && examples/same-digest.sh [SAMPLES [SECONDS_BETWEEN_KILLS]]
#
# LOADER names another `loader` program.
set -eu

here=$(dirname "$0")
loader=${LOADER:-$here/../target/release/loader}
samples=${1:-2000}
pause=${2:-1}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

# Becomes the loader, so call it in a subshell: the process id of the subshell is then that of main.
run() {
    exec "$loader" run "$here/../loader-data/photos" --samples "$samples" --batch-size 4 --shuffle --seed 7 \
        --prefetch-factor 4 --progress-every 0 --digest "$@"
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
kills=$(grep -c 'killed by SIGKILL' "$folder/warnings" || true)
line "4 workers, killed $kills times" "$folder/killed"

(run --num-workers 1 --save-state "$folder/state" --stop-after $((samples / 10))) > "$folder/stopped"
(run --num-workers 3 --resume "$folder/state") > "$folder/resumed" 2> "$folder/warnings"
line "stopped with 1 worker, resumed with 3" "$folder/resumed"

[ "$(digest "$folder/undisturbed")" = "$(digest "$folder/killed")" ]
[ "$(digest "$folder/undisturbed")" = "$(digest "$folder/resumed")" ]
