"""The requests for a Lustre file system of FSx, and for its associations with buckets."""

from __future__ import annotations

from lifecycle.cluster.calls import Call
from lifecycle.cluster.request import ClusterRequest

EVENTS = ["NEW", "CHANGED", "DELETED"]
THROUGHPUT_MB_S_PER_TIB = 250


def lustre_calls(request: ClusterRequest) -> list[Call]:
    """The requests; none if the cluster has no file system, or an existing one, whose associations are left alone."""
    if not request.makes_fsx:
        return []
    create = Call(
        service="fsx",
        operation="CreateFileSystem",
        request={
            "FileSystemType": "LUSTRE",
            "FileSystemTypeVersion": "2.15",
            "StorageCapacity": request.fsx_gib,
            "SubnetIds": [request.subnet],
            "SecurityGroupIds": [request.security_group],
            "LustreConfiguration": {
                "DeploymentType": "PERSISTENT_2",
                "PerUnitStorageThroughput": THROUGHPUT_MB_S_PER_TIB,
                "DataCompressionType": "LZ4",
                "MetadataConfiguration": {"Mode": "AUTOMATIC"},
            },
            "Tags": [{"Key": "Name", "Value": request.name}],
        },
        output={"FSX_ID": "FileSystem.FileSystemId", "FSX_MOUNT_NAME": "FileSystem.LustreConfiguration.MountName"},
        wait=("DescribeFileSystems", {"FileSystemIds": "$FSX_ID"}, "FileSystems[0].Lifecycle", "AVAILABLE"),
    )
    return [create, *(_association(url) for url in request.data)]


def association_path(url: str) -> str:
    """The directory of the file system that shows a bucket: /BUCKET."""
    return f"/{url.removeprefix('s3://').split('/', 1)[0]}"


def _association(url: str) -> Call:
    """A bucket as a directory: names are imported at once, a file's content when it is first read."""
    return Call(
        service="fsx",
        operation="CreateDataRepositoryAssociation",
        request={
            "FileSystemId": "${FSX_ID}",
            "FileSystemPath": association_path(url),
            "DataRepositoryPath": url,
            "BatchImportMetaDataOnCreate": True,
            "S3": {"AutoImportPolicy": {"Events": EVENTS}},
        },
    )
