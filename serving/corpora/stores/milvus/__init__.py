"""Corpora on Milvus: the only package that imports pymilvus and milvus_lite."""
