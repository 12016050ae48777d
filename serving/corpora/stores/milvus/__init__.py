"""Corpora on Milvus: the only package that imports pymilvus and milvus_lite."""

import os

from serving.corpora.ports import StoreError

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC otherwise prints additional lines for the errors that it raises
# Milvus Lite searches rows that are not in its files yet one by one in Python. By default, these rows may have 128 MB.
os.environ.setdefault("MILVUS_LITE_MEMTABLE_MEMORY_LIMIT_BYTES", str(4 << 20))
try:
    import pymilvus  # noqa: F401
except ImportError as error:
    raise StoreError(
        f"--store: corpora on Milvus need the extra 'milvus' ({error}): pip install 'isosphere[milvus]'"
    ) from None
