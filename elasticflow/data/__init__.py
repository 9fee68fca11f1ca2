"""Sources of records, and the order in which an epoch visits them.

``open_source`` makes sources of what a program's ``data()`` returns; ``Source.rows`` reads records by
number; ``Shuffle`` says which numbers come when. h5py and pyarrow are imported when they are needed.
"""

from elasticflow.data.arrays import Arrays
from elasticflow.data.combined import Concat, Mix, Repeat, Take, Weighted
from elasticflow.data.csv_files import CSV
from elasticflow.data.delta import Delta
from elasticflow.data.hdf5 import HDF5
from elasticflow.data.hive import Hive
from elasticflow.data.iceberg import Iceberg
from elasticflow.data.mapped import Collate, Indexed, Transform
from elasticflow.data.npz import NPZ
from elasticflow.data.opening import Sources, open_path, open_source
from elasticflow.data.parquet import Parquet
from elasticflow.data.permutation import Shuffle
from elasticflow.data.query import Query
from elasticflow.data.ragged import Field, Pad, Ragged
from elasticflow.data.source import Column, Source
from elasticflow.data.typed import vocabularies

__all__ = [
    "CSV", "HDF5", "NPZ", "Arrays", "Collate", "Column", "Concat", "Delta", "Field", "Hive", "Iceberg",
    "Indexed", "Mix", "Pad", "Parquet", "Query", "Ragged", "Repeat", "Shuffle", "Source", "Sources", "Take",
    "Transform", "Weighted", "open_path", "open_source", "vocabularies",
]  # fmt: skip
