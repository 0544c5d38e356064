#!/bin/sh
# Puts the first-boot service in place; cloud-init or firstrun.sh runs it once, from the boot partition.
set -eu
boot=$(cd "$(dirname "$0")/.." && pwd)
install -D -m 0755 "$boot/sparsyedge/firstboot.sh" /usr/local/lib/sparsyedge/firstboot.sh
install -m 0644 "$boot"/sparsyedge/*.service /etc/systemd/system/
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -sfn ../sparsyedge-firstboot.service /etc/systemd/system/multi-user.target.wants/sparsyedge-firstboot.service
# firstrun.sh restarts the board after this; under cloud-init it goes on running and the service starts now.
if [ "${1:-}" = start ]; then
    systemctl daemon-reload
    systemctl start --no-block sparsyedge-firstboot.service
fi
