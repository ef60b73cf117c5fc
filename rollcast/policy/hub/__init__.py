"""Read and write models in the Hugging Face format."""
