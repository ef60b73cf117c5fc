"""Write answers as tables, plots and pages."""
