#!/bin/sh
# One night: trains on a day's records from where the last good model was, and lets the new one out if it is as good.
#
#     night.sh DAY
#
# 0: sales.pt is the new model. 9: it is worse than yesterday's on today's test records; sales.pt stays as it was.
# Anything else: what nightly.sh says. It may be called again at any time.
set -e
day=${1:?"usage: night.sh DAY"}
here=$(dirname "$0")
run=runs/sales-$day
good=runs/sales-good # holds the name of the run whose model is out
before=$(cat "$good" 2>/dev/null || true)

if [ "$before" != "$run" ]; then
    set -- train "$here/sales.py" --config "$here/night.yaml" --set "day=$day"
    [ -z "$before" ] || set -- "$@" --init-from "$before"
    "$here/nightly.sh" "$run" "$@"
    python "$here/compare.py" "$day" "$run" $before
    elasticflow export "$run" sales.new.pt
    mv sales.new.pt sales.pt # at once: whoever reads it finds the old one or the new one
    echo "$run" >"$good"
fi
