"""Other formats of the same shards.

dcp_safetensors  export to a torch DCP directory or a safetensors file, import of a DCP directory
dcp_directory    a torch DCP directory, read without running anything that it contains
full_step        a committed step as named tensors and values, without an agent
"""
