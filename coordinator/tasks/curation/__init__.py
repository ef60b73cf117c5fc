"""Preparing a data set for training: what `rollcast curate` does. One pass over the rows; memory holds hashes only.

malformed ─► normalise ─► exact duplicates ─► near duplicates ─► contamination ─► pass rates ─► kept
"""
