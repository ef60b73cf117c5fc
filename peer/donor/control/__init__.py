"""Carry out the owner's commands and remember them."""
