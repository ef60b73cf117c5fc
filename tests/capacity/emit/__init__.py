"""Test the files that start a plan's workers by other tools."""
