"""A device's data: an installed data set, arrays in a file, or a table."""

from client_sdk.data.sources import (
    Data,
    DataSourceError,
    Examples,
    Shard,
    count,
    entry_of,
    held_out_part,
    installed,
    is_file,
    load_data,
    names,
    require_source,
    stem,
    training_part,
    with_target,
)

__all__ = [
    "Data",
    "DataSourceError",
    "Examples",
    "Shard",
    "count",
    "entry_of",
    "held_out_part",
    "installed",
    "is_file",
    "load_data",
    "names",
    "require_source",
    "stem",
    "training_part",
    "with_target",
]
