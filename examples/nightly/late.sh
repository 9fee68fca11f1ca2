#!/bin/sh
# Says if a run is late, or will be, or needs somebody: for cron, some time before the deadline and at it.
#
#     late.sh RUN [COMMAND...]
#
# 0: it is done in time, or will be by its ETA. 1: it is not, or has no ETA LATE_S (7200) seconds before its
# deadline, and COMMAND is called with a sentence on its standard input, such as mail -s late me@example.com;
# without one the sentence is printed.
run=${1:?"usage: late.sh RUN [COMMAND...]"}
shift

said=$(elasticflow status "$run" --json 2>/dev/null)
of() { # the value of a key of the status
    printf '%s\n' "$said" | sed -n "s/^  \"$1\": \"\{0,1\}\([^\",]*\).*/\1/p"
}
state=$(of state) met=$(of met_deadline) eta=$(of eta_at) due=$(of deadline_at)

case $state/$met in
    finished/true | finished/null) exit 0 ;;
    */false) why="has missed its deadline, $(of deadline)" ;;
    running/* | finishing/* | starting/* | waiting/*)
        [ -n "$due" ] && [ "$due" != null ] || exit 0 # it has no deadline
        if [ -z "$eta" ] || [ "$eta" = null ]; then
            [ "$(date +%s)" -gt $((${due%.*} - ${LATE_S:-7200})) ] || exit 0
            why="is $state, and nobody can tell yet whether it meets $(of deadline)"
        else
            [ "${eta%.*}" -gt "${due%.*}" ] || exit 0
            why="will be late: its ETA is after $(of deadline)"
        fi
        ;;
    *) why="is ${state:-not to be asked}, and not done" ;;
esac
[ $# -gt 0 ] || set -- cat
printf '%s: %s. See: elasticflow status %s\n' "$run" "$why" "$run" | "$@"
exit 1
