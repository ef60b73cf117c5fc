"""Prepare a data set for training, as `rollcast curate` does, in one pass over the rows; memory holds hashes only.

malformed ─► normalise ─► exact duplicates ─► near duplicates ─► contamination ─► pass rates ─► kept
"""
