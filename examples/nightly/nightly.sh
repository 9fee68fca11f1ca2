#!/bin/sh
# Has one run brought to its end, whatever became of it before, and exits with its exit code:
#
#     nightly.sh RUN submit --attach conf/nightly.yaml
#     nightly.sh RUN train program.py --epochs 20
#
# RUN is the run's folder, one for each night. A run that is not there begins; one that was stopped, failed
# or was killed goes on from its last checkpoint; one that is under way, or in a queue, is waited for; one
# that has finished is left as it is. So a scheduler may call this as often as it likes.
#
# 0 finished; 1 failed, or could not begin; 2 wrong usage; 3 stopped before its end, as by --time-limit.

if [ $# -lt 2 ]; then
    echo "usage: nightly.sh RUN submit|train ..." >&2
    exit 2
fi
run=$1
shift

state() {
    elasticflow status "$run" --json 2>/dev/null | sed -n 's/^  "state": "\([a-z]*\)".*/\1/p'
}

case $(state) in
    "") exec elasticflow "$@" --run-dir "$run" ;;
    finished) ;;
    failed | stopped | killed) exec elasticflow "$@" --run-dir "$run" --resume ;;
    *) elasticflow attach "$run" ;;
esac

case $(state) in # it may have ended before anybody could look
    finished) exit 0 ;;
    stopped) exit 3 ;;
    *) exit 1 ;;
esac
