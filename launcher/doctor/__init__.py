"""`holdfast doctor`: checks whether a job will run here. Each finding has the next step.

examination     all findings: about the scheduler, one node, and the job's storage
slurm_settings  judges Slurm's configuration
boosters        judges partitions and QOS for elastic jobs
node            runs on one node, in one step: `python -m launcher.doctor.node`
page            prints the findings
"""
