#!/bin/sh
# Shows what the device is doing: a pattern of the board's LED, and a sentence above the console's and ssh's login.
# sparsyedge-sign.path runs it whenever the device or its first boot has written to its status file: a word, a sentence.
#   sign.sh [STATUS_FOLDERS] [LEDS] [RUN]
set -u
folders=${1:-/run/sparsyedge /run/sparsyedge-firstboot}
leds=${2:-/sys/class/leds}
run=${3:-/run}

look() {
    state=off
    sentence=
    for folder in $folders; do
        if [ -s "$folder/status" ]; then
            # The device writes this file, and whoever might have taken it over: only plain words get to a terminal.
            state=$(head -n 1 "$folder/status" | tr -cd 'a-z' | head -c 16)
            sentence=$(sed -n 2p "$folder/status" | tr -cd '[:alnum:] .,:;()/_+-' | head -c 160)
            break
        fi
    done
}

led=
for name in ACT led0; do
    if [ -w "$leds/$name/trigger" ]; then
        led=$leds/$name
        break
    fi
done
blink() {
    { echo timer > "$led/trigger" && echo "$1" > "$led/delay_on" && echo "$2" > "$led/delay_off"; } 2> /dev/null
}
light() {
    case $state in
        starting) blink 250 250 ;;
        waiting) echo heartbeat > "$led/trigger" ;;
        training) blink 1000 1000 ;;
        sending) blink 100 100 ;;
        paused) blink 100 2900 ;;
        trouble) blink 1900 100 ;;
        # As Raspberry Pi OS has it: the card's activity.
        *) echo mmc0 > "$led/trigger" ;;
    esac 2> /dev/null || true
}

show() {
    mkdir -p "${1%/*}" && printf '%s\n' "$2" > "$1.new" && chmod 0644 "$1.new" && mv "$1.new" "$1"
}

# systemd does not watch the files while this runs: what is written meanwhile is seen here.
shown=
look
for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ "$shown" != "$state $sentence" ] || break
    shown="$state $sentence"
    [ -z "$led" ] || light
    line="sparsyedge: ${sentence:-not running}"
    show "$run/issue.d/sparsyedge.issue" "$line"
    show "$run/motd.d/sparsyedge" "$line"
    # A login prompt that waits already is drawn again.
    ! command -v agetty > /dev/null || agetty --reload 2> /dev/null || true
    look
done
