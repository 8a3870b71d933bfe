"""The tiers below the nodes' memory, in which steps are stored.

tier       the interface of a tier
posix      a shared directory; lustre: its striping; direct_io: writes without the page cache
nvme       a directory on each node's own disk
s3         a bucket; bucket: the interface of a service; buckets: which service a URL names; s3_bucket, s3_client: S3;
           cloud_bucket: gs:// and az://
open       opens the configured tiers, nearest first; the newest step of each, for the supervisor
reads      reads shards from a tier and verifies them
catalog    the steps in a tier, and which of them can be restored
mark       the file that names the owner of a namespace's folder
own_folder the folder of a namespace, held open while it is written to
claim      the file that names the live run that writes to a namespace
retention  which steps may be removed
quarantine the names of damaged steps that are set aside, and the reasons
last_seen  what this user remembers of a shared directory, to notice that it is another one, or not mounted
lines      the lines of descent in a tier: begins one, compares two
copying    copies one step to another tier
lookup     the tiers that a path or URL on a command line names
throttle, parallel   limits of the rate and of the number of parallel calls
"""
