"""Measure the whole way of a model in the form of the Hugging Face Hub, with a small one that is made here."""
