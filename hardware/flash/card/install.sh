#!/bin/sh
# Puts the first-boot service in place and makes the user that the device runs as; cloud-init or firstrun.sh runs it once,
# from the boot partition, and once more after `flash pi --update`.
set -eu
boot=$(cd "$(dirname "$0")/.." && pwd)
install -d /usr/local/lib/sparsyedge
install -m 0755 "$boot/sparsyedge/firstboot.sh" "$boot/sparsyedge/install_wheels.sh" "$boot/sparsyedge/sign.sh" \
    /usr/local/lib/sparsyedge/
install -m 0644 "$boot/sparsyedge/launch.py" /usr/local/lib/sparsyedge/
install -m 0644 "$boot"/sparsyedge/*.service "$boot"/sparsyedge/*.path /etc/systemd/system/
mkdir -p /etc/systemd/system/multi-user.target.wants
for unit in sparsyedge-firstboot.service sparsyedge-sign.path; do
    ln -sfn "../$unit" "/etc/systemd/system/multi-user.target.wants/$unit"
done
id sparsyedge > /dev/null 2>&1 ||
    useradd --system --home-dir /var/lib/sparsyedge --shell /usr/sbin/nologin sparsyedge
# The service may write where these are, and cannot make them itself.
install -d /opt
install -d -o sparsyedge -g sparsyedge -m 0700 /var/lib/sparsyedge
# vcgencmd's device file belongs to this group on a Raspberry Pi.
! getent group video > /dev/null || usermod --append --groups video sparsyedge
# The boot partition has the keys of Wi-Fi networks, and a token: from the next start on, for root's eyes alone.
awk '$2 == "/boot/firmware" && $3 == "vfat" && $4 !~ /umask|fmask/ { $4 = $4 ",umask=0077" } { print }' \
    /etc/fstab > /etc/fstab.sparsyedge && mv /etc/fstab.sparsyedge /etc/fstab
# firstrun.sh restarts the board after this; under cloud-init it goes on running and the service starts now.
if [ "${1:-}" = start ]; then
    systemctl daemon-reload
    systemctl start --no-block sparsyedge-sign.path sparsyedge-firstboot.service
fi
