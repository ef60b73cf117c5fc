"""The first hour: what a machine lacks, and files to begin with."""
