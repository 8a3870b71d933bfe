"""Copies live state to a slot of the node's memory.

flatten     divides a live state into a tree of values and its tensors
staging     the copy into a slot: the only time that training waits
async_copy  copies from a GPU during training; the next optimizer step waits for them
cuda        the calls to CUDA; gpu_checksums: whether training has changed a tensor during its copy
replicas    tensors that are equal on several ranks, and the part that each rank stores
"""
