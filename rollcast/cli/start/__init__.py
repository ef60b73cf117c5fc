"""Define the commands for the first hour: what a machine lacks, what fits it, and files to begin with."""
