"""From live state to a slot of the node's memory.

flatten     a live state as a tree of values and the tensors between them
staging     the copy into a slot: the only time that training waits
async_copy  copies from a GPU beside training, and the gate before the next optimizer step
cuda        the calls to CUDA
replicas    tensors that several ranks hold alike, and the part that each of them stores
"""
