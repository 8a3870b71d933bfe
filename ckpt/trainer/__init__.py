"""What runs inside the training process.

session       this worker's link with its node's agent, and its slots
state         a live state taken apart: values, and the tensors between them
staging       from live state to a slot: the only time that training waits
replicas      what ranks hold alike, and who stores which part of it
overlap       copies from a GPU that go on while training does, and the gate before the next optimizer step
cuda          the few calls made of a GPU
restore       from a saved step to live state
tensor_reads  which parts of which shards fill a live tensor
contents      a saved step's values and, on demand, its tensors, without a live state
dcp           torch.distributed.checkpoint: a storage writer and a storage reader
saved         one saved step's shards, verified as they are read
stored        another step than the one that is restored, read from a tier by each rank itself
verified      copies and checksums in one pass, by several threads
torch_or_not  torch, imported only where a state holds something of it
leaves        what counts as a tensor, and how its bytes lie in memory
placement     which boxes of a tensor this rank holds, and which ranks hold the others
cadence       which steps are saved, and where all ranks stop
journal       what rank 0 says of all this, on its console and in a file
deadlines     how long to wait for others
solo          a one-node agent of our own, where no launcher has started any
program       an agent on each node of an MPI program that no launcher has started
home          what both keep in a node's memory, and what the run is called
"""
