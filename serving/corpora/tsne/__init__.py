"""Maps of corpora: positions of passages on a plane. Passages with similar vectors are close together.

A child process (`python -m serving.corpora.tsne`) computes a map, because the work takes minutes of CPU time and
hundreds of megabytes. The process has a low priority, so that requests are served first.
"""
