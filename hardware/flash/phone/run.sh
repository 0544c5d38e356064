#!/data/data/com.termux/files/usr/bin/sh
# Keeps the processor awake and the device running. The bundle starts this, and Termux:Boot after a restart.
home=$HOME/sparsyedge
log=$home/device.log
most_bytes=1000000
umask 077

# One at a time. Numbers of processes begin anew after a restart, so the one on file may be anybody's by now.
is_loop() { tr '\0' ' ' < "/proc/$1/cmdline" 2> /dev/null | grep -q "/boot/sparsyedge"; }
before=$(cat "$home/run.pid" 2> /dev/null)
[ -z "$before" ] || [ "$before" = "$$" ] || ! is_loop "$before" || exit 0
echo "$$" > "$home/run.pid"

termux-wake-lock
while true; do
    if [ -f "$log" ] && [ "$(wc -c < "$log")" -gt "$most_bytes" ]; then mv -f "$log" "$log.1"; fi
    proot-distro login debian -- env SPARSYEDGE_PHONE=yes python3 -I /opt/launch.py \
        /root/.local/share/sparsyedge/slots /opt/sparsyedge \
        --config /root/.local/share/sparsyedge/identity/device.toml < /dev/null >> "$log" 2>&1
    echo "$(date): the device has ended (exit code $?); it starts again in 10 s" >> "$log"
    sleep 10
done
