"""Spec-Bench (Xia et al., arXiv 2401.07851): its answer files, and the table of the paper."""
