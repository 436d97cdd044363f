"""Long runs of the commands, from settings to files: kept on disk as they go, so that one that broke off continues."""
