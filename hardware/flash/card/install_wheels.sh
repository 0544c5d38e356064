#!/bin/sh
# Installs sparsyedge from the wheels that came with a card or a bundle, once the fleet's key has vouched for all of them.
#   install_wheels.sh WHEELS DEVICE_FILE VENV
# Needs a POSIX shell, coreutils, openssl 3 and python3. Nothing comes from an index.
set -eu
wheels=$(cd "$1" && pwd)
device=$2
venv=$3
refuse() {
    echo "sparsyedge is not installed: $*" >&2
    exit 1
}
python=$(python3 -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')
list=$wheels/SHA256SUMS-$python
[ -f "$list" ] || refuse "there are no wheels for this system's Python $python"

# The key in the device's file, as openssl reads it: twelve bytes that say Ed25519, then the key.
key=$(mktemp)
trap 'rm -f "$key"' EXIT
python3 -I -c '
import base64, json, sys
key = bytes.fromhex("302a300506032b6570032100" + json.load(open(sys.argv[1], "rb"))["signing_key"])
print("-----BEGIN PUBLIC KEY-----", base64.b64encode(key).decode(), "-----END PUBLIC KEY-----", sep="\n")
' "$device" > "$key" || refuse "its device file $device cannot be read"
openssl pkeyutl -verify -pubin -inkey "$key" -rawin -in "$list" -sigfile "$list.sig" > /dev/null 2>&1 ||
    refuse "the list of wheels is not signed with the fleet's key; make the card or the bundle again"
[ "$(head -n 1 "$list")" = "# sparsyedge wheels 1" ] || refuse "what is signed is not a list of wheels"
(cd "$wheels" && sha256sum --check --quiet --strict "$list" >&2) || refuse "a wheel is damaged or was replaced"

# pip's own wheel is the one in the list, whatever else lies beside it. -P: what lies in the working directory is not code.
pip=$(sed -n 's/^[0-9a-f]\{64\}  \(pip-[^/]*\.whl\)$/\1/p' "$list")
cd /
rm -rf "$venv"
python3 -I -m venv --without-pip "$venv"
PIP_CONFIG_FILE=/dev/null PYTHONPATH=$wheels/$pip "$venv/bin/python" -P -m pip install --quiet --no-index --no-compile \
    --no-cache-dir --disable-pip-version-check --require-hashes --only-binary :all: --find-links "$wheels" \
    --requirement "$wheels/requirements-$python.lock"
touch "$venv/.installed"
