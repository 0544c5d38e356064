#!/data/data/com.termux/files/usr/bin/sh
# Makes this phone a sparsyedge device: run it in Termux (from F-Droid or GitHub), once. If it fails, run it again.
# Needs the Termux:API app for battery and Wi-Fi, and the Termux:Boot app to start by itself after a restart. Experimental.
set -eu
PAYLOAD_OFFSET=@PAYLOAD_OFFSET@
home=$HOME/sparsyedge
boot=$HOME/.termux/boot

command -v pkg > /dev/null || { echo "sparsyedge: error: this is not Termux; install it from F-Droid" >&2; exit 2; }
step="begin"
trap 'code=$?; [ $code -eq 0 ] || fail $code' EXIT
fail() {
    echo "sparsyedge: error: could not $step (exit code $1); the reason is above. Then run this again" >&2
}
begin() {
    step=$*
    echo "sparsyedge: $step"
}

begin "install proot-distro and termux-api"
pkg install -y proot-distro termux-api
# Where it keeps its systems has changed between versions; whether one can be entered has not.
if ! proot-distro login debian -- true < /dev/null > /dev/null 2>&1; then
    begin "install a Debian"
    proot-distro install debian
fi

begin "unpack this bundle"
umask 077
mkdir -p "$home" "$boot"
chmod 700 "$home"
tail -c "+$PAYLOAD_OFFSET" "$0" | tar -x -f - -C "$home"

begin "install and enrol in the Debian"
proot-distro login debian --bind "$home:/opt/bundle" -- sh /opt/bundle/setup.sh

begin "start the device, now and after every restart"
# A device that ran before this ends, and its loop starts it again with what is new.
pkill -f /opt/launch.py || true
rm -f "$boot/sparsyedge"
cp "$home/run.sh" "$boot/sparsyedge"
chmod 700 "$boot/sparsyedge"
# The bundle's token has been used now, so nobody needs the bundle any more.
rm -rf "$home/wheels" "$home/data" "$home/sparsyedge-device.json"
# Asked from inside the Debian, as the device asks.
proot-distro login debian -- timeout 30 "$PREFIX/bin/termux-battery-status" < /dev/null 2> /dev/null | grep -q plugged ||
    echo "sparsyedge: warning: the app Termux:API does not answer; install it from where Termux came from, and open it once. Until then this phone does not train" >&2
nohup "$boot/sparsyedge" < /dev/null > /dev/null 2>&1 &
echo "sparsyedge: the device runs; its log is $home/device.log"
echo "Android may still end it: set Termux to unrestricted battery use, and from Android 12 on switch off the phantom process killer."
exit 0
