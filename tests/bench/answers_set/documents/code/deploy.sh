#!/bin/sh
# Deploys parcelbox to the server. Needs the key ~/.ssh/deploy_ed25519.
set -eu

HOST=parcel@box.example
RELEASES=/srv/parcelbox/releases
KEEP=5   # old releases that stay, for rolling back

# 1. Build the wheel and copy it.
python -m build --wheel
scp dist/*.whl "$HOST:$RELEASES/"

# 2. Stop the service, make a backup, install, start again.
ssh "$HOST" "systemctl stop parcelbox && parcelbox backup /srv/backup/before.db"
ssh "$HOST" "pip install --upgrade $RELEASES/*.whl && systemctl start parcelbox"

# 3. Roll back by hand if the health check fails: ./deploy.sh --rollback
curl --fail --max-time 20 https://box.example/health
