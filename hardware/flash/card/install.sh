#!/bin/sh
# Puts the first-boot service in place and makes the user that the device runs as; cloud-init or firstrun.sh runs it once,
# from the boot partition.
set -eu
boot=$(cd "$(dirname "$0")/.." && pwd)
install -d /usr/local/lib/sparsyedge
install -m 0755 "$boot/sparsyedge/firstboot.sh" "$boot/sparsyedge/install_wheels.sh" /usr/local/lib/sparsyedge/
install -m 0644 "$boot"/sparsyedge/*.service /etc/systemd/system/
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -sfn ../sparsyedge-firstboot.service /etc/systemd/system/multi-user.target.wants/sparsyedge-firstboot.service
id sparsyedge > /dev/null 2>&1 ||
    useradd --system --home-dir /var/lib/sparsyedge --shell /usr/sbin/nologin sparsyedge
# The service may write where these are, and cannot make them itself.
install -d /opt
install -d -o sparsyedge -g sparsyedge -m 0700 /var/lib/sparsyedge
# vcgencmd's device file belongs to this group on a Raspberry Pi.
! getent group video > /dev/null || usermod --append --groups video sparsyedge
# firstrun.sh restarts the board after this; under cloud-init it goes on running and the service starts now.
if [ "${1:-}" = start ]; then
    systemctl daemon-reload
    systemctl start --no-block sparsyedge-firstboot.service
fi
