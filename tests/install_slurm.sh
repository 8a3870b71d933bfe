#!/usr/bin/env bash
# Installs Slurm, munge and PMIx from Debian for the tests on a real cluster, when run as root on a Debian machine.
set -euo pipefail

packages=(slurm-wlm slurm-wlm-basic-plugins slurm-client munge libpmix-dev iproute2 shellcheck libfabric-bin
	slurmdbd mariadb-server-core) # the last two for Slurm's accounts; neither starts a service

missing=()
for package in "${packages[@]}"; do
	dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "make test: not root on Debian, and missing: ${missing[*]}; the Slurm tests will be skipped" >&2
	exit 0
fi

echo "installing ${missing[*]}"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "make test: apt-get could not install ${missing[*]}; the Slurm tests will be skipped" >&2
fi
rm -f "$log"
