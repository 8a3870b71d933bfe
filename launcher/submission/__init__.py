"""Submits jobs, and controls submitted jobs.

executor.py       submitit's executor; job.py: the job that it returns
in_allocation.py  runs a job inside an existing Slurm job, which another tool has submitted
submitit_base.py  submitit's classes with public hooks: the one module that knows submitit's private names
request.py        the file with the job's options, which the batch host reads, and its protection
batch.py          the program of the batch script: reads the request and supervises the job
outcome.py        the outcome of a submitted job
job_control.py    status, stop, scale and cancel of a submitted job
logs.py           finds and prints the logs of ranks and nodes
"""
