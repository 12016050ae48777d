"""Maps of corpora: points on a plane, close together if their vectors are.

A process of its own (`python -m serving.mapping`) computes a map, because the work takes minutes of CPU time and
hundreds of megabytes. The process has a low priority, so that requests are served first.
"""
