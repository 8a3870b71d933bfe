"""Health checks of a node. Each check gives one Finding.

command    `holdfast node check`
table      prints findings as tables
verdict    the file of findings for Slurm's hooks
runner     runs checks in parallel; none of them can hang the run
tree       kills an abandoned check and all its processes
catalog    the list of all checks
host ...   the checks, one module for each subject
nvidia_smi the driver's report about the GPUs, and what it means if a part of it cannot be read
preflight  the checks of the launcher's runner; watch: follows the verdict during a job
check      the interface of a check: Node, Check, Level
settings   the site's settings
finding    the result of a check, with the codes that Nagios plugins use
"""
