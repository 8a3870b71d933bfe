"""S3: whether the bucket to which jobs write answers this node."""

from __future__ import annotations

import time

from lifecycle.health.check import CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok, warning

_SLOW_S = 2.0


@check("s3", Level.QUICK, limit_s=20.0)
def s3(node: CheckedNode) -> Finding:
    """The site's bucket can be listed."""
    url = node.settings.s3
    if not url:
        raise NotHere("`s3:` in health.yaml names no bucket")
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise NotHere("boto3 is not installed (pip install 'holdfast-hpc[s3]')") from None
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    config = Config(
        connect_timeout=4, read_timeout=6, retries={"total_max_attempts": 2}, s3={"addressing_style": "path"}
    )
    if not node.settings.s3_endpoint:
        config = config.merge(Config(s3={"addressing_style": "auto"}))
    start_s = time.monotonic()
    expected = f"an answer within {_SLOW_S:g} s"
    try:
        client = boto3.session.Session().client("s3", endpoint_url=node.settings.s3_endpoint, config=config)
        client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "?")
        return critical(
            f"{bucket}: {code}", expected, "the bucket's name, region and this node's credentials (instance role)"
        )
    except BotoCoreError as error:
        return critical(
            f"{bucket}: {' '.join(str(error).split())}", expected, "route, VPC endpoint and DNS to S3; credentials"
        )
    took_s = time.monotonic() - start_s
    if took_s > _SLOW_S:
        return warning(f"{bucket}: {took_s:.1f} s", expected, "see the route to S3 (VPC endpoint) and its errors")
    return ok(f"{bucket}: {took_s * 1e3:.0f} ms", expected)
