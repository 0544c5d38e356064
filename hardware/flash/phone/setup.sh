#!/bin/sh
# Inside the phone's Debian: install, enrol, and write the phone's limits into its config.
set -eu
bundle=/opt/bundle
home=/root/.local/share/sparsyedge
venv=/opt/sparsyedge
export HOME=/root

command -v python3 > /dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 libstdc++6; }
if [ ! -f "$venv/.installed" ]; then
    rm -rf "$venv"
    python3 -m venv --without-pip "$venv"
    PYTHONPATH=$(ls "$bundle"/wheels/pip-*.whl) "$venv/bin/python" -m pip install --quiet --no-index \
        --disable-pip-version-check --find-links "$bundle/wheels" sparsyedge
    touch "$venv/.installed"
fi
mkdir -p "$home/data"
[ ! -d "$bundle/data" ] || cp "$bundle"/data/* "$home/data/"
"$venv/bin/sparsyedge" edge enrol "$bundle/sparsyedge-device.json" --identity "$home/identity" --timeout 300
# A phone belongs to somebody: it trains on a charger and on Wi-Fi, and stops before it gets warm in the hand.
sed -i -e 's/^only_on_charger = .*/only_on_charger = true/' -e 's/^wifi_only = .*/wifi_only = true/' \
    -e 's/^max_temperature_c = .*/max_temperature_c = 40.0/' -e "s/^threads = .*/threads = 2/" "$home/identity/device.toml"
