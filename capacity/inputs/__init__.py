"""Read files and measurements, check them, and turn them into workers and a demand."""
