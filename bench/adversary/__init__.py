"""Measure what hostile members of a run achieve, and after how much work they are found."""
