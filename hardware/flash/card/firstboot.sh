#!/bin/sh
# Makes this board a device of its fleet. sparsyedge-firstboot.service runs it until it has succeeded; every step may be
# run again. Needs a POSIX shell, coreutils, util-linux, systemd, openssl and python3, which Raspberry Pi OS has. The user
# and the folder that it writes to are install.sh's work: this script may not touch /etc.
set -eu
boot=${1:-/boot/firmware}
home=/var/lib/sparsyedge
venv=/opt/sparsyedge
card=$boot/sparsyedge
note=$boot/sparsyedge-error.txt
log=${RUNTIME_DIRECTORY:-/run}/sparsyedge-firstboot.log

step="begin"
# What sparsyedge-sign.service shows until the device itself has something to say.
sign() {
    [ -z "${RUNTIME_DIRECTORY:-}" ] || printf '%s\nfirst boot: %s\n' "$1" "$2" > "$RUNTIME_DIRECTORY/status" || true
}
trap 'code=$?; [ $code -eq 0 ] || fail $code' EXIT
fail() {
    echo "sparsyedge-firstboot: could not $step (exit code $1); trying again soon" >&2
    sign trouble "could not $step, trying again soon"
    # Whoever puts the card into a reader finds this beside the other files.
    { echo "could not $step"; [ ! -s "$log" ] || tail -n 5 "$log"; } > "$note" || true
}
begin() {
    step=$*
    echo "sparsyedge-firstboot: $step"
    sign starting "$step"
}
as_device() { setpriv --reuid sparsyedge --regid sparsyedge --init-groups env HOME="$home" "$@"; }

# A board without a battery-backed clock and without NTP thinks that certificates are not valid yet.
begin "set the clock"
if [ -f "$card/flashed_at" ] && [ "$(date +%s)" -lt "$(cat "$card/flashed_at")" ]; then
    date -s "@$(cat "$card/flashed_at")" > /dev/null
fi

if [ ! -f "$venv/.installed" ]; then
    begin "install sparsyedge from the card"
    sh /usr/local/lib/sparsyedge/install_wheels.sh "$card/wheels" "$boot/sparsyedge-device.json" "$venv" 2> "$log" ||
        { cat "$log" >&2; exit 1; }
fi

if [ -d "$card/data" ]; then
    begin "copy the data"
    install -d -o sparsyedge -g sparsyedge -m 0700 "$home/data"
    for file in "$card"/data/*; do
        install -o sparsyedge -g sparsyedge -m 0600 "$file" "$home/data/"
    done
fi

if [ -f "$boot/sparsyedge-device.json" ] || [ -f "$home/sparsyedge-device.json" ] || [ ! -d "$home/identity" ]; then
    begin "enrol"
    if [ -f "$boot/sparsyedge-device.json" ]; then
        install -o sparsyedge -g sparsyedge -m 0600 "$boot/sparsyedge-device.json" "$home/sparsyedge-device.json"
    fi
    as_device "$venv/bin/sparsyedge" edge enrol "$home/sparsyedge-device.json" --identity "$home/identity" --timeout 300 \
        2> "$log" || { cat "$log" >&2; exit 1; }
    cat "$log"
fi
config=$home/identity/device.toml
if [ -f "$config" ] && [ ! -f "$home/configured" ]; then
    # All cores, and no more heat than the board bears without slowing down.
    sed -i -e "s/^threads = .*/threads = $(nproc)/" -e "s/^max_temperature_c = .*/max_temperature_c = 80.0/" "$config"
    touch "$home/configured"
fi
if [ -f "$config" ] && [ -s "$card/device-changes.toml" ]; then
    begin "change device.toml"
    # The device may not read the boot partition.
    install -o sparsyedge -g sparsyedge -m 0600 "$card/device-changes.toml" "$home/device-changes.toml"
    as_device "$venv/bin/sparsyedge" edge configure "$config" "$home/device-changes.toml" 2> "$log" ||
        { cat "$log" >&2; exit 1; }
    rm -f "$home/device-changes.toml"
fi

begin "remove the token and what is installed from the card"
rm -f "$boot/sparsyedge-device.json" "$home/sparsyedge-device.json" "$note"
rm -rf "$card/wheels" "$card/data"
sync

begin "start the device"
systemctl disable sparsyedge-firstboot.service
systemctl enable sparsyedge.service
systemctl restart --no-block sparsyedge.service
echo "sparsyedge-firstboot: done"
