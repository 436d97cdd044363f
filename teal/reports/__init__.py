"""Results for people: tables, plots, the report, files of rows."""
