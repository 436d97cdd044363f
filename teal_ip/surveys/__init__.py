"""Network survey: from a network's files to answers on one page."""
