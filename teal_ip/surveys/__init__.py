"""From the files of a network to answers on one page."""
