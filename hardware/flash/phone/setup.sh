#!/bin/sh
# Inside the phone's Debian: install, enrol, and write the phone's limits into its config.
set -eu
bundle=/opt/bundle
home=/root/.local/share/sparsyedge
venv=/opt/sparsyedge
export HOME=/root DEBIAN_FRONTEND=noninteractive

# What is missing comes from Debian, whose packages apt checks by Debian's own signatures.
{ command -v python3 && command -v openssl; } > /dev/null ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 libstdc++6 openssl; }
[ -f "$venv/.installed" ] || sh "$bundle/install_wheels.sh" "$bundle/wheels" "$bundle/sparsyedge-device.json" "$venv"
cp "$bundle/launch.py" /opt/launch.py
mkdir -p "$home/data"
[ ! -d "$bundle/data" ] || cp "$bundle"/data/* "$home/data/"
"$venv/bin/sparsyedge" edge enrol "$bundle/sparsyedge-device.json" --identity "$home/identity" --timeout 300
# A phone belongs to somebody: it trains on a charger and on Wi-Fi, and stops before it gets warm in the hand.
sed -i -e 's/^only_on_charger = .*/only_on_charger = true/' -e 's/^wifi_only = .*/wifi_only = true/' \
    -e 's/^max_temperature_c = .*/max_temperature_c = 40.0/' -e "s/^threads = .*/threads = 2/" "$home/identity/device.toml"
