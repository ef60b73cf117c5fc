"""Read the machine's sensors and measure its speed."""
