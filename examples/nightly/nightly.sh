#!/bin/sh
# Has one run brought to its end, whatever became of it before, and exits with its exit code:
#
#     nightly.sh RUN submit --attach conf/nightly.yaml
#     nightly.sh RUN train program.py --epochs 20
#
# RUN is the run's folder, one for each night. A run that is not there begins; one that was stopped, failed
# or was killed goes on from its last checkpoint; one that is under way, or in a queue, is waited for; one
# that has finished is left as it is. So a scheduler may call this as often as it likes. Where a run cannot
# be asked, since HDFS, SLURM or YARN does not answer, nothing is begun: it is asked again every minute.
#
# RUN may be a URL, where its checkpoints are to lie. If the run's folder is not here, as on a new machine in the
# place of one that was taken away, it goes on here where NIGHTLY_TAKE_OVER=1 says that no other machine has it.
#
# 0 finished; 1 failed, or could not begin; 2 wrong usage; 3 stopped before its end, as by --time-limit;
# 4 diverged, 5 stalled, 6 broken: nothing goes on by itself, a person is to look; 75 nobody has answered for
# six hours (NIGHTLY_TRIES times every NIGHTLY_AGAIN_S seconds): try again later.

if [ $# -lt 2 ]; then
    echo "usage: nightly.sh RUN submit|train ..." >&2
    exit 2
fi
run=$1
shift

ask() { # sets $state
    tries=${NIGHTLY_TRIES:-360}
    while :; do
        said=$(elasticflow status "$run" --json 2>/dev/null)
        state=$(printf '%s\n' "$said" | sed -n 's/^  "state": "\([a-z]*\)".*/\1/p')
        [ "$state" = unknown ] || return
        printf '%s\n' "$said" | sed -n 's/^  "text": "\(.*\)".*/waiting: \1/p' >&2
        [ $((tries -= 1)) -gt 0 ] || exit 75
        sleep "${NIGHTLY_AGAIN_S:-60}"
    done
}

ask
case $state in
    absent) exec elasticflow "$@" --run-dir "$run" ;;
    finished | diverged | stalled | broken) ;;
    failed | stopped | killed) exec elasticflow "$@" --run-dir "$run" --resume ;;
    elsewhere)
        [ "${NIGHTLY_TAKE_OVER:-}" != 1 ] || exec elasticflow "$@" --run-dir "$run" --resume
        elasticflow status "$run" >&2
        echo "NIGHTLY_TAKE_OVER=1 has it go on here." >&2
        exit 1
        ;;
    "") # not even that could be asked
        elasticflow status "$run" >&2
        exit 1
        ;;
    *) elasticflow attach "$run" ;;
esac

ask # it may have ended before anybody could look
case $state in
    finished) exit 0 ;;
    stopped) exit 3 ;;
    diverged) exit 4 ;;
    stalled) exit 5 ;;
    broken) exit 6 ;;
    *) exit 1 ;;
esac
