"""What a job is before and beside its supervisor: its file, checked; its ids; its processes' and users' files.

jobfile            the job file, validated once; its parts: elastic.py, notify.py, sbatch_options.py, gpus.py
program            what workers run, checked before submission; job_paths.py: the paths of a job file
module_names       lets a script have modules of the same names as Holdfast's packages
booster_checks     whether Slurm can start an elastic job's boosters
run_id             the id of a run
registry           finds this user's jobs; supervisor_process.py: the supervisor of a local job
stop_request       the file that requests a save and the end; scale_request.py: another number of nodes
"""
