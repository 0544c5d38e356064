#!/data/data/com.termux/files/usr/bin/sh
# Termux:Boot runs this after a restart: keep the processor awake, keep the device running.
termux-wake-lock
while true; do
    proot-distro login debian -- python3 -I /opt/launch.py /root/.local/share/sparsyedge/slots /opt/sparsyedge \
        --config /root/.local/share/sparsyedge/identity/device.toml
    sleep 10
done
