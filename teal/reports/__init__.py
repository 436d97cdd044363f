"""What people look at: tables, plots, files of results."""
