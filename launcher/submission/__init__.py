"""How a job is handed over, and controlled from outside.

slurm.py          submitit's Slurm executor, its job and its state
local.py          submitit's local executor and its job
in_allocation.py  a job that runs inside the job that somebody else submitted
request.py        what a submission hands over, and who can change it
batch.py          what the batch script runs: it reads the request and supervises
outcome.py        the outcome of the job
job_control.py    status, stop, scale and cancel of a job that was submitted
queue.py          why a job waits in Slurm's queue
"""
