"""How a supervised job is handed over.

slurm.py    submitit's Slurm executor, its job and how its state is asked
local.py    submitit's local executor and its job
request.py  what a submission hands over, and who can change it
batch.py    what the batch script runs: it reads the request and supervises
outcome.py  what became of the job
inside.py   a job that runs inside the job that somebody else submitted
process.py  a local job's process, found again from any other
"""
