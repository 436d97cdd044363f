"""What to buy: from settings and files to a question, the search for a plan, its result, and its outlook."""
