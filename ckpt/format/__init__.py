"""The formats of what is stored, and the checks of what is read.

layout         which bytes of a shard belong to which tensor, and the state's structure around them
checksums      checksums over fixed-size blocks of a shard
shard_record   the record beside a shard: its writer, step, layout and checksums
manifest       one committed step in a lower tier: every shard and where its bytes lie
manifest_rows  a manifest's shards, with common parts stored once
json_values    Python values as JSON and back
json_kinds     objects that JSON does not have: bytes, paths, dates, enums, dtypes
boxes          which parts of which chunks make up a box
rank_grid      which other ranks hold parts of a tensor
atomic_files   durable, private writes
file_lock      exclusive locks on files
"""
