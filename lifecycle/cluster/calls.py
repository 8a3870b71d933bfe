"""A kind's requests to AWS: their check by botocore's models, and create.sh, which sends them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from lifecycle.errors import LifecycleError, NodeUsageError

# Values of the form that AWS returns, to check requests which contain the results of earlier ones.
_SAMPLES = {
    "FSX_ID": "fs-0123456789abcdef0",
    "FSX_MOUNT_NAME": "abcdef12",
    "CLUSTER_ID": "pcs_0123456789",
    "GROUP_ID": "pcs_1123456789",
    "TEMPLATE_ID": "lt-0123456789abcdef0",
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request.

    Attributes:
        service, operation: as botocore names them, such as fsx and CreateFileSystem.
        request: its parameters; text may contain ${VARIABLE} of an earlier call.
        output: variable -> JMESPath of its value in the answer.
        wait: (operation, parameters, JMESPath, value): repeated until the path has the value.
    """

    service: str
    operation: str
    request: Mapping[str, Any]
    output: Mapping[str, str] = field(default_factory=dict)
    wait: tuple[str, Mapping[str, Any], str, str] | None = None


def check_calls(calls: Sequence[Call]) -> None:
    """Checks each request by its service's model: names, types, required members, lengths, enums and patterns.

    Raises:
        UsageError: one line for each problem.
    """
    problems: list[str] = []
    for call in calls:
        shape = _model(call.service).operation_model(call.operation).input_shape
        where = f"{call.service} {call.operation}"
        request = json.loads(expanded(json.dumps(call.request), _SAMPLES))
        problems += [f"{where}: {problem}" for problem in _misfits(request, shape, "")]
    if problems:
        raise NodeUsageError("\n".join(problems))


def expanded(text: str, values: Mapping[str, str]) -> str:
    """The text with ${NAME} replaced; unknown names are left."""
    return re.sub(r"\$\{(\w+)\}", lambda hit: values.get(re.sub(r"_\d+$", "", hit[1]), hit[0]), text)


def create_script(name: str, region: str, upload_to: str, calls: Sequence[Call], last: Sequence[str] = ()) -> str:
    """create.sh: uploads the scripts and sends the requests. Run again after a failure, it continues.

    Args:
        name: the cluster's name.
        region: AWS's region.
        upload_to: s3://bucket/prefix of the scripts.
        calls: the requests, in order; their files are those of `request_files`.
        last: further commands.
    """
    lines = [
        "#!/usr/bin/env bash",
        f"# Creates the cluster {name}. Run it again after a failure: created.env has what is there already.",
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        f"export AWS_REGION={region} AWS_DEFAULT_REGION={region} AWS_PAGER=",
        "set -a; touch created.env; source ./created.env; set +a",
        "(cd scripts && sha256sum --quiet -c SHA256SUMS)",
        """expand() { python3 -c 'import os, sys; print(os.path.expandvars(open(sys.argv[1]).read()))' "$1"; }""",
        'made() { export "$1=$2"; printf "%s=%q\\n" "$1" "$2" >>created.env; }',
        "ready() { # DESCRIPTION QUERY VALUE COMMAND...",
        "    local what=$1 query=$2 wanted=$3 got; shift 3",
        '    until got=$("$@" --query "$query" --output text) && [[ $got == "$wanted" ]]; do',
        '        [[ $got != *FAILED* ]] || { echo "create.sh: $what: got $got, expected $wanted" >&2; exit 1; }',
        '        echo "$what: $got"; sleep 20',
        "    done",
        "}",
    ]
    upload = f"aws s3 cp --recursive scripts {shlex.quote(upload_to)}"
    is_late = any("FSX_ID" in call.output for call in calls)
    lines += [] if is_late else [upload]
    for number, call in enumerate(calls, 1):
        lines += _call_lines(call, number)
        if "FSX_ID" in call.output:
            lines.append(upload)
    lines += last
    lines.append(f"echo 'cluster {name}: requested in {region}'")
    return "\n".join(lines) + "\n"


def request_files(calls: Sequence[Call]) -> dict[str, str]:
    """File name -> the request as JSON, for `aws --cli-input-json`."""
    return {
        _file(call, number): json.dumps(call.request, indent=2, ensure_ascii=True) + "\n"
        for number, call in enumerate(calls, 1)
    }


def _call_lines(call: Call, number: int) -> list[str]:
    names = list(call.output) or [f"DONE_{number}"]
    send = f'aws {call.service} {_verb(call.operation)} --cli-input-json "$(expand {_file(call, number)})"'
    lines = [f"if [[ -z ${{{names[0]}:-}} ]]; then"]
    if call.output:
        query = f"[{', '.join(call.output.values())}]"
        lines.append(f"    answer=$({send} --query {shlex.quote(query)} --output text)")
        lines.append(f'    read -r {" ".join(names)} <<<"$answer"')
        # The first name comes last, as it says that the request was sent.
        lines += [f'    made {name} "${name}"' for name in reversed(names)]
    else:
        lines += [f"    {send} >/dev/null", f"    made {names[0]} yes"]
    lines.append("fi")
    if call.wait:
        operation, request, query, value = call.wait
        options = " ".join(f'--{_verb(name)} "{value_}"' for name, value_ in request.items())
        command = f"aws {call.service} {_verb(operation)} {options}"
        lines.append(f"ready {shlex.quote(call.operation)} {shlex.quote(query)} {value} {command}")
    return lines


def _file(call: Call, number: int) -> str:
    return f"{number}_{_verb(call.operation)}.json"


def _verb(operation: str) -> str:
    """An operation or a parameter as the command line of AWS names it: CreateFileSystem -> create-file-system."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", operation).lower()


@cache
def _model(service: str) -> Any:
    """The service's model, without an account.

    Raises:
        LifecycleError: botocore is missing, or does not know the service.
    """
    try:
        import botocore.session
        from botocore.exceptions import UnknownServiceError
    except ImportError:
        raise LifecycleError("cluster config: botocore is missing; pip install 'holdfast-hpc[s3]'") from None
    try:
        return botocore.session.Session().get_service_model(service)
    except UnknownServiceError:
        raise LifecycleError(
            f"cluster config: this botocore does not know the service {service}; pip install -U boto3"
        ) from None


def _misfits(value: Any, shape: Any, where: str) -> Iterator[str]:
    """What in a value does not fit its shape. botocore's own check leaves out enums, patterns and upper limits."""
    kinds = {"structure": dict, "map": dict, "list": list, "string": str, "integer": int, "long": int, "boolean": bool}
    kind = kinds.get(shape.type_name)
    if kind and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        yield f"{where}: got {value!r:.80}, expected {shape.type_name}"
    elif shape.type_name == "structure":
        yield from (f"{where}.{name}: is missing" for name in shape.required_members if name not in value)
        for name, inner in value.items():
            if name not in shape.members:
                yield f"{where}.{name}: unknown, expected one of {', '.join(shape.members)}"
            else:
                yield from _misfits(inner, shape.members[name], f"{where}.{name}")
    elif shape.type_name == "list":
        yield from _limits(len(value), shape, where)
        for number, inner in enumerate(value):
            yield from _misfits(inner, shape.member, f"{where}[{number}]")
    elif shape.type_name == "string":
        yield from _limits(len(value), shape, where)
        if shape.enum and value not in shape.enum:
            yield f"{where}: got {value!r}, expected one of {', '.join(shape.enum)}"
        pattern = shape.metadata.get("pattern")
        if pattern and "\\p{" not in pattern and not re.fullmatch(pattern, value):
            yield f"{where}: got {value!r:.120}, expected the form {pattern}"
    elif kind is int:
        yield from _limits(value, shape, where)


def _limits(size: int, shape: Any, where: str) -> Iterator[str]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if (low is not None and size < low) or (high is not None and size > high):
        yield f"{where}: got {size}, expected {low} to {high}"
