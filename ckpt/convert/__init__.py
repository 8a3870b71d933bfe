"""Converts steps from and to other formats.

dcp_safetensors  exports to a torch DCP directory or a safetensors file, imports a DCP directory
dcp_directory    reads a torch DCP directory without running code that it contains
confined         reads untrusted data in a child process with limits
full_step        reads a committed step as named tensors and values, without an agent
"""
