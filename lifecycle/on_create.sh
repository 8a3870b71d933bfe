#!/usr/bin/env bash
# Makes a new node fit for training. Called by SageMaker HyperPod (OnCreate), AWS ParallelCluster (OnNodeConfigured),
# cloud-init, or by hand as root; arguments go to `holdfast node provision`. Run it again after a crash or a reboot.
#
# --source WHAT  before all other arguments: the tree, wheel or URL of a wheel (also s3://bucket/key) that pip installs,
#                if Holdfast's tree is not beside this script; URLs end with #sha256=... Also HOLDFAST_SOURCE.
# HOLDFAST_HOME  the directory in which Holdfast is installed; default: /opt/holdfast
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=$(realpath -m -- "${HOLDFAST_HOME:-/opt/holdfast}")
resources=${SAGEMAKER_RESOURCE_CONFIG_PATH:-/opt/ml/config/resource_config.json}
[[ $EUID -eq 0 ]] || { echo "on_create.sh: got user $EUID, expected root; run it with sudo" >&2; exit 2; }

# HyperPod's resource_config.json says what this node is; in older clusters provisioning_parameters.json does.
given=$here/provisioning_parameters.json kept=/etc/holdfast/provisioning_parameters.json
# Where any user may make files (ParallelCluster's /tmp), and of another user, it is nobody's word.
[[ ! -k $here && (! -e $given || -O $given) ]] || given=
if [[ -f $given && ! -f $resources ]]; then
    echo "on_create.sh: got $given without $resources, which HyperPod writes; outside HyperPod, remove the first" >&2
    exit 2
fi

source=${HOLDFAST_SOURCE:-}
if [[ ${1:-} == --source ]]; then
    source=${2:?"on_create.sh: --source: expected a path, a URL or s3://bucket/key"}
    shift 2
fi
version=$source
for tree in "$here" "$here/.."; do
    # ParallelCluster puts only the script into /tmp, where any user may have put a pyproject.toml.
    if [[ -f $tree/pyproject.toml && ! -k $tree ]]; then
        source=$(cd "$tree" && pwd)
        version=$(cd "$source" && find holdfast lifecycle slurm launcher ckpt pyproject.toml -type f ! -name '*.pyc' -print0 |
            LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)
        break
    fi
done
# Refuse a bare name: pip would look it up in its index, where `holdfast` is another project.
if [[ $source != *://* && ! -e $source ]]; then
    echo "on_create.sh: source: got '$source', expected a path that exists, a URL or s3://bucket/key (--source, or" \
        "HOLDFAST_SOURCE), or Holdfast's tree beside this script" >&2
    exit 2
elif [[ $source == *://* && $source != *#sha256=* ]]; then
    echo "on_create.sh: source: got $source, expected #sha256=... at its end: root installs only checked files" >&2
    exit 2
fi

# Other users may have put modules into the working directory, so Python runs elsewhere and in isolated mode (-I).
[[ $source == *://* ]] || source=$(realpath -- "$source")
origin=$PWD
cd /

# Ubuntu 22.04 has Python 3.10, and python3.11 in its archive.
python=
for each in python3{,.14,.13,.12,.11}; do
    if "$each" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$each
        break
    fi
done
missing=()
if [[ -n $python ]]; then
    "$python" -I -c 'import ensurepip, venv' 2>/dev/null || missing+=("$python-venv")
elif [[ -n $(command -v python3) ]]; then
    python=python3.11 missing+=(python3.11-venv)
else
    python=python3 missing+=(python3-venv)
fi
command -v ip >/dev/null || missing+=(iproute2)
if ((${#missing[@]})); then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -y -q -o DPkg::Lock::Timeout=300 update
    # An interrupted first boot may leave half-unpacked packages, which block dpkg until they are installed again.
    mapfile -t torn < <(dpkg-query -W -f '${db:Status-Eflag} ${Package}\n' | sed -n 's/^reinstreq //p')
    ((${#torn[@]} == 0)) || apt-get -y -q -o DPkg::Lock::Timeout=300 --reinstall install "${torn[@]}"
    dpkg --configure -a
    apt-get -y -q -o DPkg::Lock::Timeout=300 --no-install-recommends install "${missing[@]}"
    "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "on_create.sh: got $("$python" -I -V), expected Python 3.11 or newer; install it with its venv" >&2
        exit 2
    }
fi
if [[ $(cat "$home/source" 2>/dev/null) != "$version" ]]; then
    # An environment of an older Python, or half of one, is made anew.
    clear=()
    "$home/bin/python" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || clear=(--clear)
    "$python" -I -m venv "${clear[@]}" "$home"
    pip() { "$home/bin/python" -I -m pip --disable-pip-version-check install -q "$@"; }
    hashed() { pip --require-hashes --only-binary :all: "$@"; }
    if [[ $source == s3://* ]]; then # credentials and endpoint from the same settings as AWS's own tools
        hashed -r /dev/stdin <<'REQUIREMENTS'
boto3==1.44.5 --hash=sha256:70c3e0409794b29ec1900bcaff0695b73234a2d32ffaed35045b94caa26212a5
botocore==1.44.5 --hash=sha256:8f16a56d1dff125dd65322ae021efa7ba5195a6db5102b96862566055b748921
jmespath==1.1.0 --hash=sha256:a5663118de4908c91729bea0acadca56526eb2698e83de10cd116ae0f4e97c64
python-dateutil==2.9.0.post0 --hash=sha256:a8b2bc7bffae282281c8140a97d3aa9c14da0b136dfe83f850eea9a5f7470427
s3transfer==0.19.3 --hash=sha256:24eb7535804306355e31c952a90022bf5b2f9d760f9a11062c7493a217c08553
six==1.17.0 --hash=sha256:4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274
urllib3==2.8.0 --hash=sha256:0cf3cae568d36aa9576b28dfb35f11328f1cb974ca7647d9475ebb86c75ac6e3
REQUIREMENTS
        "$home/bin/python" -I - "$source" "$home/from-s3" <<'PYTHON'
import sys
from pathlib import Path
from urllib.parse import urldefrag, urlsplit

import boto3
from botocore.exceptions import BotoCoreError, ClientError

url, folder = urldefrag(sys.argv[1]).url, Path(sys.argv[2])
bucket, key = urlsplit(url).netloc, urlsplit(url).path.lstrip("/")
try:
    folder.mkdir(exist_ok=True)
    boto3.session.Session().client("s3").download_file(bucket, key, str(folder / Path(key).name))
except (BotoCoreError, ClientError, OSError, ValueError) as error:
    sys.exit(f"on_create.sh: {url}: cannot be downloaded ({' '.join(str(error).split())}); may its role read it?")
PYTHON
        source=file://$home/from-s3/${source##*/}
    fi
    # Without dependencies: torch belongs to the jobs' environments, not to the node's.
    if [[ -d $source ]]; then
        hashed -r "$source/lifecycle/requirements.lock"
        pip --no-deps --no-index --no-build-isolation --force-reinstall "$source"
    else
        [[ $source == *://* ]] || source=file://$source#sha256=$(sha256sum <"$source" | cut -c1-64)
        hashed --no-deps --force-reinstall "$source"
        hashed -r "$("$home/bin/python" -I -c 'import lifecycle; print(lifecycle.__path__[0])')/requirements.lock"
    fi
    echo "$version" >"$home/source"
fi

mkdir -p /etc/holdfast
cd "$origin" # relative paths among the arguments begin there
if [[ -f $resources ]]; then
    [[ ! -f $given ]] || cmp -s "$given" "$kept" || cp "$given" "$kept"
    set -- --resource-config "$resources" "$@"
    mkdir -p /var/log/provision # HyperPod sends what is here to CloudWatch
    "$home/bin/python" -I -m launcher node provision "$@" 2>&1 | tee -a /var/log/provision/provisioning.log
else
    exec "$home/bin/python" -I -m launcher node provision "$@"
fi
