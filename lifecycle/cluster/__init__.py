"""`holdfast cluster config`: writes what creates a cluster on AWS, and checks the account. It creates nothing.

request          what the user asks for; the groups of nodes and the settings of Slurm that follow from it
scripts          what nodes run when they start: the package, on_create.sh and the settings, with their hashes
hyperpod         the requests for SageMaker HyperPod
parallelcluster  the configuration for AWS ParallelCluster
pcs              the requests for AWS PCS
calls            a kind's requests: their check by botocore's models, and create.sh, which sends them
account          what the account has: quotas, offerings by zone, training plans, reservations, subnets, buckets
command          the command line
"""
