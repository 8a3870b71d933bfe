"""The table of failures. The first rule of which a line matches decides, so what is certain stands first.

To add a failure: add its line to a rule of its class, or a rule; add a public report of it to the corpus of the tests.
A rule says `certain` only if the same program on the same data fails again in the same way, whatever node it runs on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Domain(StrEnum):
    """Whose the failure is."""

    USER = "user"
    NODE = "node"
    CLUSTER = "cluster"
    UNKNOWN = "unknown"


class FaultClass(StrEnum):
    """What kind of failure it is."""

    GPU_MEMORY = "gpu_memory"
    HOST_MEMORY = "host_memory"
    LOSS = "loss"
    GPU = "gpu"
    FABRIC = "fabric"
    STORAGE_FULL = "storage_full"
    STORAGE_AWAY = "storage_away"
    STORAGE_READ_ONLY = "storage_read_only"
    IMPORT = "import"
    CONFIGURATION = "configuration"
    MISMATCH = "mismatch"
    DATA = "data"
    PERMISSION = "permission"
    TIME_LIMIT = "time_limit"
    PREEMPTION = "preemption"
    CANCELLED = "cancelled"
    KILLED = "killed"
    CRASH = "crash"
    CUDA = "cuda"
    NODE_LOST = "node_lost"
    PEER = "peer"
    HANG = "hang"
    UNKNOWN = "unknown"


MEANINGS: dict[FaultClass, str] = {
    FaultClass.GPU_MEMORY: "out of memory on a GPU",
    FaultClass.HOST_MEMORY: "out of memory on the host, or in /dev/shm",
    FaultClass.LOSS: "the loss is NaN, infinite, or cannot be scaled",
    FaultClass.GPU: "the GPU or its driver has failed",
    FaultClass.FABRIC: "a link or the fabric between GPUs or nodes has failed",
    FaultClass.STORAGE_FULL: "a file system or a quota is full",
    FaultClass.STORAGE_AWAY: "a file system or an object store does not answer",
    FaultClass.STORAGE_READ_ONLY: "a file system is mounted read-only",
    FaultClass.IMPORT: "a module, a library or a version does not fit",
    FaultClass.CONFIGURATION: "arguments, paths or sizes do not fit",
    FaultClass.MISMATCH: "shapes, indices or the keys of a checkpoint do not fit the model",
    FaultClass.DATA: "a file of data or a checkpoint cannot be decoded",
    FaultClass.PERMISSION: "a file may not be read or written",
    FaultClass.TIME_LIMIT: "the job's time is over",
    FaultClass.PREEMPTION: "the scheduler took the nodes for another job",
    FaultClass.CANCELLED: "the job was cancelled",
    FaultClass.KILLED: "a process was killed from outside",
    FaultClass.CRASH: "native code crashed",
    FaultClass.CUDA: "a CUDA error that may be the program's or the GPU's",
    FaultClass.NODE_LOST: "a node went silent",
    FaultClass.PEER: "another rank ended first",
    FaultClass.HANG: "ranks waited for others in vain",
    FaultClass.UNKNOWN: "no rule knows it",
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One kind of failure.

    Attributes:
        fault_class, domain: what it is, and whose.
        pattern: matches one line.
        advice: the next step, in one sentence.
        source: a public report or page about it.
        certain: whether another attempt fails in the same way.
    """

    fault_class: FaultClass
    domain: Domain
    pattern: re.Pattern[str]
    advice: str
    source: str
    certain: bool = False


def _rule(
    fault_class: FaultClass, domain: Domain, *patterns: str, advice: str, source: str, certain: bool = False
) -> Rule:
    return Rule(
        fault_class=fault_class,
        domain=domain,
        pattern=re.compile("|".join(patterns), re.IGNORECASE),
        advice=advice,
        source=source,
        certain=certain,
    )


_C, _D = FaultClass, Domain
_XID = r"NVRM: Xid \(PCI:[0-9a-f:.]+\): "
_PROGRAMS_XIDS = r"(?:13|31|32|43|45|66|68|69|137)\b"  # docs.nvidia.com/deploy/xid-errors: a program can cause them
_SLURM = "^Slurm's state of the job: "
_NVIDIA = "docs.nvidia.com/deploy/xid-errors"
_NCCL_FAQ = "docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"

RULES: tuple[Rule, ...] = (
    # what the kernel, the driver and Slurm say
    _rule(
        _C.FABRIC, _D.NODE, _XID + r"(?:74|14[4-9]|150)\b", r"SXid \(PCI:.*\bFatal\b", r"uncorrectable NVLink error",
        advice="run `holdfast node check --level deep` on the node; reset its GPUs or replace the node",
        source=_NVIDIA,
    ),
    _rule(
        _C.GPU, _D.NODE, _XID + rf"(?!{_PROGRAMS_XIDS}|154\b)\d+", r"GPU .*has fallen off the bus", r"GPU is lost",
        r"uncorrectable ECC error|ECC_UNCORRECTABLE|ECCUncorrectable",
        r"cudaErrorHardwareStackError|hardware stack error",
        advice="run `holdfast node check --level deep` on the node; reset its GPUs or replace the node",
        source=_NVIDIA,
    ),
    _rule(
        _C.GPU, _D.NODE, r"Error 802: system not yet initialized", r"no CUDA-capable device is detected",
        r"CUDA-capable device\(s\) is/are busy or unavailable", r"Unable to determine the device handle for GPU",
        r"Failed to initialize NVML: (?!Driver/library)", r"cudaErrorDevicesUnavailable",
        advice="check nvidia-smi and nvidia-fabricmanager on the node",
        source="aws-samples/aws-deep-learning-ami-ubuntu-dcv-desktop#33",
    ),
    _rule(
        _C.HOST_MEMORY, _D.USER, r"oom[_-]kill event", r"OOM Killed", r"cgroup out of memory: Kill",
        r"^(?!.*CUDA).*\bOut of memory: Kill", r"task \d+: Out Of Memory", r"killed \d+ of the node's processes",
        r"node running low on memory|killed due to memory pressure|low on resource: memory",  # Ray, Kubernetes
        _SLURM + "OUT_OF_MEMORY",
        advice="ask for more memory (mem, mem_per_gpu), use fewer loader workers, or keep less on the host",
        source="slurm.schedmd.com/cgroups.html",
    ),
    _rule(
        _C.TIME_LIMIT, _D.USER, r"DUE TO TIME LIMIT", _SLURM + "(?:TIMEOUT|DEADLINE)",
        advice="ask for more time, or let the job be requeued", source="slurm.schedmd.com/sbatch.html",
    ),
    _rule(
        _C.PREEMPTION, _D.CLUSTER, r"DUE TO PREEMPTION", r"\bjob is preempted\b", _SLURM + "PREEMPTED",
        advice="nothing: the job continues when it is scheduled again", source="facebookincubator/submitit#1613",
    ),
    _rule(
        _C.NODE_LOST, _D.NODE, r"DUE TO NODE FAIL", r"Node failure on \S+", _SLURM + "(?:NODE|BOOT)_FAIL",
        advice="look at the node's console and its health record", source="slurm.schedmd.com/sbatch.html",
    ),
    # memory and storage
    _rule(
        _C.STORAGE_FULL, _D.USER, r"No space left on device", r"\[Errno (?:28|122)\]", r"Disk quota exceeded",
        r"PytorchStreamWriter failed writing file", r"SafetensorError: .*(?:No space|os error 28)",
        advice="make room, or write to another file system; `holdfast ckpt gc` removes old steps",
        source="databrickslabs/dolly#139",
    ),
    _rule(
        _C.GPU_MEMORY, _D.USER, r"\bCUDA out of memory", r"OutOfMemoryError\b.*(?:CUDA|HIP|XPU|GPU)",
        r"Cuda failure (?:\d+ )?'out of memory'", r"CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY",
        r"HIP out of memory", r"Failed to CUDA (?:host )?calloc", r"CUBLAS_STATUS_ALLOC_FAILED",
        r"(?:less than desired|larger than the|exceeds?\b.*) (?:available )?(?:GPU|KV cache) memory",
        r"No available memory for the cache blocks|not enough (?:GPU|CUDA|KV cache) memory",
        advice="use a smaller micro-batch, activation checkpointing, or more sharding",
        source="pytorch/pytorch#16417",
    ),
    _rule(
        _C.HOST_MEMORY, _D.USER, r"out of shared memory|insufficient shared memory",
        r"DataLoader worker .*killed by signal: (?:Bus error|Killed)",
        advice="make /dev/shm larger (or the container's shm size), or use fewer loader workers",
        source="pytorch/pytorch#5040",
    ),
    _rule(
        _C.HOST_MEMORY, _D.USER, r"\bMemoryError\b", r"Unable to allocate .* for an array",
        r"DefaultCPUAllocator: (?:not enough|can't allocate) memory", r"std::bad_alloc",
        r"\[Errno 12\] Cannot allocate memory",
        advice="ask for more memory (mem, mem_per_gpu), or keep less on the host",
        source="pytorch/pytorch#8976",
    ),
    _rule(
        _C.STORAGE_READ_ONLY, _D.CLUSTER, r"Read-only file system", r"\[Errno 30\]",
        advice="write to a path that is mounted read-write; ask the administrator if it should be",
        source="verl-project/verl#3354",
    ),
    # the script's own errors that never go away by themselves
    _rule(
        _C.LOSS, _D.USER, r"FloatingPointError: .*(?:loss|NaN)", r"loss became (?:infinite or )?NaN",
        r"loss is (?:nan|inf)\w*\b.*stopping", r"(?:loss|grad\w*)\b[^:]* (?:is|contains?|became) (?:nan|inf)\b",
        r"loss scale already at minimum|Minimum loss scale reached|Scale went less than",
        r"reducing loss scale to (?:0\.0+\b|\d[\d.]*e-\d{2,})", r"Function '\w+Backward\d*' returned nan values",
        r"(?:found|detected) (?:nan|inf)\w*(?: or (?:nan|inf)\w*)? in\b.*(?:grad|loss)",
        r"\bunexpected result (?:nan|inf)\b",
        r"(?:loss|grad\w*)(?: norm)?\b[^:]* (?:is|was|became) (?:not |non-?)finite", r"non-?finite (?:loss|grad)",
        advice="go back some steps with another data order (`holdfast ckpt rollback`), or lower the learning rate",
        source="facebookresearch/fairseq#1529",
    ),
    _rule(
        _C.MISMATCH, _D.USER, r"(?:size|shape) mismatch for \S+: copying a param",
        r"(?:Missing|Unexpected) key\(s\) in state_dict",
        r"unexpected key .* in state_dict", r"Error\(s\) in loading state_dict",
        r"Cannot load model parameters from checkpoint|ensure that the architectures match",
        r"KeyError: MetadataIndex|Missing key in checkpoint state_dict|Size mismatch between saved .* and current",
        r"Global shape mismatch for loaded",
        r"loaded state dict (?:has|contains) a (?:different|parameter group)",
        r"shapes cannot be multiplied", r"The size of tensor \w+ \(\d+\) must match", r"Sizes of tensors must match",
        r"shape '\[.*\]' is invalid for input of size", r"expected input\[.*\] to have \d+ channels",
        r"Expected input batch_size \(\d+\) to match target batch_size",
        advice="make the model fit its checkpoint and its input, then submit again",
        source="deepspeedai/DeepSpeed#5570", certain=True,
    ),
    _rule(
        _C.MISMATCH, _D.USER, r"device-side assert", r"Assertion `?.*(?:srcIndex|index|idx|target|t >= 0).*failed",
        r"IndexError: (?:index out of range in self|Target \d+ is out of bounds)",
        advice="a label or a token id is out of range: compare the vocabulary with the embedding's size",
        source="huggingface/trl#1995",
    ),
    _rule(
        _C.IMPORT, _D.NODE, r"driver version is insufficient", r"NVIDIA driver on your system is too old",
        r"Driver/library version mismatch", r"no kernel image is available for execution",
        r"forward compatibility was attempted on non supported HW",
        advice="the node's driver does not fit this torch: update it, or use a build for its CUDA version",
        source="nagadomi/nunif#702",
    ),
    _rule(
        _C.IMPORT, _D.USER, r"\bModuleNotFoundError\b", r"\bImportError\b", r"undefined symbol: ",
        r"cannot open shared object file", r"version `?\w+_[\d.]+'? not found", r": command not found",
        r"PackageNotFoundError|DistributionNotFound|VersionConflict",
        advice="install what is missing, or the version that fits, then submit again",
        source="Dao-AILab/flash-attention#723", certain=True,
    ),
    _rule(
        _C.IMPORT, _D.USER, r"match(?:es)? the version (?:torch was compiled with|that was used to compile PyTorch)",
        r"Error building extension|ninja: build stopped|fatal error: .*: No such file or directory",
        r"CUDA_HOME environment variable is not set", r"Failed to find C compiler",
        advice="an extension cannot be built: make the node's CUDA toolkit and compiler fit torch, or install it built",
        source="deepspeedai/DeepSpeed#3223",
    ),
    _rule(
        _C.IMPORT, _D.USER, r"TypeError: .*got an unexpected keyword argument",
        r"AttributeError: module '\S+' has no attribute",
        advice="the script and a library do not fit: compare the library's version with what the script expects",
        source="huggingface/transformers#13021", certain=True,
    ),
    _rule(
        _C.CONFIGURATION, _D.USER,
        r"^(?:\S*:)?\s*\S+: error: (?:unrecognized arguments|the following arguments are required|argument )",
        r"^\s*(?:SyntaxError|IndentationError|TabError): ", r"can't open file '.*': \[Errno 2\]",
        r"\b(?:must be|is not|not) (?:evenly )?divisible by\b",
        r"(?:yaml|toml|omegaconf|hydra)\.\S*(?:Error|Exception)\b", r"ConfigAttributeError|MissingConfigException",
        r"Error initializing torch\.distributed using|environment variable \w+ expected, but not set",
        r"\bOverride '.*' not found|Could not override '",
        r"(?:AssertionError|ValueError): .*(?:batch|size|parallel)\S* .*\b(?:is not|must be|should be|must) equal\b",
        advice="correct the arguments or the configuration, then submit again",
        source="deepspeedai/DeepSpeed#3634", certain=True,
    ),
    _rule(
        _C.CONFIGURATION, _D.USER, r"OutOfResources\b.*out of resource",
        advice="this kernel needs more shared memory or registers than the GPU has: use smaller blocks or fewer stages",
        source="triton-lang/triton#8182",
    ),
    _rule(
        _C.CONFIGURATION, _D.USER, r"RepositoryNotFoundError|EntryNotFoundError|RevisionNotFoundError|404 Client Error",
        advice="correct the name or the address; a private one also needs a token",
        source="huggingface/trl#4282",
    ),
    _rule(
        _C.CONFIGURATION, _D.USER, r"Duplicate GPU detected", r"ncclInvalidUsage", r"invalid device ordinal",
        r"world_size .* (?:does not match|is not equal)",
        advice="give each rank its own GPU: use LOCAL_RANK, and as many workers as the node has GPUs",
        source="NVIDIA/Megatron-LM#661",
    ),
    _rule(
        _C.CONFIGURATION, _D.USER, r"EADDRINUSE", r"failed to listen on any local network address",
        r"^(?!\[W ).*\[?Errno 98",
        advice="another process has the port: leave MASTER_PORT to Holdfast",
        source="pytorch/pytorch#85604",
    ),
    _rule(
        _C.DATA, _D.USER, r"UnpicklingError|pickle data was truncated|as a pickle", r"EOFError: Ran out of input",
        r"PytorchStreamReader failed", r"\bArrowInvalid\b", r"\bJSONDecodeError\b", r"UnidentifiedImageError",
        r"cannot identify image file|image file is truncated", r"SafetensorError: .*(?:header|incomplete|deserializ)",
        r"storage has wrong size|unexpected EOF, expected \d+ more bytes|Invalid magic number; corrupt file",
        r"BadZipFile|BadGzipFile|zlib\.error|lzma\.LZMAError", r"UnicodeDecodeError", r"Parquet magic bytes not found",
        r"(?:is|are) (?:corrupt|corrupted)\b",
        advice="check the file that the traceback names; write it again, or leave it out",
        source="huggingface/datasets#6315",
    ),
    _rule(
        _C.PERMISSION, _D.USER, r"\bPermissionError\b", r"\[Errno (?:1|13)\]", r"Permission denied",
        r"\b(?:AccessDenied|403 Forbidden)\b", r"\b40[13] Client Error|gated repo|GatedRepoError",
        r"NoCredentialsError|Unable to locate credentials|ExpiredToken|InvalidAccessKeyId|SignatureDoesNotMatch",
        advice="give the job's user access to the path, or choose another",
        source="FateScript/CenterNet-better#45",
    ),
    # the surroundings
    _rule(
        _C.STORAGE_AWAY, _D.CLUSTER, r"Stale (?:NFS )?file handle", r"\[Errno (?:5|107|108|110|112|116)\]",
        r"Input/output error", r"Transport endpoint is not connected|transport endpoint shutdown",
        r"botocore\.exceptions\.(?:\w*Connect\w*|\w*Timeout\w*|ReadTimeoutError|ResponseStreamingError)",
        r"\bSlow ?Down\b|ServiceUnavailable|Reduce your request rate", r"Max retries exceeded with url",
        r"(?:urllib3|requests)\.exceptions\.(?:\w*Connect\w*|\w*Timeout\w*)", r"gaierror: ",
        r"(?:HTTP Error|HTTPError:|Server Error:?) ?5\d\d|\b5\d\d Server Error",
        advice="check the file system or the object store from the node; the job may go on once it answers",
        source="pytorch/pytorch#10577",
    ),
    _rule(
        _C.FABRIC, _D.CLUSTER, r"NET/IB\w* ?: ?Got completion", r"Call to ibv_\w+ failed|ibv_\w+ failed with error",
        r"NET/OFI .*(?:completed with error|failed|Couldn't)", r"libfabric:.*<warn>.*err(?:or)?: ",
        r"(?:socketStartConnect|Call to connect).*failed ?: (?!Connection refused)",
        r"No route to host|Network is unreachable",
        r"NET/IB : (?:Got async event|Port \d+ .*down)|IBV_EVENT_(?:PORT_ERR|DEVICE_FATAL)",
        advice="check the links of both nodes (`holdfast node check`), their counters and the switch",
        source=_NCCL_FAQ,
    ),
    # waiting and consequences
    _rule(
        _C.HANG, _D.UNKNOWN, r"Watchdog caught collective operation timeout", r"failure detected by watchdog",
        r"Timeout at NCCL work|due to a collective timeout",
        r"failed to pass monitoredBarrier|monitoredBarrier, but received errors",
        r"Exception \(either an error or timeout\) detected by watchdog",
        r"Timed out waiting \d+ ?ms for (?:recv|send)",
        r"store based barrier", r"DistStoreError: (?:Socket Timeout|Timed out|wait timeout)",
        r"RuntimeError: Socket Timeout",
        advice="look for the rank that did not enter the collective: its stack is beside its log",
        source="pytorch/pytorch#118369",
    ),
    _rule(
        _C.PEER, _D.UNKNOWN, r"Connection (?:closed|reset|refused|aborted)", r"Broken pipe",
        r"NCCL communicator was aborted",
        r"ncclRemoteError|remote process exited", r"DistNetworkError|RendezvousConnectionError|DistBackendError",
        r"connectFullMesh failed", r"recvValue failed|sendBytes failed|failed to recv, got 0 bytes",
        r"\b(?:NCCL|gloo)\b.*\b(?:error|failure|failed)", r"^\S*(?:AgentError|ConnectionError)\b",
        advice="look at the rank that ended first",
        source="pytorch/pytorch#75512",
    ),
    _rule(
        _C.CUDA, _D.UNKNOWN, _XID + _PROGRAMS_XIDS, r"\bCUDA (?:kernel )?error\b|\bcudaError\w+",
        r"illegal memory access",
        r"CU(?:BLAS|DNN|FFT|SPARSE|SOLVER)_STATUS_\w+", r"cu(?:blas|DNN) (?:runtime )?error", r"\bHIP error\b",
        r"the GPU program failed to execute", r"unspecified launch failure",
        advice="run once with CUDA_LAUNCH_BLOCKING=1; if it happens on one node alone, check that node's GPUs",
        source="pytorch/pytorch#51382",
    ),
    _rule(
        _C.CRASH, _D.UNKNOWN, r"Segmentation fault|\bsegfault\b", r"SIG(?:SEGV|BUS|ILL|FPE)\b",
        r"double free|corrupted size vs|malloc\(\): ",
        advice="native code crashed: look at the stack in the rank's log, and at the libraries that were built for it",
        source="MhLiao/DB#94",
    ),
    _rule(
        _C.CANCELLED, _D.USER, r"\*\*\* (?:JOB|STEP) .*CANCELLED AT [\dT:-]+ \*\*\*", r"^KeyboardInterrupt",
        advice="nothing, if you cancelled it", source="slurm.schedmd.com/scancel.html",
    ),
    _rule(
        _C.KILLED, _D.UNKNOWN, r"killed by signal: Terminated", r"\bSIG(?:KILL|TERM)\b",
        advice="ask who ended it: no out-of-memory kill and no request of Holdfast's was seen",
        source="deepspeedai/DeepSpeed#3160",
    ),
    _rule(
        _C.CONFIGURATION, _D.USER, r"FileNotFoundError|\[Errno 2\]|NotADirectoryError|IsADirectoryError",
        advice="correct the path; if it is right, the file system may be away on this node",
        source="Akegarasu/lora-scripts#5",
    ),
)  # fmt: skip

UNKNOWN = Rule(
    fault_class=FaultClass.UNKNOWN,
    domain=Domain.UNKNOWN,
    pattern=re.compile(""),
    advice="read the end of the rank's log",
    source="",
)
EXCEPTION = Rule(
    fault_class=FaultClass.UNKNOWN,
    domain=Domain.USER,
    pattern=re.compile(r"^\s*(?:\[rank\d+\]: *)?[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b"),
    advice="read the traceback: an exception of the script ended it",
    source="",
)
