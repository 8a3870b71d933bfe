#!/usr/bin/env bash
# Makes a new node fit for training. Called by SageMaker HyperPod (OnCreate), AWS ParallelCluster (OnNodeConfigured),
# cloud-init, or by hand as root; arguments go to `holdfast node provision`. Run it again after a crash or a reboot.
#
# HOLDFAST_HOME    where holdfast goes; /opt/holdfast
# HOLDFAST_SOURCE  what pip installs it from where its tree is not beside this script; holdfast
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${HOLDFAST_HOME:-/opt/holdfast}
resources=${SAGEMAKER_RESOURCE_CONFIG_PATH:-/opt/ml/config/resource_config.json}
[[ $EUID -eq 0 ]] || { echo "on_create.sh: got user $EUID, expected root; run it with sudo" >&2; exit 2; }

source=${HOLDFAST_SOURCE:-holdfast}
version=$source
for tree in "$here" "$here/.."; do
    # ParallelCluster puts the script alone into /tmp, where any user may have put a pyproject.toml.
    if [[ -f $tree/pyproject.toml && ! -k $tree ]]; then
        source=$(cd "$tree" && pwd)
        version=$(cd "$source" && find lifecycle slurm launcher ckpt pyproject.toml -type f ! -name '*.pyc' -print0 |
            LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)
        break
    fi
done

missing=()
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
command -v ip >/dev/null || missing+=(iproute2)
if ((${#missing[@]})); then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -y -q -o DPkg::Lock::Timeout=300 update
    # What a first boot that was cut short left: half-unpacked packages stop dpkg until they are installed again.
    mapfile -t torn < <(dpkg-query -W -f '${db:Status-Eflag} ${Package}\n' | sed -n 's/^reinstreq //p')
    ((${#torn[@]} == 0)) || apt-get -y -q -o DPkg::Lock::Timeout=300 --reinstall install "${torn[@]}"
    dpkg --configure -a
    apt-get -y -q -o DPkg::Lock::Timeout=300 --no-install-recommends install "${missing[@]}"
fi
if [[ $(cat "$home/source" 2>/dev/null) != "$version" ]]; then
    python3 -m venv "$home"
    needs=(pyyaml typer rich xxhash boto3) # the last two: for what a dead job has in memory
    constraints=()
    [[ -f $source/constraints.txt ]] && constraints=(-c "$source/constraints.txt")
    "$home/bin/python" -m pip --disable-pip-version-check install -q "${constraints[@]}" "${needs[@]}"
    # No dependencies: torch belongs to the jobs' environments, not to the node's.
    "$home/bin/python" -m pip --disable-pip-version-check install -q --no-deps --force-reinstall "$source"
    echo "$version" >"$home/source"
fi

mkdir -p /etc/holdfast
if [[ -f $resources ]]; then
    given=$here/provisioning_parameters.json kept=/etc/holdfast/provisioning_parameters.json
    [[ ! -f $given ]] || cmp -s "$given" "$kept" || cp "$given" "$kept"
    set -- --resource-config "$resources" --parameters "$kept" "$@"
    mkdir -p /var/log/provision # HyperPod sends what is here to CloudWatch
    "$home/bin/holdfast" node provision "$@" 2>&1 | tee -a /var/log/provision/provisioning.log
else
    exec "$home/bin/holdfast" node provision "$@"
fi
