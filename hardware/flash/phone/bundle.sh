#!/data/data/com.termux/files/usr/bin/sh
# Makes this phone a sparsyedge device: run it in Termux (from F-Droid or GitHub), once. Experimental.
# Needs the Termux:API app for battery and Wi-Fi, and the Termux:Boot app to start by itself after a restart.
set -eu
PAYLOAD_OFFSET=@PAYLOAD_OFFSET@
home=$HOME/sparsyedge

command -v pkg > /dev/null || { echo "sparsyedge: error: this is not Termux; install it from F-Droid" >&2; exit 2; }
pkg install -y proot-distro termux-api
[ -d "$PREFIX/var/lib/proot-distro/installed-rootfs/debian" ] || proot-distro install debian
mkdir -p "$home"
tail -c "+$PAYLOAD_OFFSET" "$0" | tar -x -C "$home"
chmod 700 "$home"
proot-distro login debian --bind "$home:/opt/bundle" -- sh /opt/bundle/setup.sh

mkdir -p "$HOME/.termux/boot"
cp "$home/run.sh" "$HOME/.termux/boot/sparsyedge"
chmod 755 "$HOME/.termux/boot/sparsyedge"
# The bundle's token has been used now, so nobody needs the bundle any more.
rm -rf "$home/wheels" "$home/data" "$home/sparsyedge-device.json"
nohup sh "$HOME/.termux/boot/sparsyedge" > "$home/device.log" 2>&1 &
echo "sparsyedge: the device runs; its log is $home/device.log"
echo "Android may still end it: set Termux to unrestricted battery use, and from Android 12 on switch off the phantom process killer."
exit 0
