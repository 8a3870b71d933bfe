"""`holdfast doctor`: whether a job will run here, as findings with the next step.

examination     all findings: of Slurm, of one node, of the job's storage
slurm_settings  what Slurm's configuration means for a job
boosters        what partitions and QOS mean for elastic jobs
node            what is looked at on a node, in one step; `python -m launcher.doctor.node`
page            the findings for people
"""
