"""The commands from settings to files.  Long runs are stored as they go, so that an interrupted one continues."""
