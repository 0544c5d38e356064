#!/bin/sh
# Makes this board a device of its fleet. sparsyedge-firstboot.service runs it until it has succeeded; every step may be
# run again. Needs a POSIX shell, coreutils, util-linux, passwd, systemd and python3, which every Debian has.
set -eu
boot=${1:-/boot/firmware}
home=/var/lib/sparsyedge
venv=/opt/sparsyedge
card=$boot/sparsyedge
note=$boot/sparsyedge-error.txt

step="begin"
trap 'code=$?; [ $code -eq 0 ] || fail $code' EXIT
fail() {
    echo "sparsyedge-firstboot: could not $step (exit code $1); trying again soon" >&2
    # Whoever puts the card into a reader finds this beside the other files.
    { echo "could not $step"; [ ! -s /run/sparsyedge-firstboot.log ] || tail -n 5 /run/sparsyedge-firstboot.log; } > "$note" || true
}
begin() {
    step=$*
    echo "sparsyedge-firstboot: $step"
}
as_device() { setpriv --reuid sparsyedge --regid sparsyedge --init-groups env HOME="$home" "$@"; }

# A board without a battery-backed clock and without NTP thinks that certificates are not valid yet.
begin "set the clock"
if [ -f "$card/flashed_at" ] && [ "$(date +%s)" -lt "$(cat "$card/flashed_at")" ]; then
    date -s "@$(cat "$card/flashed_at")" > /dev/null
fi

begin "make the user sparsyedge"
id sparsyedge > /dev/null 2>&1 || useradd --system --home-dir "$home" --shell /usr/sbin/nologin sparsyedge
install -d -o sparsyedge -g sparsyedge -m 0700 "$home"
# vcgencmd's device file belongs to this group on a Raspberry Pi.
! getent group video > /dev/null || usermod --append --groups video sparsyedge

if [ ! -f "$venv/.installed" ]; then
    rm -rf "$venv"
    begin "check the wheels on the card"
    (cd "$card/wheels" && sha256sum --check --quiet SHA256SUMS)
    begin "install sparsyedge from the card"
    python3 -m venv --without-pip "$venv"
    PYTHONPATH=$(ls "$card"/wheels/pip-*.whl) "$venv/bin/python" -m pip install --quiet --no-index --no-compile \
        --disable-pip-version-check --find-links "$card/wheels" sparsyedge 2> /run/sparsyedge-firstboot.log
    touch "$venv/.installed"
fi

if [ -d "$card/data" ]; then
    begin "copy the data"
    install -d -o sparsyedge -g sparsyedge -m 0700 "$home/data"
    for file in "$card"/data/*; do
        install -o sparsyedge -g sparsyedge -m 0600 "$file" "$home/data/"
    done
fi

begin "enrol"
if [ -f "$boot/sparsyedge-device.json" ]; then
    install -o sparsyedge -g sparsyedge -m 0600 "$boot/sparsyedge-device.json" "$home/sparsyedge-device.json"
fi
as_device "$venv/bin/sparsyedge" edge enrol "$home/sparsyedge-device.json" --identity "$home/identity" --timeout 300 \
    2> /run/sparsyedge-firstboot.log || { cat /run/sparsyedge-firstboot.log >&2; exit 1; }
cat /run/sparsyedge-firstboot.log
# All cores, and no more heat than the board bears without slowing down.
sed -i -e "s/^threads = .*/threads = $(nproc)/" -e "s/^max_temperature_c = .*/max_temperature_c = 80.0/" "$home/identity/device.toml"

begin "remove the token and what is installed from the card"
rm -f "$boot/sparsyedge-device.json" "$home/sparsyedge-device.json" "$note"
rm -rf "$card/wheels" "$card/data"
sync

begin "start the device"
systemctl disable sparsyedge-firstboot.service
systemctl enable sparsyedge.service
systemctl start --no-block sparsyedge.service
echo "sparsyedge-firstboot: done"
